"""Given settings in a given order: live in one job, each in a job of its own, or all at once.

Runs in the driver. No search and no sweep's folder: what the trials measured is returned. It shows
what a live job computes and costs, against cold ones that run the same settings.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from autotune.config import Sweep
from autotune.errors import SweepError
from autotune.knobs import KnobValue
from autotune.objective import RECORD, STEP_RECORD, StepRecord, TrialRecord
from autotune.tuning import run_tuner, trials_of

Setting = Mapping[str, KnobValue]


@dataclass(frozen=True, kw_only=True)
class SettingRun:
    """One setting that ran."""

    record: TrialRecord
    steps: tuple[StepRecord, ...]
    rank_seconds: float
    """Ranks x seconds from the end of the setting before it, or from the start of the first, to its
    own end: what held the devices, whoever waited for what. Of settings that ran one after another
    only."""


def run_live(sweep: Sweep, settings: Sequence[Setting], log_folder: Path) -> list[SettingRun]:
    """Run settings one after another as a sweep does: the job stays where it may.

    Args:
        sweep: Whose base job and protocol is used; Ray must be connected.
        settings: Values of all knobs of the sweep, each.
        log_folder: Gets what verl prints, a file for each job.

    Raises:
        SweepError: A trial was lost.
    """
    return _run(sweep, settings, log_folder, at_once=1)


def run_at_once(sweep: Sweep, settings: Sequence[Setting], log_folder: Path) -> list[SettingRun]:
    """Run settings beside one another, each in a job of its own that starts with the others; else
    as :func:`run_live`. The cluster must have room for all."""
    return _run(sweep, settings, log_folder, at_once=len(settings))


def _run(
    sweep: Sweep, settings: Sequence[Setting], log_folder: Path, *, at_once: int
) -> list[SettingRun]:
    searcher = _InOrder(sweep, settings, at_once)
    run_tuner(
        searcher,
        trials_of(sweep, log_folder),
        max_concurrent=at_once,
        callbacks=[],
    )
    if len(searcher.runs) < len(settings):
        why = "the run was interrupted" if searcher.failure is None else searcher.failure
        raise SweepError(f"{len(searcher.runs)} of {len(settings)} settings ran: {why}.")
    return searcher.runs


def run_cold(sweep: Sweep, settings: Sequence[Setting], log_folder: Path) -> list[SettingRun]:
    """Run each setting in a job of its own; else as :func:`run_live`."""
    return [
        run
        for number, setting in enumerate(settings)
        for run in run_live(sweep, [setting], log_folder / f"setting_{number}")
    ]


class _InOrder(Searcher):
    """Suggests the settings as they come and keeps what their trials report."""

    def __init__(self, sweep: Sweep, settings: Sequence[Setting], at_once: int) -> None:
        super().__init__()
        self.runs: list[SettingRun] = []
        self.failure: str | None = None
        """Why there are fewer runs than settings."""
        self._sweep = sweep
        self._settings = list(settings)
        self._at_once = at_once
        self._next = 0
        self._live: dict[str, list[StepRecord]] = {}
        """Running trial -> its steps so far."""
        self._since_s = time.monotonic()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next setting, None while as many run as may, or FINISHED."""
        if len(self._live) == self._at_once:
            return None
        if self.failure is not None or self._next == len(self._settings):
            return Searcher.FINISHED
        setting = dict(self._settings[self._next])
        self._live[trial_id] = []
        number, self._next = self._next, self._next + 1
        space = self._sweep.space
        return {
            "number": number,
            "attempt": 0,
            "setting": setting,
            "params": space.active(setting),
            "overrides": space.overrides(setting),
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._keep_step(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if error or result is None or RECORD not in result:
            del self._live[trial_id]
            self.failure = "an actor was lost"
            return
        self._keep_step(trial_id, result)
        now_s = time.monotonic()
        ranks = self._sweep.config.resources.num_ranks
        self.runs.append(
            SettingRun(
                record=TrialRecord.from_dict(json.loads(result[RECORD])),
                steps=tuple(self._live.pop(trial_id)),
                rank_seconds=ranks * (now_s - self._since_s),
            )
        )
        self._since_s = now_s

    def save(self, checkpoint_path: str) -> None:
        """Write nothing: a run that is interrupted starts again."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing, see :meth:`save`."""

    def _keep_step(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Keep a result's step; Tune reports the last result twice."""
        steps = self._live[trial_id]
        if STEP_RECORD in result:
            step = StepRecord.from_dict(json.loads(result[STEP_RECORD]))
            if step.step not in [kept.step for kept in steps]:
                steps.append(step)
