"""When a running trial is stopped: only when it is clearly worse, and only when that saves time."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from autotune.early_stop import EarlyStop, EarlyStopScheduler
from autotune.objective import StepKind, StepRecord, TrialRecord, TrialState

THROUGHPUT = "throughput_tokens_per_s_per_gpu"
RULE = EarlyStop(THROUGHPUT, steps_per_trial=8)


def steps(*speeds: float, warmup: int = 1, step_s: float = 30.0) -> list[StepRecord]:
    """Steps with these speeds, the first of them warm-up."""
    return [
        StepRecord(
            number=3,
            attempt=0,
            step=index + 1,
            kind=StepKind.WARMUP if index < warmup else StepKind.MEASURED,
            metrics={"perf/throughput": speed, "timing_s/step": step_s},
        )
        for index, speed in enumerate(speeds)
    ]


def best(throughput: float = 100.0, **metrics: float) -> TrialRecord:
    return TrialRecord(
        number=2,
        state=TrialState.COMPLETE,
        params={},
        setting={},
        overrides=[],
        metrics={THROUGHPUT: throughput, **metrics},
        absent={},
        violations={},
        feasible=True,
        cause="",
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:01:00+00:00",
        retries=0,
    )


def cause(seen: Sequence[StepRecord], record: TrialRecord | None = None) -> str | None:
    record = best() if record is None else record
    return RULE.cause(seen, record)


def test_a_trial_at_a_third_of_the_best_is_stopped_with_its_reason() -> None:
    assert cause(steps(30, 31, 32)) == (
        "stopped after 2 measured steps: 31.5 against 100 of trial 2, beyond both intervals"
    )


def test_a_trial_within_the_intervals_goes_on() -> None:
    assert cause(steps(80, 81, 82)) is None


@pytest.mark.parametrize("seen", [[], steps(1), steps(1, 30), steps(1, 1, 1, warmup=3)])
def test_a_first_step_never_stops_a_trial(seen: list[StepRecord]) -> None:
    assert cause(seen) is None


def test_steps_that_scatter_widen_the_interval() -> None:
    assert cause(steps(60, 62, 62)) is not None
    assert cause(steps(60, 20, 104)) is None


def test_nothing_is_stopped_before_a_feasible_setting_is_known() -> None:
    assert RULE.cause(steps(30, 31, 32), None) is None


def test_a_trial_that_is_in_its_last_step_goes_on() -> None:
    six, seven = [30.0] * 6, [30.0] * 7
    assert cause(steps(*six)) is not None
    assert cause(steps(*seven)) is None


def test_an_objective_in_seconds_is_worse_when_it_is_larger() -> None:
    rule = EarlyStop("step_s", steps_per_trial=8)
    record = dataclasses.replace(best(), metrics={"step_s": 10.0})
    assert rule.cause(steps(1, 1, 1, step_s=30), record) is not None
    assert rule.cause(steps(1, 1, 1, step_s=5), record) is None


def test_an_objective_that_steps_do_not_report_stops_nothing() -> None:
    rule = EarlyStop("peak_memory_ratio", steps_per_trial=8)
    record = best(peak_memory_ratio=0.1)
    assert rule.cause(steps(1, 1, 1), record) is None


class Watcher:
    def __init__(self, answer: str | None) -> None:
        self.answer = answer

    def note_step(self, trial_id: str, result: Any) -> str | None:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "decision"), [("worse", TrialScheduler.STOP), (None, TrialScheduler.CONTINUE)]
)
def test_the_scheduler_does_what_the_searcher_says(answer: str | None, decision: str) -> None:
    class Trial:
        trial_id, config = "a", {"number": 1}

    scheduler = EarlyStopScheduler(Watcher(answer))
    assert scheduler.on_trial_result(None, Trial(), {}) == decision
