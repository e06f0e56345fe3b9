"""Rows, time left, and what reaches a terminal or a file."""

import dataclasses
import io

from report_cases import BASELINE, MICRO, OUTLINE, failed, trial
from rich.console import Console

from autotune.objective import StepKind, StepRecord, TrialState
from autotune.report.live import (
    LiveTable,
    Row,
    RunningTrial,
    build_rows,
    progress_line,
    render,
    time_left_s,
    visible,
)


def running(number: int, elapsed_s: float = 0.0, num_steps: int = 0) -> RunningTrial:
    return RunningTrial(
        number=number, setting={**BASELINE, MICRO: 4}, elapsed_s=elapsed_s, num_steps=num_steps
    )


def step(number: int, index: int) -> StepRecord:
    metrics = {"timing_s/step": 2.0, "perf/throughput": 100.0}
    return StepRecord(
        number=number, attempt=0, step=index, kind=StepKind.MEASURED, metrics=dict(metrics)
    )


def console(*, is_terminal: bool) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=is_terminal, width=200), output


def test_a_finished_trial_is_a_row_of_ready_text() -> None:
    [row] = build_rows([trial(1, memory=0.95)], [], OUTLINE)
    assert row == Row(
        number=1,
        state="infeasible",
        knobs=f"{MICRO}=8",
        objective="100 tokens/s/GPU",
        constraints=("95 % !", "n/a"),
        elapsed="1 min 40 s",
        is_best=False,
    )


def test_a_running_trial_shows_its_steps() -> None:
    rows = build_rows([], [running(1), running(2, elapsed_s=75.0, num_steps=3)], OUTLINE)
    assert [(row.state, row.elapsed) for row in rows] == [
        ("starting", "0 s"),
        ("step 3/6", "1 min 15 s"),
    ]


def test_rows_go_by_number_and_only_the_best_is_marked() -> None:
    rows = build_rows([trial(2, throughput=300.0), trial(0), failed(3)], [running(1)], OUTLINE)
    assert [row.number for row in rows] == [0, 1, 2, 3]
    assert [row.is_best for row in rows] == [False, False, True, False]
    assert rows[3].state == "out of memory"


def test_a_trial_that_runs_again_hides_its_lost_record() -> None:
    [row] = build_rows([failed(0, TrialState.INFRASTRUCTURE)], [running(0)], OUTLINE)
    assert row.state == "starting"


def test_a_long_sweep_shows_its_newest_trials_and_the_best() -> None:
    records = [trial(number, throughput=900.0 if number == 2 else 100.0) for number in range(9)]
    rows = visible(build_rows(records, [], OUTLINE), 4)
    assert [row.number for row in rows] == [2, 6, 7, 8]


def test_a_short_sweep_shows_every_trial_once() -> None:
    rows = build_rows([trial(0), trial(1)], [], OUTLINE)
    assert visible(rows, 4) == rows


def test_time_left_counts_what_running_trials_have_done() -> None:
    # 9 trials, 2 finished in 100 s each, one running for 40 s: 7 x 100 - 40
    assert time_left_s([trial(0), trial(1)], [running(2, elapsed_s=40.0)], OUTLINE) == 660.0


def test_time_left_is_shared_by_trials_that_run_at_once() -> None:
    outline = dataclasses.replace(OUTLINE, max_concurrent=2)
    assert time_left_s([trial(0)], [], outline) == 400.0


def test_a_trial_that_takes_longer_than_the_others_never_makes_time_negative() -> None:
    outline = dataclasses.replace(OUTLINE, num_trials=2)
    assert time_left_s([trial(0)], [running(1, elapsed_s=500.0)], outline) == 0.0


def test_before_the_first_trial_has_ended_time_left_is_unknown() -> None:
    assert time_left_s([], [running(0)], OUTLINE) is None
    assert progress_line([], [running(0)], OUTLINE) == "0 of 9 trials"


def test_progress_names_the_best_and_the_time_left() -> None:
    assert progress_line([trial(0)], [], OUTLINE) == (
        "1 of 9 trials, best so far trial 0 with 100 tokens/s/GPU, about 13 min 20 s left"
    )


def test_the_table_marks_the_best_trial() -> None:
    screen, output = console(is_terminal=False)
    screen.print(render(build_rows([trial(0)], [], OUTLINE), "caption", OUTLINE))
    assert "* 0" in output.getvalue()
    assert "max 90 %" in output.getvalue()


def test_without_a_terminal_every_event_is_one_line() -> None:
    screen, output = console(is_terminal=False)
    with LiveTable(OUTLINE, screen) as table:
        table.trial_started(0, BASELINE)
        table.step_finished(step(0, 1))
        table.trial_finished(trial(0))
        table.trial_started(1, {**BASELINE, MICRO: 8})
        table.trial_lost(1, "its actor was lost")
    assert output.getvalue().splitlines() == [
        "trial 0 started: baseline",
        "trial 0 step 1 of 6, 2 s, 100 tokens/s/GPU (measured)",
        "trial 0 feasible: 100 tokens/s/GPU (best so far), peak_memory_ratio 50 % (max 90 %), "
        "exposed_comm_ratio n/a (max 20 %) [baseline]; 1 of 9 trials, "
        "best so far trial 0 with 100 tokens/s/GPU, about 13 min 20 s left",
        f"trial 1 started: {MICRO}=8",
        "trial 1 was lost: its actor was lost",
    ]


def test_in_a_terminal_the_table_shows_all_trials() -> None:
    screen, output = console(is_terminal=True)
    with LiveTable(OUTLINE, screen, finished=[trial(0)]) as table:
        table.trial_started(1, {**BASELINE, MICRO: 8})
        table.step_finished(step(1, 1))
    assert "sweep demo" in output.getvalue()
    assert "step 1/6" in output.getvalue()
    assert "trial 1 started" not in output.getvalue()


def test_elapsed_time_comes_from_the_clock() -> None:
    now = [10.0]
    screen, _ = console(is_terminal=False)
    table = LiveTable(OUTLINE, screen, clock=lambda: now[0])
    table.trial_started(0, BASELINE)
    now[0] = 75.0
    screen, output = console(is_terminal=False)
    screen.print(table.table())
    assert "1 min 05 s" in output.getvalue()
