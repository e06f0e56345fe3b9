"""What a trial's steps are used for, and that verl takes what a trial sets."""

from autotune.objective import StepKind
from autotune.protocol import (
    COLLECTIVE_SHARE,
    STALL_SHARE,
    kind_of_step,
    num_steps,
    profiled_steps,
    protocol_overrides,
)
from autotune.settings import TrialConfig
from autotune.verl_bridge.overrides import compose_base

PROTOCOL = TrialConfig(
    warmup_steps=1,
    measured_steps=2,
    profiled_steps=1,
    seed=7,
    startup_timeout_s=60,
    step_timeout_s=60,
)


def test_steps_are_warmup_then_measured_then_profiled() -> None:
    kinds = [kind_of_step(step, PROTOCOL) for step in range(1, num_steps(PROTOCOL) + 1)]
    assert kinds == [StepKind.WARMUP, StepKind.MEASURED, StepKind.MEASURED, StepKind.PROFILED]
    assert profiled_steps(PROTOCOL) == [4]


def test_the_protocol_is_valid_for_verl() -> None:
    config = compose_base("ppo_trainer", protocol_overrides(PROTOCOL))
    assert config.trainer.total_training_steps == 4
    assert config.data.seed == 7


def test_stacks_are_saved_before_a_collective_gives_up_and_that_before_the_steps_limit() -> None:
    assert 0 < STALL_SHARE < COLLECTIVE_SHARE < 1
