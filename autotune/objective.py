"""From the metrics of one trial to an objective and constraint violations, or infeasible with the reason.

Runs in the driver. Pure functions over records: no Ray, no Optuna, no disk.
"""

from enum import Enum


class TrialState(str, Enum):
    """How a trial ended."""

    COMPLETE = "complete"
    """All steps ran; feasible or not is decided by the constraints."""
    OUT_OF_MEMORY = "out_of_memory"
    NAN = "nan"
    """The objective, a loss or a gradient norm was not a finite number."""
    HANG = "hang"
    """No step within its time limit; the job was killed."""
    CRASH = "crash"
    """verl raised an error or its process died by itself."""
    INFRASTRUCTURE = "infrastructure"
    """A lost node, a killed actor, a full disk: nobody's setting. Retried, never told to the sampler as a failure."""

    @property
    def is_setting_fault(self) -> bool:
        """Whether the outcome is evidence about the setting itself."""
        return self is not TrialState.INFRASTRUCTURE
