"""verl's dataclasses as read from its source."""

import pytest

from autotune.verl_bridge import schema
from autotune.verl_bridge.overrides import compose_base, container, flatten


def test_re_exports_and_base_classes_are_followed() -> None:
    found = schema.find_class("verl.workers.config.FSDPActorConfig")
    assert found is not None and found.module == "verl.workers.config.actor"
    assert {"fsdp_config", "ppo_mini_batch_size", "_target_"} <= set(found.fields)


def test_classes_outside_verl_are_not_looked_up() -> None:
    assert schema.find_class("collections.OrderedDict") is None


@pytest.mark.parametrize("engine", ["dp", "megatron", "veomni", "torchtitan"])
def test_verls_own_defaults_agree_with_its_annotations(engine: str) -> None:
    default = container(compose_base("ppo_trainer", [f"model_engine={engine}"]))
    wrong = [
        key
        for key, value in flatten(default).items()
        if not schema.expectation(key, default).accepts(value)
    ]
    assert wrong == []


def test_a_key_of_a_free_form_section_has_no_expectation() -> None:
    default = container(compose_base("ppo_trainer", []))
    found = schema.expectation("actor_rollout_ref.model.override_config.anything", default)
    assert found.annotation is None and found.unknown_to is None
