"""The closing text, word by word."""

from typing import Any

import pytest
from report_cases import (
    MICRO,
    THROUGHPUT,
    failed,
    measured,
    sweep_data,
    trial,
    two_objectives,
)
from test_answer import verification

from autotune.objective import TrialRecord, TrialState
from autotune.report.answer import answer
from autotune.report.page import report_page
from autotune.report.summary import next_step, summary_text
from autotune.verification import Decision, VerifyJob


def text_of(trials: list[TrialRecord], **changes: Any) -> str:
    data = sweep_data(trials, **changes)
    return summary_text(answer(data), data)


def test_the_winner_is_set_against_the_baseline() -> None:
    records = [trial(0), trial(1, throughput=183.0), trial(2, throughput=900.0, memory=0.99)]
    assert text_of(records).splitlines() == [
        "Sweep demo: 3 of 9 trials finished: 2 feasible, 1 infeasible, 0 failed; 0.667 GPU-hours.",
        "Winner: trial 1, throughput_tokens_per_s_per_gpu 183 tokens/s/GPU, "
        "1.83 times the baseline (no interval: one value a trial).",
        "Baseline: 100 tokens/s/GPU.",
        "Not verified: the best of many, not yet compared in fresh jobs.",
        "Change:",
        f"  {MICRO}  2 -> 8",
        "Constraints:",
        "  peak_memory_ratio: 50 % of 90 %, head-room 44 %; baseline 50 %",
        "  exposed_comm_ratio: not measured (no profiled step finished), limit 20 %",
        "Binding: peak_memory_ratio, which 1 better trial breaks.",
        "Start-up (median): 60 s in a fresh job (3).",
        "Step: 2 s (baseline), 1.09 s (trial 1).",
        "Production: python -m verl.trainer.main_ppo --config-path /sweeps/demo --config-name best",
    ]


def test_the_gain_has_the_interval_of_its_steps() -> None:
    steps = {0: measured(0, [100.0, 100.0]), 1: measured(1, [180.0, 186.0])}
    text = text_of([trial(0), trial(1, throughput=183.0)], steps=steps)
    assert "1.83 times the baseline (95 % interval 1.80 to 1.86: scatter" in text


def test_a_baseline_that_wins_is_called_that() -> None:
    text = text_of([trial(0), trial(1, throughput=50.0)])
    assert "Winner: trial 0" in text and "the baseline itself." in text
    assert "Nothing to change" in text and "Change:" not in text
    assert "Step: 2 s (baseline)." in text


def test_an_infeasible_baseline_is_named_so() -> None:
    text = text_of([trial(0, memory=0.95), trial(1)])
    assert "Baseline: 100 tokens/s/GPU, which breaks a constraint itself." in text


def test_without_a_measured_baseline_there_is_no_ratio() -> None:
    text = text_of([failed(0), trial(1)])
    assert "tokens/s/GPU; the baseline was not measured." in text
    assert "times the baseline" not in text


def test_without_a_feasible_trial_the_least_infeasible_is_shown() -> None:
    records = [trial(0, memory=0.99), trial(1, memory=0.92), failed(2)]
    lines = text_of(records).splitlines()
    assert lines[1:5] == [
        "No trial is feasible.",
        "Least infeasible: trial 1, throughput_tokens_per_s_per_gpu 100 tokens/s/GPU "
        f"[{MICRO}=8]",
        "Constraints:",
        "  peak_memory_ratio: 92 % of 90 %, BROKEN; baseline 99 %",
    ]
    assert "Binding: peak_memory_ratio, which 2 trials break." in lines
    assert not any(line.startswith("Production") for line in lines)


def test_no_constraint_binds_where_no_better_trial_was_refused() -> None:
    text = text_of([trial(0), trial(1, throughput=183.0)])
    assert "Binding: none, no better trial was refused; the closest limit is peak_memory" in text


def test_failures_are_counted_by_cause() -> None:
    records = [trial(0), failed(1), failed(2), failed(3, TrialState.INFRASTRUCTURE)]
    assert text_of(records, exported=None).splitlines()[-2:] == [
        "out_of_memory: 2 trials, e.g. trial 1: rank 1 ran out of memory",
        "infrastructure: 1 trial, e.g. trial 3: rank 1 ran out of memory",
    ]


def test_only_failures_leave_nothing_but_their_causes() -> None:
    lines = text_of([failed(0)]).splitlines()
    assert lines[0].startswith("Sweep demo: 1 of 9 trials finished: 0 feasible, 0 infeasible, 1 fa")
    assert lines[1] == "No trial is feasible."
    assert lines[2].startswith("Least infeasible: trial 0")
    assert lines[3:] == ["out_of_memory: 1 trial, e.g. trial 0: rank 1 ran out of memory"]


def test_a_sweep_without_trials_says_so() -> None:
    lines = text_of([], is_running=True).splitlines()
    assert lines[0].startswith("Sweep demo, running: 0 of 9 trials finished")
    assert lines[1:] == ["No trial has finished yet."]


def test_lost_trials_and_the_proof_are_counted_apart() -> None:
    job = VerifyJob(plan="p", block=0, trial=0, record=trial(0))
    lost = failed(2, TrialState.INFRASTRUCTURE)
    line = text_of([trial(0), trial(1, 150.0), lost], verify_jobs=[job]).splitlines()[0]
    assert line == (
        "Sweep demo: 2 of 9 trials finished: 2 feasible, 0 infeasible, 0 failed, 1 lost; "
        "0.667 GPU-hours, and 0.222 for the proof."
    )


def test_two_objectives_have_their_front() -> None:
    data = two_objectives([trial(0), trial(1, 150.0, memory=0.7)])
    lines = summary_text(answer(data), data).splitlines()
    place = lines.index(f"Pareto front of {THROUGHPUT} and peak_memory_ratio:")
    assert lines[place + 1 : place + 4] == [
        f"  trial 1: 150 tokens/s/GPU, 70 % [{MICRO}=8]",
        "  trial 0: 100 tokens/s/GPU, 50 % [baseline]",
        "  No feasible setting beats one of these in both metrics; trial 1 is the winner by "
        f"{THROUGHPUT} alone.",
    ]


def test_a_winner_that_is_not_on_the_front_is_explained() -> None:
    again = [trial(1, 150.0), trial(2, 149.0, setting=trial(1).setting)]
    data = two_objectives([trial(0), *again, trial(3, 170.0, memory=0.4)])
    text = summary_text(answer(data), data)
    assert "Trial 2, the winner, is not among them" in text


@pytest.mark.parametrize(
    ("decision", "exported", "said"),
    [
        (Decision.PROVEN, 1, "Production: python -m verl.trainer.main_ppo --config-path "),
        (Decision.PROVEN, None, "Not exported yet; for production: autotune export /sweeps/demo"),
        (Decision.PROVEN, 2, "(best.yaml there holds the setting of trial 2); for production: "),
        (Decision.NOT_PROVEN, None, "autotune verify /sweeps/demo verify.max_jobs=30"),
        (None, None, "To prove it before production: autotune verify /sweeps/demo"),
    ],
)
def test_the_last_line_says_what_brings_the_winner_into_production(
    decision: Decision | None, exported: int | None, said: str
) -> None:
    proof = None if decision is None else verification(decision, 0.9, 1.7)
    records = [trial(0), trial(1, 150.0), trial(2, 140.0)]
    lines = text_of(records, verification=proof, exported=exported).splitlines()
    assert said in lines[-1]
    data = sweep_data(records, verification=proof, exported=exported)
    assert "/sweeps/demo" not in summary_text(answer(data), data, with_next=False)
    running = text_of(records, verification=proof, exported=exported, is_running=True)
    assert (said in running.splitlines()[-1]) is (exported == 1)


def test_a_setting_that_is_worse_is_no_winner_and_nothing_to_change() -> None:
    proof = verification(Decision.WORSE, 0.7, 0.9)
    data = sweep_data([trial(0), trial(1, 150.0)], verification=proof, exported=None)
    text, page = summary_text(answer(data), data), report_page(data, answer(data))
    assert "Best of the sweep: trial 1" in text and "change nothing." in text
    assert "Winner" not in text and "\nChange:" not in text
    assert "What trial 1 changed" in page and "What to change" not in page
    assert "Trial 1 against baseline" in page and next_step(answer(data), data) is None


@pytest.mark.parametrize("trials", [[], [failed(0)], [trial(0)], [trial(0), trial(1, 50.0)]])
def test_without_a_better_setting_there_is_no_next_step(trials: list[TrialRecord]) -> None:
    data = sweep_data(trials, exported=None)
    assert next_step(answer(data), data) is None


def test_a_trial_that_was_stopped_early_is_no_failure() -> None:
    stopped = failed(1, TrialState.STOPPED)
    lines = text_of([trial(0), stopped, failed(2)]).splitlines()
    assert "1 feasible, 0 infeasible, 1 stopped early, 1 failed" in lines[0]
    assert [line for line in lines if line.startswith("stopped")] == []
