"""How values, knobs, trials and steps read."""

import pytest
from report_cases import BASELINE, MICRO, OUTLINE, failed, trial

from autotune.objective import StepKind, StepRecord, TrialState
from autotune.report.text import (
    changed_knobs,
    estimate_text,
    format_duration,
    format_value,
    joined,
    moment_text,
    plural,
    range_text,
    ratio_text,
    resources_text,
    step_line,
    trial_line,
    unit_text,
)
from autotune.settings import ResourcesConfig
from autotune.verification import Estimate


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("throughput_tokens_per_s_per_gpu", 1234.56, "1235 tokens/s/GPU"),
        ("throughput_tokens_per_s_per_gpu", 12.3456, "12.3 tokens/s/GPU"),
        ("step_s", 2.0, "2 s"),
        ("exposed_comm_ratio", 0.12345, "12.3 %"),
        ("kl_std", 1.234e-8, "1.2e-08 nats"),
        ("kl_std", 0.0, "0 nats"),
        ("kl_std", None, "n/a"),
    ],
)
def test_values_read_with_their_unit(metric: str, value: float | None, expected: str) -> None:
    assert format_value(metric, value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (125.0, "2 min 05 s"), (3720.0, "1 h 02 min")],
)
def test_durations_read_with_two_units(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected


def test_only_changed_knobs_are_named() -> None:
    setting = {**BASELINE, "reshard_after_forward": False, MICRO: 8}
    assert changed_knobs(setting, BASELINE) == f"{MICRO}=8, reshard_after_forward=false"


def test_a_setting_without_changes_is_the_baseline() -> None:
    assert changed_knobs(dict(BASELINE), BASELINE) == "baseline"


def test_a_finished_trial_is_one_line_with_its_limits() -> None:
    record = trial(3, throughput=200.0, memory=0.95)
    assert trial_line(record, [trial(0), record], OUTLINE) == (
        "trial 3 infeasible: 200 tokens/s/GPU, "
        "peak_memory_ratio 95 % (max 90 %, broken), exposed_comm_ratio n/a (max 20 %) "
        f"[{MICRO}=24]"
    )


def test_the_best_trial_so_far_says_so() -> None:
    record = trial(3, throughput=200.0)
    line = trial_line(record, [trial(0), record], OUTLINE)
    assert line.startswith("trial 3 feasible: 200 tokens/s/GPU (best so far), ")


def test_a_failed_trial_names_its_cause() -> None:
    line = trial_line(failed(4), [], OUTLINE)
    assert line == f"trial 4 failed (out_of_memory): rank 1 ran out of memory [{MICRO}=32]"


def test_a_step_is_one_line_with_its_kind() -> None:
    step = StepRecord(
        number=2,
        attempt=0,
        step=3,
        kind=StepKind.MEASURED,
        metrics={"timing_s/step": 1.94, "perf/throughput": 312.2},
    )
    assert step_line(step, OUTLINE) == ("trial 2 step 3 of 6, 1.94 s, 312 tokens/s/GPU (measured)")


def test_a_step_without_numbers_is_still_told() -> None:
    step = StepRecord(number=2, attempt=0, step=1, kind=StepKind.WARMUP, metrics={})
    assert step_line(step, OUTLINE) == "trial 2 step 1 of 6 (warmup)"


def test_a_trial_that_was_stopped_early_did_not_fail() -> None:
    cause = "stopped after 2 measured steps: 31.5 against 100 of trial 2, beyond both intervals"
    record = trial(3, state=TrialState.STOPPED, feasible=False, cause=cause)
    assert trial_line(record, [record], OUTLINE) == f"trial 3 {cause} [{MICRO}=24]"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.00"), (1.004, "1.004"), (0.996, "0.996"), (1.02, "1.02"), (1.803, "1.80")],
)
def test_a_ratio_can_be_told_from_1(value: float, text: str) -> None:
    assert ratio_text(value) == text


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("exposed_comm_ratio", "20 % (10 to 30)"),
        ("kl_std", "2.0e-01 nats (1.0e-01 to 3.0e-01)"),
        ("step_s", "0.2 s (0.1 to 0.3)"),
    ],
)
def test_an_interval_has_its_unit_once(metric: str, text: str) -> None:
    assert estimate_text(metric, Estimate(value=0.2, low=0.1, high=0.3, num_jobs=3)) == text
    assert estimate_text(metric, None) == "n/a"
    assert range_text(metric, 0.1, 0.3).endswith(f" {unit_text(metric)}")


def test_a_moment_is_read_in_utc() -> None:
    assert moment_text("2026-01-31T10:05:59+01:00") == "2026-01-31 09:05 UTC"


def test_one_of_a_thing_is_singular() -> None:
    resources = ResourcesConfig(nodes=1, ranks_per_node=2, device="cpu")
    assert resources_text(resources) == "1 node × 2 CPU ranks"
    assert plural(1, "pair") == "1 pair" and plural(2, "pair") == "2 pairs"
    assert joined(["a"]) == "a" and joined(["a", "b", "c"]) == "a, b and c"
