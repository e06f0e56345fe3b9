"""verl's trainer, telling which phase of a step it enters.

Runs in the trial's verl process. A watchdog outside can then say where a job stands still. The
names are those of verl's timers (``timing_s/*``) for a step, and our own for the start-up; each
method of verl's trainer that begins a phase is wrapped by one that reports it and changes nothing.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from autotune.verl_bridge.trainer_cpu import SyncOnAnyPlatform

PhaseCallback = Callable[[str], None]
"""Gets the name of the phase that begins."""

PHASE_OF_METHOD = {
    "_init_dataloader": "data",
    "_init_resource_pool_mgr": "workers",
    "_load_checkpoint": "checkpoint",
    "on_init_end": "update_weights",
    "prepare_step": "gen",
    "_compute_reward_colocate": "reward",
    "_balance_batch": "balance",
    "_compute_old_log_prob": "old_log_prob",
    "_compute_ref_log_prob": "ref",
    "_compute_values": "values",
    "_compute_advantage": "adv",
    "_update_critic": "update_critic",
    "_update_actor": "update_actor",
    "on_step_end": "update_weights",
    "_compute_metrics": "metrics",
}
"""Method of verl's trainer -> the phase that it begins."""


class PhasedTrainer(SyncOnAnyPlatform):
    """Reports each phase to ``on_phase`` before it begins."""

    on_phase: PhaseCallback


def _reporting(method_name: str, phase: str) -> Callable[..., Any]:
    original = getattr(SyncOnAnyPlatform, method_name)

    @wraps(original)
    def method(self: PhasedTrainer, *arguments: Any, **keywords: Any) -> Any:
        self.on_phase(phase)
        return original(self, *arguments, **keywords)

    return method


for _name, _phase in PHASE_OF_METHOD.items():
    setattr(PhasedTrainer, _name, _reporting(_name, _phase))
