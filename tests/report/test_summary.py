"""The closing text, word by word."""

from report_cases import MICRO, OUTLINE, failed, trial

from autotune.objective import TrialState
from autotune.report import summary_text


def test_the_winner_is_set_against_the_baseline() -> None:
    records = [trial(0), trial(1, throughput=183.0), trial(2, throughput=900.0, memory=0.99)]
    assert summary_text(records, OUTLINE).splitlines() == [
        "Sweep demo: 3 of 9 trials finished: 2 feasible, 1 infeasible, 0 failed.",
        "Best feasible: trial 1, throughput_tokens_per_s_per_gpu 183 tokens/s/GPU, "
        "1.83 times the baseline (100 tokens/s/GPU).",
        f"  {MICRO}=8",
        "  peak_memory_ratio: 50 % (max 90 %)",
        "  exposed_comm_ratio: n/a (max 20 %) (no profiled step finished)",
        "Start-up: 60 s a trial (median).",
        "Step: 2 s (baseline), 1.09 s (trial 1).",
    ]


def test_a_baseline_that_wins_is_called_that() -> None:
    text = summary_text([trial(0), trial(1, throughput=50.0)], OUTLINE)
    assert "Best feasible: trial 0" in text and "the baseline itself." in text
    assert "Step: 2 s (baseline)." in text


def test_an_infeasible_baseline_is_named_so() -> None:
    text = summary_text([trial(0, memory=0.95), trial(1)], OUTLINE)
    assert "1.00 times the baseline (100 tokens/s/GPU, which is infeasible)." in text


def test_without_a_measured_baseline_there_is_no_ratio() -> None:
    text = summary_text([failed(0), trial(1)], OUTLINE)
    assert "tokens/s/GPU; the baseline was not measured." in text
    assert "times" not in text


def test_without_a_feasible_trial_the_least_infeasible_is_shown() -> None:
    records = [trial(0, memory=0.99), trial(1, memory=0.92), failed(2)]
    lines = summary_text(records, OUTLINE).splitlines()
    assert lines[1:5] == [
        "No trial is feasible.",
        "Least infeasible: trial 1, throughput_tokens_per_s_per_gpu 100 tokens/s/GPU.",
        f"  {MICRO}=8",
        "  peak_memory_ratio: 92 % (max 90 %, broken)",
    ]


def test_failures_are_counted_by_cause() -> None:
    records = [trial(0), failed(1), failed(2), failed(3, TrialState.INFRASTRUCTURE)]
    assert summary_text(records, OUTLINE).splitlines()[-2:] == [
        "out_of_memory: 2 trial(s), e.g. trial 1: rank 1 ran out of memory",
        "infrastructure: 1 trial(s), e.g. trial 3: rank 1 ran out of memory",
    ]


def test_only_failures_leave_nothing_but_their_causes() -> None:
    assert summary_text([failed(0)], OUTLINE).splitlines() == [
        "Sweep demo: 1 of 9 trials finished: 0 feasible, 0 infeasible, 1 failed.",
        "No trial is feasible.",
        "out_of_memory: 1 trial(s), e.g. trial 0: rank 1 ran out of memory",
    ]


def test_a_sweep_without_trials_says_so() -> None:
    assert "0 of 9 trials finished" in summary_text([], OUTLINE)
