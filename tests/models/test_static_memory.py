"""Sizes of a job's parts, against known models and by hand."""

from typing import Any

from qwen_shapes import QWEN_05B, QWEN_7B

from autotune.models.model_shape import ModelShape
from autotune.models.static_memory import peak_bytes, static_bytes
from autotune.verl_bridge.job import ACTOR, ROLLOUT

BASE: dict[str, Any] = {
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "critic.enable": False,
    "algorithm.adv_estimator": "grpo",
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    f"{ACTOR}.use_dynamic_bsz": False,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{ACTOR}.fsdp_config.fsdp_size": -1,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": None,
}


def test_optimizer_state_is_sharded_over_the_mesh() -> None:
    shape = ModelShape.of(QWEN_7B)
    assert shape is not None
    parameters = shape.num_parameters
    assert static_bytes(QWEN_7B, BASE)["optimizer_offload"] == parameters
    halves = {**BASE, f"{ACTOR}.fsdp_config.fsdp_size": 4}
    assert static_bytes(QWEN_7B, halves)["optimizer_offload"] == 2 * parameters


def test_a_critic_doubles_what_is_trained() -> None:
    alone, both = (
        static_bytes(QWEN_05B, {**BASE, "critic.enable": critic}) for critic in (False, True)
    )
    assert both["optimizer_offload"] == 2 * alone["optimizer_offload"]
    assert both["reshard_after_forward"] == alone["reshard_after_forward"]


def test_an_adapter_has_neither_gradients_nor_moments_of_the_model() -> None:
    whole = static_bytes(QWEN_7B, BASE)
    adapter = static_bytes(QWEN_7B, {**BASE, "actor_rollout_ref.model.lora_rank": 8})
    assert adapter["optimizer_offload"] == 0
    assert adapter["param_offload"] == adapter["offload_policy"] == whole["param_offload"] / 2


def test_activations_grow_with_the_tokens_of_a_micro_batch() -> None:
    # 4 sequences of 1,024 tokens: 24 layers x 896 x 2 bytes, and 151,936 logits of 6 bytes
    found = static_bytes(QWEN_05B, BASE)
    assert found["ppo_micro_batch_size_per_gpu"] == 4 * 1024 * (24 * 896 * 2 + 151_936 * 6)
    assert "log_prob_micro_batch_size_per_gpu" not in found


def test_without_recomputation_a_layer_keeps_more() -> None:
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    plain = static_bytes(QWEN_05B, {**BASE, key: False})["ppo_micro_batch_size_per_gpu"]
    assert plain - 4 * 1024 * 151_936 * 6 == 17 * 4 * 1024 * 24 * 896 * 2


def test_of_an_unknown_architecture_nothing_is_said() -> None:
    assert static_bytes({"hidden_size": 64}, BASE) == {}
    assert peak_bytes({"hidden_size": 64}, BASE) is None


def test_the_peak_is_what_is_held_at_once() -> None:
    parts = static_bytes(QWEN_7B, BASE)
    update = parts["ppo_micro_batch_size_per_gpu"]
    # Untied embeddings of 152,064 x 3,584 in bfloat16 are the largest unit; two are there at once.
    gathered = 2 * 2 * 152_064 * 3584
    assert peak_bytes(QWEN_7B, BASE) == parts["offload_policy"] + gathered + update
    engine = f"{ACTOR}.fsdp_config"
    kept = peak_bytes(QWEN_7B, {**BASE, f"{engine}.reshard_after_forward": False})
    assert kept == parts["offload_policy"] + parts["reshard_after_forward"] + update
    assert peak_bytes(QWEN_7B, {**BASE, f"{engine}.offload_policy": True}) == gathered + update
    halved = {**BASE, f"{engine}.optimizer_offload": True}
    assert peak_bytes(QWEN_7B, halved) == parts["param_offload"] + gathered + update


def test_the_larger_of_update_and_scoring_makes_the_peak() -> None:
    key = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
    small, large = (peak_bytes(QWEN_05B, {**BASE, key: size}) for size in (1, 64))
    assert small == peak_bytes(QWEN_05B, BASE)
    assert small is not None and large is not None and large - small > 50 * 1024 * 151_936 * 6
