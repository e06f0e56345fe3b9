"""No knob is dead: every key that a knob writes is a field of the configuration object that verl
builds from it, takes the value there, and is read by code outside verl's configuration classes.

What the knobs of the engines do, verl's and this package's own, is tested on real engines in
tests/verl_bridge/test_overlap.py; a job whose engines would ignore a knob refuses it.
"""

import ast
import functools
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_knobs import TURNED

from autotune.config import load_sweep
from autotune.errors import BadInputError
from autotune.knobs import KNOBS, Knob, KnobValue
from autotune.models.overlap_settings import TURNS_ON
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
    assert names == set(TURNS_ON)
    for name in names:
        assert not OverlapSettings.from_dict({name: 1}, "key").is_neutral


QUICKSTART = Path(__file__).parents[1] / "search_spaces" / "quickstart_cpu.yaml"
SEEN_ON_ENGINES = {
    *TURNED,
    *TURNS_ON,
    "forward_prefetch",
    "entropy_from_logits_with_chunking",
    "use_torch_compile",
}
"""Knobs whose effect tests/verl_bridge/test_overlap.py sees."""
SEEN_HERE = {"clip_ratio", "kl_coef", "target_kl"}
SEEN_ON_ROLLOUTS = {
    "rollout_max_num_seqs",
    "rollout_tensor_model_parallel_size",
    "rollout_update_weights_bucket_megabytes",
}
"""Knobs whose effect tests/verl_bridge/test_rollout_hf.py and test_rollout_hf_server.py see."""
NOT_ON_CPU = {
    *("param_offload", "optimizer_offload", "offload_policy", "use_liger"),
    *("rollout_gpu_memory_utilization", "rollout_max_num_batched_tokens", "rollout_enforce_eager"),
    *("rollout_enable_chunked_prefill", "rollout_enable_prefix_caching"),
    *("rollout_free_cache_engine", "ulysses_sequence_parallel_size"),
}
"""Knobs that act on an accelerator, in vLLM or in flash attention only."""


def test_every_knob_is_seen_to_act_or_is_refused_on_a_cpu() -> None:
    seen = SEEN_ON_ENGINES | SEEN_HERE | SEEN_ON_ROLLOUTS
    assert seen | NOT_ON_CPU == set(KNOBS) and not seen & NOT_ON_CPU


@pytest.mark.parametrize("name", sorted(NOT_ON_CPU))
def test_a_knob_that_does_nothing_on_a_cpu_is_refused_there(name: str) -> None:
    value = {bool: "true", int: "8192", float: "0.5"}[KNOBS[name].kind]
    with pytest.raises(BadInputError, match=f"knobs.{name}: this job ignores it: it acts only wh"):
        load_sweep(QUICKSTART, [f"knobs.{name}={{choices: [{value}]}}"], is_elsewhere=True)


def actor_loss(**settings: float) -> float:
    """What verl's loss of one response of two tokens is; the policy went from 0.5 to 0.6 each, the
    reference gives them 0.4."""
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    def nested(*values: float) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(values)], layout=torch.jagged)

    overrides = [format_override(f"{ACTOR}.{name}", value) for name, value in settings.items()]
    config = compose_base("ppo_trainer", [*BASE, *overrides])
    old, new, reference = (math.log(probability) for probability in (0.5, 0.6, 0.4))
    data = tu.get_tensordict(
        {
            "prompts": nested(1.0),
            "responses": nested(1.0, 1.0),
            "response_mask": nested(1.0, 1.0),
            "old_log_probs": nested(old, old),
            "advantages": nested(1.0, 1.0),
            "ref_log_prob": nested(reference, reference),
        }
    )
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=None, global_batch_size=None)
    output = {"log_probs": nested(new, new, 0.0)}
    return float(ppo_loss(omega_conf_to_dataclass(config.actor_rollout_ref.actor), output, data)[0])


def test_the_clip_ratio_limits_the_loss() -> None:
    # the ratio is 1.2
    limited = {name: 0.1 for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high")}
    wide = {name: 0.5 for name in limited}
    assert actor_loss(kl_loss_coef=0.0, **limited) == pytest.approx(-1.1)
    assert actor_loss(kl_loss_coef=0.0, **wide) == pytest.approx(-1.2)


def test_the_kl_coefficient_weighs_the_kl_to_the_reference() -> None:
    losses = [actor_loss(kl_loss_coef=coefficient) for coefficient in (0.0, 0.1, 0.2)]
    assert losses[2] - losses[1] == pytest.approx(losses[1] - losses[0], rel=1e-4)
    assert losses[1] > losses[0]


def test_the_target_steers_the_penalty() -> None:
    from verl.trainer.ppo.core_algos import get_kl_controller

    weights = []
    for target in (0.02, 0.08):
        overrides = ["algorithm.kl_ctrl.type=adaptive", f"algorithm.kl_ctrl.target_kl={target}"]
        controller = get_kl_controller(compose_base("ppo_trainer", overrides).algorithm.kl_ctrl)
        controller.update(current_kl=0.04, n_steps=100)
        weights.append(controller.value)
    assert weights[0] > weights[1]
