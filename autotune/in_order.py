"""Given settings in a given order: live in one job, or each in a job of its own.

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
    own end: what held the devices, whoever waited for what."""


def run_live(sweep: Sweep, settings: Sequence[Setting], log_folder: Path) -> list[SettingRun]:
    """Run settings one after another as a sweep does: the job stays where it may.

    Args:
        sweep: Whose base job and protocol is used; Ray must be connected.
        settings: Values of all knobs of the sweep, each.
        log_folder: Gets what verl prints, a file for each job.

    Raises:
        SweepError: A trial was lost.
    """
    searcher = _InOrder(sweep, settings)
    run_tuner(
        searcher,
        trials_of(sweep, log_folder),
        max_concurrent=1,
        callbacks=[],
    )
    if len(searcher.runs) < len(settings):
        why = "the run was interrupted" if searcher.failure is None else searcher.failure
        raise SweepError(f"Setting {len(searcher.runs)} of {len(settings)} was lost: {why}.")
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

    def __init__(self, sweep: Sweep, settings: Sequence[Setting]) -> None:
        super().__init__()
        self.runs: list[SettingRun] = []
        self.failure: str | None = None
        """Why there are fewer runs than settings."""
        self._sweep = sweep
        self._settings = list(settings)
        self._next = 0
        self._live: str | None = None
        self._steps: list[StepRecord] = []
        self._since_s = time.monotonic()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the next setting, None while one runs, or FINISHED."""
        if self._live is not None:
            return None
        if self.failure is not None or self._next == len(self._settings):
            return Searcher.FINISHED
        setting = dict(self._settings[self._next])
        self._live, self._steps = trial_id, []
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
        self._keep_step(result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._live = None
        if error or result is None or RECORD not in result:
            self.failure = "its actor was lost"
            return
        self._keep_step(result)
        now_s = time.monotonic()
        ranks = self._sweep.config.resources.num_ranks
        self.runs.append(
            SettingRun(
                record=TrialRecord.from_dict(json.loads(result[RECORD])),
                steps=tuple(self._steps),
                rank_seconds=ranks * (now_s - self._since_s),
            )
        )
        self._since_s = now_s

    def save(self, checkpoint_path: str) -> None:
        """Write nothing: a run that is interrupted starts again."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing, see :meth:`save`."""

    def _keep_step(self, result: Mapping[str, Any]) -> None:
        """Keep a result's step; Tune reports the last result twice."""
        if STEP_RECORD in result:
            step = StepRecord.from_dict(json.loads(result[STEP_RECORD]))
            if step.step not in [kept.step for kept in self._steps]:
                self._steps.append(step)
