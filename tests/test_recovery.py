"""Which job follows one that ended."""

import pytest

from autotune.failure import Verdict
from autotune.objective import Start, TrialState
from autotune.recovery import apply, first_rule, is_repeated
from autotune.settings import RecoveryRuleConfig, default_recovery
from autotune.verl_bridge.overrides import compose_base, leaves

CUDA_JOB = ("trainer.device=cuda", "actor_rollout_ref.actor.strategy=fsdp2")
ADAPTIVE = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive")
NAN, MEMORY = default_recovery()


def job(*overrides: str) -> dict[str, object]:
    return leaves(compose_base("ppo_trainer", [*CUDA_JOB, *overrides]))


def verdict(state: TrialState, has_died: bool = False) -> Verdict:
    return Verdict(state=state, cause="x", has_died=has_died)


@pytest.mark.parametrize(
    ("state", "has_died", "start", "deaths", "again"),
    [
        (TrialState.CRASH, True, Start.COLD, 0, True),
        (TrialState.CRASH, True, Start.COLD, 1, False),
        (TrialState.CRASH, False, Start.COLD, 0, False),
        (TrialState.OUT_OF_MEMORY, False, Start.HOT, 0, True),
        (TrialState.NAN, False, Start.ENGINE, 0, True),
        (TrialState.HANG, False, Start.ENGINE, 0, True),
        (TrialState.HANG, False, Start.COLD, 0, False),
        (TrialState.INFRASTRUCTURE, False, Start.HOT, 0, False),
    ],
)
def test_a_setting_is_run_again_after_a_first_death_or_a_live_failure(
    state: TrialState, has_died: bool, start: Start, deaths: int, again: bool
) -> None:
    assert is_repeated(verdict(state, has_died), start=start, deaths=deaths) is again


@pytest.mark.parametrize(
    ("state", "memory", "rule"),
    [
        (TrialState.NAN, 0.5, NAN),
        (TrialState.OUT_OF_MEMORY, None, MEMORY),
        (TrialState.COMPLETE, 0.91, MEMORY),
        (TrialState.COMPLETE, 0.9, None),
        (TrialState.COMPLETE, None, None),
        (TrialState.CRASH, 0.95, None),
        (TrialState.HANG, None, None),
    ],
)
def test_the_shipped_rules_answer_to_nan_and_memory(
    state: TrialState, memory: float | None, rule: RecoveryRuleConfig | None
) -> None:
    assert first_rule(default_recovery(), state, memory) == rule


def test_a_rule_writes_the_keys_of_the_roles_that_the_job_has() -> None:
    applied = apply(MEMORY, job("algorithm.adv_estimator=grpo"), swept={})
    assert applied is not None
    assert applied.text == "memory: param_offload=true, optimizer_offload=true"
    assert applied.overrides == [
        "actor_rollout_ref.actor.fsdp_config.param_offload=true",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true",
    ]


def test_target_kl_acts_only_with_the_adaptive_penalty_in_the_reward() -> None:
    assert apply(NAN, job(), swept={}) is None
    applied = apply(NAN, job(*ADAPTIVE), swept={})
    assert applied is not None and applied.overrides == ["algorithm.kl_ctrl.target_kl=0.05"]


def test_a_knob_that_the_sweep_turns_is_left_to_the_search() -> None:
    applied = apply(MEMORY, job(), swept={"param_offload": False})
    assert applied is not None and applied.text == "memory: optimizer_offload=true"


def test_a_rule_that_changes_nothing_does_not_fire() -> None:
    offloaded = job(
        *(f"{role}.{name}_offload=true" for role in ROLES for name in ("param", "optimizer"))
    )
    assert apply(MEMORY, offloaded, swept={}) is None


ROLES = ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp")
