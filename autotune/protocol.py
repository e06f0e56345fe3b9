"""What a trial's steps are used for, and what it sets in verl's configuration for its own sake.

Runs in the driver and in trial actors. Pure functions of the sweep file's section ``trial``.
"""

from autotune.objective import StepKind
from autotune.settings import TrialConfig
from autotune.verl_bridge.overrides import format_override

COLLECTIVE_SHARE = 0.5
"""A collective may wait this share of the step's limit: well below it, so that a rank that stands
still is reported by those that wait for it."""
STALL_SHARE = 0.4
"""A job that is silent for this share of the step's limit has its stacks saved: before a collective
gives up and takes its process along."""


def protocol_overrides(protocol: TrialConfig) -> list[str]:
    """Return what a trial sets in verl's configuration for its own sake; none of it belongs into
    production."""
    values: dict[str, object] = {
        "trainer.total_training_steps": num_steps(protocol),
        "trainer.total_epochs": 1_000_000,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        # A step without the actor's update, or under verl's own profiler, is not the job's step.
        "trainer.critic_warmup": 0,
        "global_profiler.steps": None,
        "trainer.rollout_data_dir": None,
        "trainer.logger": ["console"],
        "data.seed": protocol.seed,
        "actor_rollout_ref.actor.data_loader_seed": protocol.seed,
        "actor_rollout_ref.rollout.seed": protocol.seed,
        "critic.data_loader_seed": protocol.seed,
    }
    return [format_override(key, value) for key, value in values.items()]


def num_steps(protocol: TrialConfig) -> int:
    """PPO steps of one trial."""
    return protocol.warmup_steps + protocol.measured_steps + protocol.profiled_steps


def kind_of_step(step: int, protocol: TrialConfig) -> StepKind:
    """Return what the job's step (1 is the first) is used for."""
    if step <= protocol.warmup_steps:
        return StepKind.WARMUP
    if step <= protocol.warmup_steps + protocol.measured_steps:
        return StepKind.MEASURED
    return StepKind.PROFILED


def profiled_steps(protocol: TrialConfig) -> list[int]:
    """Return the numbers of the steps that run under the profiler."""
    steps = range(1, num_steps(protocol) + 1)
    return [step for step in steps if kind_of_step(step, protocol) is StepKind.PROFILED]
