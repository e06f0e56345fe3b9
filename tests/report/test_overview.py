"""Sweeps on one line, and one trial in full."""

from pathlib import Path

import pytest
from sweep_maker import SweepSpec, make_sweep

from autotune.report.answer import Verdict, answer
from autotune.report.overview import MAX_LINE, overview, tail, view_trial
from autotune.report.reading import SweepData, read_sweep


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> SweepData:
    return read_sweep(make_sweep(tmp_path_factory.mktemp("sweeps"), SweepSpec(num_trials=8)).folder)


def test_a_line_says_what_the_answer_says(data: SweepData) -> None:
    line, found = overview(data), answer(data)
    assert found.winner is not None and line.winner == found.winner.number
    assert line.gain == found.gain and line.verdict is Verdict.NOT_VERIFIED
    assert (line.num_finished, line.num_trials) == (8, 30)
    assert line.last_ended_at == max(record.ended_at for record in data.trials)


def test_a_trial_is_shown_with_its_steps_and_the_trials_that_share_its_log(data: SweepData) -> None:
    view = view_trial(data, 1)
    assert view.record.number == 1 and view.outcome == "feasible"
    assert [step.step for step in view.steps] == [1, 2, 3, 4, 5, 6]
    assert view.log_shared_with == 7


def test_the_last_trial_of_a_job_has_the_end_of_the_log_for_itself(data: SweepData) -> None:
    assert view_trial(data, 7).log_shared_with is None


def test_the_end_of_a_log_reads_as_on_a_terminal(data: SweepData) -> None:
    log = data.log_path(0)
    assert log is not None
    assert tail(log, 3) == [
        " 100 %",
        "(WorkerDict pid=11) step:1 - perf/throughput:1500.0",
        "the last line of the job",
    ]


def test_a_log_keeps_no_secret_and_no_endless_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    path = tmp_path / "trial_0000.log"
    path.write_text("x" * 10_000 + "\nkey 0123456789abcdef\n")
    first, second = tail(path, 5)
    assert len(first) == MAX_LINE and second == "key <WANDB_API_KEY removed>"


def test_no_lines_are_no_lines(data: SweepData) -> None:
    assert view_trial(data, 0, log_lines=0).log_tail == []
