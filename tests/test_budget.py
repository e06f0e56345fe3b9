"""Budgets: what was spent, what one more trial would cost, and what is left."""

from typing import Any

import pytest

from autotune.budget import Budget, busy_hours, gpu_hours
from autotune.objective import TrialRecord, TrialState
from autotune.settings import SearchConfig


def record(number: int, start: int, end: int, **changes: Any) -> TrialRecord:
    """A trial on two GPUs from one minute of an hour to another."""
    values: dict[str, Any] = {
        "number": number,
        "state": TrialState.COMPLETE,
        "params": {},
        "setting": {},
        "overrides": [],
        "metrics": {"gpu_seconds": 120.0 * (end - start), "startup_s": 60.0},
        "absent": {},
        "violations": {},
        "feasible": True,
        "cause": "",
        "started_at": f"2026-01-01T00:{start:02}:00+00:00",
        "ended_at": f"2026-01-01T00:{end:02}:00+00:00",
        "retries": 0,
    }
    return TrialRecord(**{**values, **changes})


def budget(**changes: Any) -> Budget:
    values: dict[str, Any] = {
        "sampler": "model",
        "num_trials": 10,
        "max_concurrent": 1,
        "seed": 0,
        "num_startup_trials": 3,
    }
    return Budget(SearchConfig(**{**values, **changes}), steps_per_trial=6)


ONE_HOUR_OF_TWO_GPUS = [record(0, 0, 30), record(1, 30, 59)]


def test_hours_count_once_what_ran_at_the_same_time_and_no_pauses() -> None:
    assert busy_hours([record(0, 0, 12), record(1, 6, 18), record(2, 30, 36)], []) == pytest.approx(
        24 / 60
    )


def test_gpu_hours_add_up_over_trials() -> None:
    assert gpu_hours([record(0, 0, 30), record(1, 0, 30)]) == pytest.approx(2.0)


def test_no_trial_is_started_that_would_break_the_gpu_hours() -> None:
    spent = budget(max_gpu_hours=2.5).reason(ONE_HOUR_OF_TWO_GPUS, [])
    assert spent is not None and not spent.allows_repeats
    assert spent.text == (
        "1.97 of 2.5 GPU hours are spent and one more trial is expected to take 0.98"
    )
    assert budget(max_gpu_hours=3.0).reason(ONE_HOUR_OF_TWO_GPUS, []) is None


def test_running_trials_are_counted_as_spent() -> None:
    limited = budget(max_gpu_hours=3.0, max_concurrent=2)
    assert limited.reason(ONE_HOUR_OF_TWO_GPUS, ["2026-01-01T00:59:00+00:00"]) is not None


def test_no_trial_is_started_that_would_end_after_the_hours() -> None:
    spent = budget(max_hours=1.2).reason(ONE_HOUR_OF_TWO_GPUS, [])
    assert spent is not None and spent.text.startswith("0.983 of 1.2 hours have passed")
    assert budget(max_hours=2.0).reason(ONE_HOUR_OF_TWO_GPUS, []) is None


def test_the_first_trial_is_always_started() -> None:
    assert budget(max_gpu_hours=0.001, max_hours=0.001).reason([], []) is None


def test_what_is_left_goes_by_the_best_steps_time() -> None:
    left = budget().left(ONE_HOUR_OF_TWO_GPUS, best_step_s=30.0)
    # eight trials of a start-up of 60 s and six steps of 30 s, on two GPUs
    assert left is not None
    assert left.hours == pytest.approx(8 * 240 / 3600)
    assert left.gpu_hours == pytest.approx(2 * left.hours)


def test_without_a_known_step_what_is_left_costs_what_trials_cost_so_far() -> None:
    left = budget().left(ONE_HOUR_OF_TWO_GPUS, best_step_s=None)
    assert left is not None and left.hours == pytest.approx(8 * 29.5 / 60)
    assert budget().left([], best_step_s=None) is None


def test_trials_at_once_shorten_the_hours_and_not_the_gpu_hours() -> None:
    one, four = (
        budget(max_concurrent=count).left(ONE_HOUR_OF_TWO_GPUS, best_step_s=30.0)
        for count in (1, 4)
    )
    assert one is not None and four is not None
    assert four.gpu_hours == one.gpu_hours
    assert four.hours == pytest.approx(one.hours / 4)
