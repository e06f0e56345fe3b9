"""The Tune callback that keeps the steps of running trials and moves the live table.

Runs in the driver. Trial records are not its business: the Searcher stores those before it uses
them.
"""

import json
from collections.abc import Callable
from typing import Any

from ray.tune import Callback

from autotune.errors import WriteError
from autotune.objective import RECORD, STEP_RECORD, StepRecord, TrialRecord
from autotune.report.live import LiveTable
from autotune.store import SweepStore


class Progress(Callback):
    """Hands Tune's events on.

    Args:
        store: Gets the steps.
        table: Shows them.
        record_of: Returns a finished trial by its number, as the searcher has stored it.
        on_failure: Gets the reason when a step cannot be kept; Tune would hide it behind its own
            error.
    """

    def __init__(
        self,
        store: SweepStore,
        table: LiveTable,
        *,
        record_of: Callable[[int], TrialRecord | None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._table = table
        self._record_of = record_of
        self._on_failure = on_failure

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its configuration for Tuner.restore, which we never call: our records are
        # what a sweep resumes from.
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_info: Any) -> None:
        """Show a trial whose job is being started."""
        self._table.trial_started(trial.config["number"], trial.config["setting"])

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_info: Any
    ) -> None:
        """Keep a step and show it; show a trial that was lost."""
        if STEP_RECORD in result:
            step = StepRecord.from_dict(json.loads(result[STEP_RECORD]))
            try:
                self._store.append_step(step)
            except WriteError as error:
                self._on_failure(str(error))
            self._table.step_finished(step)
        if RECORD in result:
            record = TrialRecord.from_dict(json.loads(result[RECORD]))
            if not record.state.is_setting_fault:
                self._table.trial_lost(record.number, record.cause)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_info: Any) -> None:
        """Show a trial whose actor was lost."""
        self._table.trial_lost(trial.config["number"], "its actor was lost")

    def on_trial_complete(
        self, iteration: int, trials: list[Any], trial: Any, **_info: Any
    ) -> None:
        """Show a trial that ended; Tune tells the searcher first."""
        record = self._record_of(trial.config["number"])
        if record is not None and record.state.is_setting_fault:
            self._table.trial_finished(record)
