"""When a running trial is clearly worse than the best setting so far, and ended before its time.

Runs in the driver. :class:`EarlyStop` decides from steps and records alone;
:class:`EarlyStopScheduler` is Ray Tune's own place for such a decision and asks the searcher, which
holds both. A trial is stopped only after several measured steps, never on warm-up, when even the
hopeful end of its interval is below the cautious end of the best setting's. The step that it is in
by then is run to its end, since its job lives on for the next trial, see :mod:`autotune.trial`: a
trial with no other step left is not stopped.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from autotune.measure.stats import pooled_spread
from autotune.metrics import STEP_KEYS
from autotune.objective import StepKind, StepRecord, TrialRecord, is_maximised

logger = logging.getLogger(__name__)

MIN_STEPS = 2
"""Measured steps before a trial may be stopped."""
STANDARD_ERRORS = 3.0
"""Half the width of either interval."""
STEP_SPREAD = 0.10
"""Least relative standard deviation of a step that is believed: neighbouring steps of one setting
were seen to differ by 15 %."""


class EarlyStop:
    """The rule for one sweep.

    Args:
        objective: Metric of the sweep; one that steps do not report stops nothing.
        steps_per_trial: Warm-up, measured and profiled steps.
    """

    def __init__(self, objective: str, steps_per_trial: int) -> None:
        self._key = STEP_KEYS.get(objective)
        self._objective = objective
        self._steps_per_trial = steps_per_trial

    def cause(self, steps: Sequence[StepRecord], best: TrialRecord | None) -> str | None:
        """Return why a trial should be stopped, in words; None while it should go on.

        Args:
            steps: All that the trial reported.
            best: The best feasible trial so far.
        """
        measured = self._values(steps)
        target = best.value(self._objective) if best is not None else None
        if best is None or target is None or len(measured) < MIN_STEPS:
            return None
        if self._steps_per_trial - len(steps) <= 1:
            return None
        own = math.fsum(measured) / len(measured)
        spread = max(pooled_spread([measured]), STEP_SPREAD)
        # The best setting was measured over at least as many steps: its interval is no wider.
        margin = STANDARD_ERRORS * spread / math.sqrt(len(measured))
        if is_maximised(self._objective):
            is_worse = own * (1 + margin) < target * (1 - margin)
        else:
            is_worse = own * (1 - margin) > target * (1 + margin)
        if not is_worse:
            return None
        return (
            f"stopped after {len(measured)} measured steps: {own:.4g} against {target:.4g} of "
            f"trial {best.number}, beyond both intervals"
        )

    def _values(self, steps: Sequence[StepRecord]) -> list[float]:
        values = [
            step.metrics.get(self._key or "")
            for step in steps
            if step.kind is StepKind.MEASURED
        ]
        return [float(value) for value in values if isinstance(value, int | float) and value > 0]


class StepWatcher(Protocol):
    """What the scheduler asks of :class:`autotune.search.SweepSearcher`."""

    def note_step(self, trial_id: str, result: Mapping[str, Any]) -> str | None: ...


class EarlyStopScheduler(FIFOScheduler):
    """Tune's scheduler of a sweep: trials run in order, and one that the searcher gives up stops.

    Args:
        watcher: The searcher.
    """

    def __init__(self, watcher: StepWatcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its scheduler for Tuner.restore, which is never called here.
        return {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        cause = self._watcher.note_step(trial.trial_id, result)
        if cause is None:
            return str(super().on_trial_result(tune_controller, trial, result))
        logger.info("trial %s: %s", trial.config.get("number"), cause)
        return TrialScheduler.STOP
