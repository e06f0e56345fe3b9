"""How many bytes a job's parts take on one device, from the model's configuration and sharding.

Runs in the driver. First sizes for :mod:`autotune.models.memory`, which fits them to what is
observed: parameters, gradients and Adam's two moments in float32, sharded over the ranks of the
FSDP mesh; parameters in bfloat16 where they stay gathered; activations and logits of the tokens of
one micro-batch. An adapter's own parameters count as nothing. Nothing is said of models that
:mod:`autotune.models.model_shape` does not know.
"""

from collections.abc import Mapping

from autotune.models.model_shape import ModelShape
from autotune.verl_bridge import job
from autotune.verl_bridge.job import Leaves

_FP32, _BF16 = 4, 2
_KEPT_PER_LAYER = 17
"""Values of hidden size that a layer keeps for a token without recomputation (Korthikanti et al.,
2022, table 2: 34 bytes at two bytes a value, attention itself left out)."""
_LOGIT_BYTES = _BF16 + _FP32
"""Logits in the model's dtype, and once more in float32 for the softmax."""


def static_bytes(shape: Mapping[str, object], base: Leaves) -> dict[str, float]:
    """Return knob -> bytes on one device that its part takes in the base job.

    For a switch that saves memory, what it saves; for a size, what the base job's value costs.
    Knobs of which nothing is known are missing.

    Args:
        shape: The model's ``config.json``.
        base: The base job's configuration, flattened.
    """
    model = ModelShape.of(shape)
    if model is None:
        return {}
    parameters = model.num_parameters
    critics = parameters if job.has_critic(base) else 0
    shard = (parameters + critics) / _mesh(base)
    trained = ((0 if job.trains_adapter(base) else parameters) + critics) / _mesh(base)
    checkpoints = bool(base.get(f"{job.MODEL}.enable_gradient_checkpointing", True))
    kept = model.num_layers * model.hidden_size * _BF16 * (1 if checkpoints else _KEPT_PER_LAYER)
    logits = model.vocabulary_size * _LOGIT_BYTES
    return {
        "param_offload": _FP32 * (shard + trained),
        "optimizer_offload": 2 * _FP32 * trained,
        "offload_policy": _FP32 * (shard + 3 * trained),
        "reshard_after_forward": float(_BF16 * parameters),
        **_activations(base, update=kept + logits, scoring=float(logits)),
    }


def peak_bytes(shape: Mapping[str, object], leaves: Leaves) -> float | None:
    """Return a first guess of what a job holds on one device at most, the rollout engine's own
    memory left out; None for an unknown architecture.

    Args:
        shape: The model's ``config.json``.
        leaves: The job's configuration, flattened.
    """
    model = ModelShape.of(shape)
    if model is None:
        return None
    parts, engine = static_bytes(shape, leaves), f"{job.ACTOR}.fsdp_config"
    switches = ("param_offload", "optimizer_offload")
    resident = parts["offload_policy"]
    if leaves.get(f"{engine}.offload_policy"):
        resident = 0.0
    else:
        resident -= sum(parts[name] for name in switches if leaves.get(f"{engine}.{name}"))
    gathered = parts["reshard_after_forward"]
    if leaves.get(f"{engine}.reshard_after_forward", True):
        # A unit computes while the next one is gathered.
        unit = max(
            _BF16 * max(model.layer_parameters, model.embedding_parameters),
            job.number_or(leaves, f"{engine}.wrap_policy.overlap.bucket_size", 0),
        )
        gathered = min(gathered, 2.0 * unit)
    size = "max_token_len" if leaves[f"{job.ACTOR}.use_dynamic_bsz"] else "micro_batch_size"
    passes = [parts.get(f"{phase}_{size}_per_gpu", 0.0) for phase in ("ppo", "log_prob")]
    return resident + gathered + max(passes)


def _activations(base: Leaves, *, update: float, scoring: float) -> dict[str, float]:
    """Return the bytes of the tokens that one forward pass holds, by the size that bounds them."""
    sequence = job.longest_sequence(base)
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
