"""How many bytes a job's parts take on one device, from the model's configuration and sharding.

Runs in the driver. First sizes for :mod:`autotune.models.memory`, which fits them to what is
observed: parameters, gradients and Adam's two moments in float32, sharded over the ranks of the
FSDP mesh; parameters in bfloat16 where they stay gathered; activations and logits of the tokens of
one micro-batch. Counts dense decoder models with grouped-query attention and a gated MLP, which the
configurations of Llama, Qwen2, Qwen3 and Mistral describe; of others nothing is said.
"""

from collections.abc import Mapping

from autotune.verl_bridge import job
from autotune.verl_bridge.job import Leaves

_FP32, _BF16 = 4, 2
_KEPT_PER_LAYER = 17
"""Values of hidden size that a layer keeps for a token without recomputation (Korthikanti et al.,
2022, table 2: 34 bytes at two bytes a value, attention itself left out)."""
_LOGIT_BYTES = _BF16 + _FP32
"""Logits in the model's dtype, and once more in float32 for the softmax."""
_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)


def num_parameters(shape: Mapping[str, object]) -> int | None:
    """Return a model's parameters from its ``config.json``; None for an unknown architecture."""
    if any(not isinstance(shape.get(name), int) for name in _NEEDED):
        return None
    hidden, inner, layers, heads, vocabulary = (_integer(shape, name) for name in _NEEDED)
    groups = shape.get("num_key_value_heads")
    groups = groups if isinstance(groups, int) else heads
    head = shape.get("head_dim")
    head = head if isinstance(head, int) else hidden // heads
    attention = 2 * hidden * heads * head + 2 * hidden * groups * head
    embeddings = vocabulary * hidden * (1 if shape.get("tie_word_embeddings") else 2)
    return embeddings + layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden


def static_bytes(shape: Mapping[str, object], base: Leaves) -> dict[str, float]:
    """Return knob -> bytes on one device that its part takes in the base job.

    For a switch that saves memory, what it saves; for a size, what the base job's value costs.
    Knobs of which nothing is known are missing.

    Args:
        shape: The model's ``config.json``.
        base: The base job's configuration, flattened.
    """
    parameters = num_parameters(shape)
    if parameters is None:
        return {}
    trained = parameters * (2 if job.has_critic(base) else 1)
    shard = trained / _mesh(base)
    layers, hidden = _integer(shape, "num_hidden_layers"), _integer(shape, "hidden_size")
    checkpoints = bool(base.get(f"{job.MODEL}.enable_gradient_checkpointing", True))
    kept = layers * hidden * _BF16 * (1 if checkpoints else _KEPT_PER_LAYER)
    logits = _integer(shape, "vocab_size") * _LOGIT_BYTES
    return {
        "param_offload": 2 * _FP32 * shard,
        "optimizer_offload": 2 * _FP32 * shard,
        "offload_policy": 4 * _FP32 * shard,
        "reshard_after_forward": float(_BF16 * parameters),
        **_activations(base, update=kept + logits, scoring=float(logits)),
    }


def _activations(base: Leaves, *, update: float, scoring: float) -> dict[str, float]:
    """Return the bytes of the tokens that one forward pass holds, by the size that bounds them."""
    sequence = job.integer(base, "data.max_prompt_length") + job.integer(
        base, "data.max_response_length"
    )
    sizes = {
        "ppo_micro_batch_size_per_gpu": (f"{job.ACTOR}.ppo_micro_batch_size_per_gpu", update),
        "ppo_max_token_len_per_gpu": (f"{job.ACTOR}.ppo_max_token_len_per_gpu", update),
        "log_prob_micro_batch_size_per_gpu": (
            f"{job.ROLLOUT}.log_prob_micro_batch_size_per_gpu",
            scoring,
        ),
        "log_prob_max_token_len_per_gpu": (
            f"{job.ROLLOUT}.log_prob_max_token_len_per_gpu",
            scoring,
        ),
    }
    found: dict[str, float] = {}
    for name, (key, per_token) in sizes.items():
        value = base.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            found[name] = value * per_token * (1 if "token" in name else sequence)
    return found


def _mesh(base: Leaves) -> int:
    """Return the ranks that share one copy of the parameters (verl: -1 is all of them)."""
    size = base.get(f"{job.ACTOR}.fsdp_config.fsdp_size", -1)
    return size if isinstance(size, int) and size > 0 else job.num_ranks(base)


def _integer(shape: Mapping[str, object], name: str) -> int:
    value = shape[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value
