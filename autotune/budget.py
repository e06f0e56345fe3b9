"""What a sweep has spent and may still spend, and what the rest of it is expected to cost.

Runs in the driver. Pure functions over records, except for the clock. A budget is trials, GPU hours
and hours in which trials ran (pauses between two runs of a sweep do not count). A trial is started
only if it is expected to end within both; what one costs is the median of the trials so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from autotune.measure.stats import median
from autotune.objective import TrialRecord
from autotune.settings import SearchConfig

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why no further setting is tried."""

    text: str
    """In words, to stand behind a colon."""
    allows_repeats: bool
    """Whether the best settings are still measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What trials take."""

    gpu_hours: float
    hours: float


class Budget:
    """The limits of one sweep.

    Args:
        settings: The sweep's search section.
        steps_per_trial: Warm-up, measured and profiled steps.
    """

    def __init__(self, settings: SearchConfig, steps_per_trial: int) -> None:
        self._settings = settings
        self._steps_per_trial = steps_per_trial

    def reason(self, finished: Sequence[TrialRecord], running_since: Sequence[str]) -> Stop | None:
        """Return why the sweep may not start another trial; None while it may.

        Args:
            finished: All finished trials.
            running_since: Start of each running trial, ISO 8601.
        """
        one = self.next_trial(finished)
        if one is None:
            return None
        limit = self._settings.max_gpu_hours
        running = len(running_since)
        if limit is not None and gpu_hours(finished) + (running + 1) * one.gpu_hours > limit:
            return Stop(
                text=f"{gpu_hours(finished):.3g} of {limit:g} GPU hours are spent and one more "
                f"trial is expected to take {one.gpu_hours:.2g}",
                allows_repeats=False,
            )
        limit = self._settings.max_hours
        spent = busy_hours(finished, running_since)
        if limit is not None and spent + one.hours > limit:
            return Stop(
                text=f"{spent:.3g} of {limit:g} hours have passed and one more trial is expected "
                f"to take {one.hours:.2g}",
                allows_repeats=False,
            )
        return None

    def next_trial(self, finished: Sequence[TrialRecord]) -> Cost | None:
        """Return what one more trial is expected to cost; None before any has finished."""
        costs = [value for r in finished if (value := r.metrics.get("gpu_seconds")) is not None]
        times = [_duration_s(record) for record in finished]
        if not times:
            return None
        return Cost(
            gpu_hours=median(costs) / _SECONDS_PER_HOUR if costs else 0.0,
            hours=median(times) / _SECONDS_PER_HOUR,
        )

    def left(self, finished: Sequence[TrialRecord], best_step_s: float | None) -> Cost | None:
        """Return what the trials left of the budget are expected to cost.

        A search ends up near its best setting: a trial costs a start-up and its steps at the best
        setting's time, where both are known, else what trials cost so far.

        Args:
            finished: All finished trials.
            best_step_s: Time of a step at the best setting, predicted or measured.
        """
        one = self.next_trial(finished)
        if one is None:
            return None
        counted = sum(record.state.is_setting_fault for record in finished)
        num_left = max(self._settings.num_trials - counted, 0)
        startups = [v for r in finished if (v := r.metrics.get("startup_s")) is not None]
        hours = one.hours
        if startups and best_step_s is not None and self._steps_per_trial:
            hours = (median(startups) + self._steps_per_trial * best_step_s) / _SECONDS_PER_HOUR
        ranks = one.gpu_hours / one.hours if one.hours else 0.0
        rounds = math.ceil(num_left / self._settings.max_concurrent)
        return Cost(gpu_hours=num_left * hours * ranks, hours=rounds * hours)


def gpu_hours(finished: Sequence[TrialRecord]) -> float:
    """Return what finished trials held of ranks and time."""
    costs = [value for r in finished if (value := r.metrics.get("gpu_seconds")) is not None]
    return math.fsum(costs) / _SECONDS_PER_HOUR


def busy_hours(finished: Sequence[TrialRecord], running_since: Sequence[str]) -> float:
    """Return the hours in which at least one trial ran."""
    now = datetime.now(timezone.utc).timestamp()
    spans = [(_at(record.started_at), _at(record.ended_at)) for record in finished]
    spans += [(_at(start), now) for start in running_since]
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total / _SECONDS_PER_HOUR


def _duration_s(record: TrialRecord) -> float:
    return _at(record.ended_at) - _at(record.started_at)


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
