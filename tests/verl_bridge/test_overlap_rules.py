"""Rules about overlap settings, and the calibration that a sweep adds to a job."""

import functools

import pytest

from autotune.errors import BadInputError
from autotune.models.calibration import Calibration, CollectiveCost
from autotune.models.overlap_settings import OverlapSettings
from autotune.verl_bridge.overlap_rules import (
    calibration_overrides,
    overlap_rules,
    plugin_overrides,
)
from autotune.verl_bridge.overrides import compose_base, container, leaves

ACTOR = "actor_rollout_ref.actor"
ACTOR_OVERLAP = f"{ACTOR}.fsdp_config.wrap_policy.overlap"
JOB = (
    "data.max_prompt_length=64",
    "data.max_response_length=32",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.use_kl_loss=true",
    "actor_rollout_ref.rollout.name=vllm",
)
COST = CollectiveCost(latency_s=2e-5, bandwidth_bytes_per_s=1e11)
CALIBRATION = Calibration(
    world_size=8,
    all_gather=COST,
    reduce_scatter=COST,
    all_reduce=COST,
    flops_per_s={"bfloat16": 6e14},
    launch_overhead_s=5e-6,
    copy_bytes_per_s=1e12,
)


@functools.cache
def composed(*overrides: str) -> dict[str, object]:
    return leaves(compose_base("ppo_trainer", [*JOB, *overrides]))


def broken(*overrides: str) -> dict[str, str]:
    flat = composed(*overrides)
    messages = {rule.name: rule.check(flat) for rule in overlap_rules(flat)}
    return {name: message for name, message in messages.items() if message is not None}


def test_a_job_without_overlap_settings_breaks_no_rule() -> None:
    assert broken() == {}


@pytest.mark.parametrize(
    ("override", "rule", "shown"),
    [
        (
            "+critic.fsdp.wrap_policy.overlap.bucket_size=25000000",
            "critic_overlap_on_fsdp2",
            "critic.fsdp.wrap_policy.overlap.bucket_size (25000000) acts only where "
            "critic.strategy is fsdp2",
        ),
        (
            f"+{ACTOR_OVERLAP}.backward_prefetch_depth=1",
            "actor_backward_prefetch_changes",
            "what FSDP2 does by itself",
        ),
    ],
)
def test_a_broken_rule_names_keys_and_values(override: str, rule: str, shown: str) -> None:
    found = broken(override)
    assert list(found) == [rule] and shown in found[rule]


def test_verls_switch_and_a_depth_exclude_each_other() -> None:
    found = broken(
        f"{ACTOR}.fsdp_config.forward_prefetch=true", f"+{ACTOR_OVERLAP}.forward_prefetch_depth=2"
    )
    assert list(found) == ["actor_one_forward_prefetch"]


def test_a_depth_of_one_overrides_a_derived_one() -> None:
    assert (
        broken(
            f"+{ACTOR_OVERLAP}.backward_prefetch_depth=1",
            f"+{ACTOR_OVERLAP}.overlap_threshold=0.5",
        )
        == {}
    )


def test_overlap_settings_of_a_role_that_the_job_lacks_do_not_count() -> None:
    assert (
        broken(
            "algorithm.adv_estimator=grpo", "+critic.fsdp.wrap_policy.overlap.bucket_size=25000000"
        )
        == {}
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"+{ACTOR_OVERLAP}.bucket_sise=1", f"base: {ACTOR_OVERLAP}: .*Did you mean 'bucket_size"),
        (f"+{ACTOR_OVERLAP}.bucket_size=-1", f"base: {ACTOR_OVERLAP}.bucket_size is -1"),
        (f"+{ACTOR_OVERLAP}=3", f"base: {ACTOR_OVERLAP} is 3"),
        (
            f"+{ACTOR_OVERLAP}.calibration.world_size=2",
            f"base: {ACTOR_OVERLAP}.calibration has the fields world_size",
        ),
    ],
)
def test_a_base_job_with_a_wrong_overlap_setting_is_refused(override: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        overlap_rules(composed(override))


def test_every_rule_names_the_keys_that_it_reads() -> None:
    flat = composed()
    read = {key for rule in overlap_rules(flat) for key in rule.reads if ".overlap." not in key}
    assert read <= set(flat)


def test_the_calibration_reaches_every_engine_unchanged() -> None:
    config = compose_base("ppo_trainer", [*JOB, *calibration_overrides(CALIBRATION, composed())])
    resolved: object = container(config)
    for part in f"{ACTOR_OVERLAP}".split("."):
        assert isinstance(resolved, dict)
        resolved = resolved[part]
    settings = OverlapSettings.from_dict(resolved, ACTOR_OVERLAP)
    assert settings.calibration == CALIBRATION and settings.sequence_tokens == 96
    assert settings.is_neutral
    assert "critic.fsdp.wrap_policy.overlap.calibration.world_size" in leaves(config)


def test_a_length_that_the_job_says_itself_stays() -> None:
    flat = composed(f"+{ACTOR_OVERLAP}.sequence_tokens=40")
    assert not any(
        text.startswith(f"++{ACTOR_OVERLAP}.sequence_tokens")
        for text in calibration_overrides(CALIBRATION, flat)
    )


EXTERNAL = "actor_rollout_ref.model.external_lib"
PLUGIN = "autotune.verl_bridge.plugin"


@pytest.mark.parametrize(
    ("knobs", "external", "expected"),
    [
        ((), None, {}),
        (("reshard_after_forward",), None, {}),
        (("bucket_size",), None, {EXTERNAL: PLUGIN}),
        (("forward_prefetch_depth",), "mine", {EXTERNAL: ["mine", PLUGIN]}),
        (("bucket_size",), ["mine", PLUGIN], {}),
    ],
)
def test_a_job_that_depends_on_a_plan_asks_for_the_package(
    knobs: tuple[str, ...], external: object, expected: dict[str, object]
) -> None:
    assert plugin_overrides(knobs, composed() | {EXTERNAL: external}) == expected


def test_a_base_job_with_a_plan_asks_for_the_package_too() -> None:
    flat = composed() | {f"{ACTOR_OVERLAP}.bucket_size": 25_000_000}
    assert plugin_overrides((), flat) == {EXTERNAL: PLUGIN}
