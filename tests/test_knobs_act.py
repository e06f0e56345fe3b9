"""No knob is dead: every key that a knob writes is a field of the configuration object that verl
builds from it, takes the value there, and is read by code outside verl's configuration classes.

What the fields then do is verl's; what this package's own knobs do is tested on real engines in
tests/verl_bridge/test_overlap.py.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.knobs import KNOBS, Knob, KnobValue
from autotune.verl_bridge.overrides import compose_base, format_override, leaves

pytestmark = pytest.mark.timeout(600)

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
BASE = (
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.use_kl_loss=true",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    f"{REF}.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.name=vllm",
    "critic.strategy=fsdp2",
    "critic.ppo_micro_batch_size_per_gpu=4",
    "trainer.n_gpus_per_node=8",
)
SECTIONS: Mapping[str, str] = {
    f"{ACTOR}.": "actor",
    f"{REF}.": "ref",
    "actor_rollout_ref.rollout.": "rollout",
    "critic.": "critic",
    "algorithm.": "algorithm",
}
"""Prefix of a key -> object of :func:`built` that verl makes of that section."""
MODEL_PREFIXES = ("actor_rollout_ref.model.", "critic.model.")
"""Sections of a class that needs the model's files; its fields are looked up without them."""
OVERLAP = "wrap_policy.overlap."


@functools.cache
def base_leaves() -> dict[str, object]:
    return leaves(compose_base("ppo_trainer", BASE))


def changed(knob: Knob) -> KnobValue:
    """Return a legal value that is not the base job's."""
    value = knob.from_config(base_leaves())
    if knob.choices is not None:
        return next(choice for choice in knob.choices if choice != value)
    if knob.kind is bool:
        return not value
    assert knob.kind in (int, float)
    candidates = (2, 3) if knob.kind is int else (0.5, 0.25)
    return knob.parse(next(each for each in candidates if each != value), knob.name)


@functools.cache
def written() -> Mapping[str, KnobValue]:
    """Return a value for every key of every knob: a job in which all of them are turned."""
    return {
        key: changed(knob) for knob in KNOBS.values() for key in knob.keys_in(base_leaves())
    }


@functools.cache
def built() -> Mapping[str, Any]:
    """Return the objects that verl's workers and trainer make of that job."""
    from verl.utils.config import omega_conf_to_dataclass

    overrides = [
        format_override(key if key in base_leaves() else f"+{key}", value)
        for key, value in written().items()
    ]
    config = compose_base("ppo_trainer", [*BASE, *overrides])
    return {
        # verl moves these keys of the reference before it builds the object (engine_workers.py)
        "ref": omega_conf_to_dataclass(_as_actor(config.actor_rollout_ref.ref)),
        "actor": omega_conf_to_dataclass(config.actor_rollout_ref.actor),
        "rollout": omega_conf_to_dataclass(config.actor_rollout_ref.rollout),
        "critic": omega_conf_to_dataclass(_without_model(config.critic)),
        "algorithm": config.algorithm,
    }


_RENAMED = {
    "log_prob_micro_batch_size": "ppo_micro_batch_size",
    "log_prob_micro_batch_size_per_gpu": "ppo_micro_batch_size_per_gpu",
    "log_prob_use_dynamic_bsz": "use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
}


def _as_actor(ref: Any) -> Any:
    from omegaconf import open_dict

    with open_dict(ref):
        ref.ppo_mini_batch_size = 8
        for old, new in _RENAMED.items():
            ref[new] = ref.pop(old, None)
    return ref


def _without_model(critic: Any) -> Any:
    from omegaconf import open_dict

    with open_dict(critic):
        critic.pop("model")
        critic.pop("model_config", None)
    return critic


def value_at(objects: Mapping[str, Any], key: str) -> object:
    """Return what verl's code sees for a key: engines are reached as ``.engine``."""
    prefix = next(prefix for prefix in SECTIONS if key.startswith(prefix))
    rest = key.removeprefix(prefix)
    if SECTIONS[prefix] == "ref":
        rest = _RENAMED.get(rest, rest)
    node = objects[SECTIONS[prefix]]
    for part in rest.split("."):
        name = "engine" if part in ("fsdp_config", "fsdp") else part
        node = node[name] if isinstance(node, Mapping) else getattr(node, name)
    return node


@functools.cache
def names_read() -> frozenset[str]:
    """Return every attribute and string that verl's code uses outside its configuration classes."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    files = (
        file
        for folder in ("workers", "utils", "trainer", "models", "checkpoint_engine", "protocol.py")
        for file in (root / folder).rglob("*.py")
        if not file.is_relative_to(root / "workers" / "config")
        and not file.is_relative_to(root / "trainer" / "config")
    )
    return frozenset(name for file in files for name in _names(file))


def _names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("name", KNOBS)
def test_a_knobs_value_arrives_in_the_object_that_verl_builds(name: str) -> None:
    keys = [
        key for key in KNOBS[name].keys_in(base_leaves()) if not key.startswith(MODEL_PREFIXES)
    ]
    assert {key: value_at(built(), key) for key in keys} == {key: written()[key] for key in keys}


@pytest.mark.parametrize("name", KNOBS)
def test_every_key_of_a_knob_is_read_by_verls_code(name: str) -> None:
    unread = {
        key
        for key in KNOBS[name].keys
        if OVERLAP not in key and key.rpartition(".")[2] not in names_read()
    }
    assert unread == set()


def test_the_models_knobs_are_fields_of_verls_model_configuration() -> None:
    import dataclasses

    from verl.workers.config import HFModelConfig

    fields = {field.name for field in dataclasses.fields(HFModelConfig)}
    keys = {key for knob in KNOBS.values() for key in knob.keys if key.startswith(MODEL_PREFIXES)}
    assert keys and {key.rpartition(".")[2] for key in keys} <= fields


def test_the_overlap_knobs_are_what_this_packages_engine_reads() -> None:
    from autotune.models.overlap_settings import OverlapSettings

    keys = {key for knob in KNOBS.values() for key in knob.keys if OVERLAP in key}
    names = {key.rpartition(".")[2] for key in keys}
    assert len(names) == 5
    for name in names:
        assert not OverlapSettings.from_dict({name: 1}, "key").is_neutral
