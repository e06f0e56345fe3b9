"""The catalogue of knobs: what a sweep may turn, its legal values, the verl keys that it writes.

Runs in the driver. A knob bears its verl key, shortened only while it stays unique; the rollout's
bear ``rollout_``. Only keys that verl 0.9.1 or this package's engines really read are here, each
with the place that reads it, and a knob that this job's engine would ignore is refused: keys of
roles that a job lacks are left out, and ``requires`` says when the rest act.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from autotune.errors import BadInputError
from autotune.verl_bridge import job
from autotune.verl_bridge.job import ACTOR, MODEL, REF, ROLLOUT, Leaves
from autotune.verl_bridge.overlap_rules import ENGINES, overlap_keys
from autotune.verl_bridge.rules import CRITIC_TOKENS_DEFAULT

KnobValue = bool | int | float | str

MAX_INTEGER = 2**53
"""Largest integer below which a real number, in which samplers compute, is each of them exactly."""


class Transition(Enum):
    """What must happen in a running job before a new value acts, from cheap to dear."""

    HOT = "the next step uses it"
    ENGINE = "the training engines are rebuilt in place"
    ROLLOUT = "the rollout servers are restarted"
    COLD = "the job is started again"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on the job without which the engine ignores the knob."""

    text: str
    """Completes "acts only where ..."."""
    reads: tuple[str, ...]
    """verl keys that decide it."""
    holds: Callable[[Leaves], bool]


def _read_leaf(leaves: Leaves, key: str) -> object:
    return leaves[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One thing that a sweep may turn."""

    name: str
    kind: type
    """``int``, ``float``, ``bool`` or ``str``."""
    meaning: str
    unit: str
    keys: tuple[str, ...]
    """verl keys that take the knob's value, over all roles."""
    transition: Transition
    low: float | None = None
    """Smallest legal value, included; None: no limit."""
    high: float | None = None
    """Largest legal value, included; None: no limit."""
    choices: tuple[KnobValue, ...] | None = None
    """All legal values of a string knob."""
    requires: tuple[Requirement, ...] = ()
    absent: KnobValue | None = None
    """verl's own value where its YAML does not list the key; None for keys that it lists."""
    read: Callable[[Leaves, str], object] = _read_leaf
    """How the job's value of one key is read, where it is not simply the leaf."""

    def keys_in(self, leaves: Leaves) -> tuple[str, ...]:
        """Return the keys that act in this job: those of a role that it lacks are left out."""
        return tuple(
            key
            for key in self.keys
            if _role_exists(key, leaves) and (key in leaves or self.absent is not None)
        )

    def to_overrides(self, value: KnobValue, leaves: Leaves) -> dict[str, object]:
        """Return verl key -> value for this job."""
        return dict.fromkeys(self.keys_in(leaves), value)

    def from_config(self, leaves: Leaves) -> KnobValue | None:
        """Return the job's own value of the knob; None for an optional key left at null.

        Raises:
            BadInputError: The job has no such role, or gives its roles different values.
        """
        keys = self.keys_in(leaves)
        if not keys:
            raise BadInputError(
                f"knobs.{self.name}: this job ignores it: it has no role that reads "
                f"{', '.join(self.keys)}."
            )
        values = {key: self.read(leaves, key) if key in leaves else self.absent for key in keys}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{key}={value}" for key, value in values.items())
            raise BadInputError(
                f"knobs.{self.name}: the base job has different values for the keys that it "
                f"writes: {shown}.",
                "Give them one value in base.overrides, or leave the knob out.",
            )
        value = next(iter(values.values()))
        if value is None:
            return None
        if not isinstance(value, bool | int | float | str):
            raise BadInputError(
                f"knobs.{self.name}: the base job's value {value!r} is not one that it can take."
            )
        return float(value) if self.kind is float and not isinstance(value, str) else value

    def parse(self, value: object, key: str) -> KnobValue:
        """Return ``value`` as the knob's kind (``25e6`` is an integer too).

        Args:
            value: What the sweep file says.
            key: Where it says so, for the message.

        Raises:
            BadInputError: The wrong type, or outside the knob's legal range.
        """
        parsed = self._convert(value)
        if parsed is None:
            raise BadInputError(f"{key} is {value!r} ({type(value).__name__}).", f"{self.legal()}")
        if not self._is_legal(parsed):
            raise BadInputError(
                f"{key} is {value!r}, outside what the knob may take.", f"{self.legal()}"
            )
        return parsed

    def legal(self) -> str:
        """Return the legal values in words."""
        if self.kind is bool:
            return f"{self.name} takes true or false."
        if self.choices is not None:
            return f"{self.name} takes one of {', '.join(map(str, self.choices))}."
        kind = "an integer" if self.kind is int else "a number"
        limits = [f"at least {self.low:g}"] if self.low is not None else []
        limits += [f"at most {self.high:g}"] if self.high is not None else []
        limits += ["at most 2**53"] if self.high is None and self.kind is int else []
        return f"{self.name} takes {kind}{' of ' if limits else ''}{' and '.join(limits)}."

    def _convert(self, value: object) -> KnobValue | None:
        if self.kind is bool or isinstance(value, bool):
            return value if self.kind is bool and isinstance(value, bool) else None
        if self.kind is str:
            return value if isinstance(value, str) else None
        if not isinstance(value, int | float):
            return None
        if self.kind is float:
            return float(value)
        return int(value) if float(value).is_integer() else None

    def _is_legal(self, value: KnobValue) -> bool:
        if self.choices is not None:
            return value in self.choices
        if isinstance(value, bool | str):
            return True
        if self.kind is int and abs(value) > MAX_INTEGER:
            return False
        above = self.low is None or value >= self.low
        return above and (self.high is None or value <= self.high)


def _role_exists(key: str, leaves: Leaves) -> bool:
    if key.startswith(f"{REF}."):
        return job.has_reference_engine(leaves)
    if key.startswith("critic."):
        return job.has_critic(leaves)
    if key in _SCORING_KEYS:
        return job.scores_with_actor(leaves)
    return True


_SCORING_KEYS = (
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
)


def _one_of(key: str, *allowed: object) -> Requirement:
    shown = " or ".join(
        str(value).lower() if isinstance(value, bool) else str(value) for value in allowed
    )
    return Requirement(f"{key} is {shown}", (key,), lambda leaves: leaves.get(key) in allowed)


_GPU = _one_of("trainer.device", "cuda", "npu")
_FSDP = _one_of(f"{ACTOR}.strategy", "fsdp", "fsdp2")
_ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
_FLASH_ATTENTION = Requirement(
    # models/transformers/monkey_patch.py patches this function alone: with another one, ranks would
    # attend to their own part of each sequence and exchange nothing.
    f"{_ATTENTION} is flash_attention_2, verl's default",
    (_ATTENTION,),
    lambda leaves: leaves.get(_ATTENTION) in (None, "flash_attention_2"),
)
_FSDP2 = _one_of(f"{ACTOR}.strategy", "fsdp2")
_DYNAMIC = _one_of(f"{ACTOR}.use_dynamic_bsz", True)
_FIXED = _one_of(f"{ACTOR}.use_dynamic_bsz", False)
_NO_OFFLOAD_POLICY = _one_of(f"{ACTOR}.fsdp_config.offload_policy", False)
_UNFUSED = _one_of(f"{MODEL}.use_fused_kernels", False)
_VLLM = _one_of(f"{ROLLOUT}.name", "vllm")
_VLLM_SGLANG = _one_of(f"{ROLLOUT}.name", "vllm", "sglang")
_RESHARDS = _one_of(f"{ACTOR}.fsdp_config.reshard_after_forward", True)
_ANY_ROLLOUT = _one_of(f"{ROLLOUT}.name", "vllm", "sglang", "hf")
_UPDATE_ENTROPY = Requirement(
    f"the update computes the entropy ({ACTOR}.calculate_entropy, or {ACTOR}.entropy_coeff above "
    "0)",
    (f"{ACTOR}.calculate_entropy", f"{ACTOR}.entropy_coeff"),
    job.updates_with_entropy,
)
_ANY_ENTROPY = Requirement(
    "the actor computes the entropy (old log-probabilities are recomputed, or the update needs it)",
    ("algorithm.rollout_correction.bypass_mode", *_UPDATE_ENTROPY.reads),
    lambda leaves: job.recomputes_old_log_prob(leaves) or job.updates_with_entropy(leaves),
)
_CRITIC_BY_TOKENS = Requirement(
    "critic.fsdp.use_dynamic_bsz is not false",
    ("critic.fsdp.use_dynamic_bsz",),
    lambda leaves: leaves.get("critic.fsdp.use_dynamic_bsz", True) is not False,
)


_SHARDED = Requirement(
    "the parameters are sharded over more than one rank",
    (f"{ACTOR}.fsdp_config.fsdp_size", "trainer.n_gpus_per_node", "trainer.nnodes"),
    lambda leaves: _read_shard_size(leaves, f"{ACTOR}.fsdp_config.fsdp_size") != 1,
)


def _engines(name: str) -> tuple[str, ...]:
    return (f"{ACTOR}.fsdp_config.{name}", f"{REF}.fsdp_config.{name}", f"critic.fsdp.{name}")


def _trained_engines(name: str) -> tuple[str, ...]:
    """Return the keys of the engines that are updated: FSDP2 keeps a reference on the host whatever
    its keys say."""
    return (f"{ACTOR}.fsdp_config.{name}", f"critic.fsdp.{name}")


def _models(name: str) -> tuple[str, ...]:
    return (f"{MODEL}.{name}", f"critic.model.{name}")


def _read_shard_size(leaves: Leaves, key: str) -> object:
    """Return the ranks that share one copy: -1 and everything above the number of ranks mean all of
    them."""
    size, ranks = job.integer(leaves, key), job.num_ranks(leaves)
    return ranks if size < 0 or size > ranks else size


def _read_sequence_parallel(leaves: Leaves, key: str) -> object:
    role = next(role for role in (ACTOR, REF, "critic") if key.startswith(f"{role}."))
    return job.sequence_parallel_size(leaves, role)


def _read_clip_ratio(leaves: Leaves, key: str) -> object:
    """Return one side's limit; verl takes ``clip_ratio`` for a side left at null."""
    return leaves[key] if leaves[key] is not None else leaves[f"{ACTOR}.clip_ratio"]


# Read by verl/workers/engine_workers.py (train_batch, infer_batch), from the batch first: a live
# job can change them.
_BATCH_KNOBS = (
    Knob(
        name="ppo_micro_batch_size_per_gpu",
        kind=int,
        meaning="Sequences of one forward and backward pass of the actor's update.",
        unit="sequences per rank",
        keys=(f"{ACTOR}.ppo_micro_batch_size_per_gpu",),
        low=1,
        transition=Transition.HOT,
        requires=(_FIXED,),
    ),
    Knob(
        name="log_prob_micro_batch_size_per_gpu",
        kind=int,
        meaning="Sequences of one forward pass that computes old or reference log-probabilities.",
        unit="sequences per rank",
        keys=tuple(f"{section}.log_prob_micro_batch_size_per_gpu" for section in (ROLLOUT, REF)),
        low=1,
        transition=Transition.HOT,
        requires=(_FIXED,),
    ),
    Knob(
        name="use_dynamic_bsz",
        kind=bool,
        meaning="Fill micro-batches of actor and reference up to a number of tokens instead of "
        "sequences.",
        unit="",
        keys=(
            f"{ACTOR}.use_dynamic_bsz",
            f"{ROLLOUT}.log_prob_use_dynamic_bsz",
            f"{REF}.log_prob_use_dynamic_bsz",
        ),
        transition=Transition.HOT,
    ),
    Knob(
        name="ppo_max_token_len_per_gpu",
        kind=int,
        meaning="Tokens of one forward and backward pass of the actor's update, with dynamic "
        "batching.",
        unit="tokens per rank",
        keys=(f"{ACTOR}.ppo_max_token_len_per_gpu",),
        low=1,
        transition=Transition.HOT,
        requires=(_DYNAMIC,),
    ),
    Knob(
        name="log_prob_max_token_len_per_gpu",
        kind=int,
        meaning="Tokens of one forward pass for log-probabilities, with dynamic batching.",
        unit="tokens per rank",
        keys=tuple(f"{section}.log_prob_max_token_len_per_gpu" for section in (ROLLOUT, REF)),
        low=1,
        transition=Transition.HOT,
        requires=(_DYNAMIC,),
    ),
    Knob(
        # verl/trainer/ppo/v1/trainer_base.py _setup: the critic's only budget, for values and for
        # its update
        name="critic_ppo_infer_max_token_len_per_gpu",
        kind=int,
        meaning="Tokens of one pass of the critic, in its update and when it computes values.",
        unit="tokens per rank",
        keys=("critic.ppo_infer_max_token_len_per_gpu",),
        low=1,
        transition=Transition.HOT,
        requires=(_CRITIC_BY_TOKENS,),
        absent=CRITIC_TOKENS_DEFAULT,
    ),
)

# Read by verl/workers/engine/fsdp/transformer_impl.py and verl/utils/fsdp_utils.py when an engine
# is built.
_ENGINE_KNOBS = (
    Knob(  # _build_fsdp_module
        name="reshard_after_forward",
        kind=bool,
        meaning="Free a unit's gathered parameters after its forward pass and gather them again "
        "for backward.",
        unit="",
        keys=_engines("reshard_after_forward"),
        transition=Transition.ENGINE,
        requires=(_FSDP,),
    ),
    Knob(
        # fsdp_utils.py apply_fsdp2
        name="forward_prefetch",
        kind=bool,
        meaning="Gather the next unit's parameters while the current one computes its forward "
        "pass.",
        unit="",
        keys=_engines("forward_prefetch"),
        transition=Transition.ENGINE,
        requires=(_FSDP,),
    ),
    Knob(  # create_device_mesh
        name="fsdp_size",
        kind=int,
        meaning="Ranks that share one copy of the parameters; the number of ranks is full "
        "sharding (verl's -1).",
        unit="ranks",
        keys=_engines("fsdp_size"),
        low=1,
        # verl's worker groups keep the old mesh's ranks.
        transition=Transition.COLD,
        requires=(_FSDP,),
        read=_read_shard_size,
    ),
    Knob(
        # _init_device_mesh; actor.py FSDPActorConfig.__post_init__ forwards the outer key when it
        # is above 1
        name="ulysses_sequence_parallel_size",
        kind=int,
        meaning="Ranks that split every sequence between them in training.",
        unit="ranks",
        keys=(
            f"{ACTOR}.ulysses_sequence_parallel_size",
            f"{REF}.ulysses_sequence_parallel_size",
            *_engines("ulysses_sequence_parallel_size"),
        ),
        low=1,
        # verl's worker groups keep the old mesh's ranks.
        transition=Transition.COLD,
        requires=(_FSDP, _FLASH_ATTENTION),
        read=_read_sequence_parallel,
    ),
    Knob(  # initialize, train_mode; without effect under offload_policy (_build_fsdp_module)
        name="param_offload",
        kind=bool,
        meaning="Keep the parameters of the trained models in host memory between their phases.",
        unit="",
        keys=_trained_engines("param_offload"),
        transition=Transition.ENGINE,
        requires=(_FSDP, _GPU, _NO_OFFLOAD_POLICY),
    ),
    Knob(
        name="optimizer_offload",
        kind=bool,
        meaning="Keep the optimizer's state in host memory between updates.",
        unit="",
        keys=_trained_engines("optimizer_offload"),
        transition=Transition.ENGINE,
        requires=(_FSDP, _GPU, _NO_OFFLOAD_POLICY),
    ),
    Knob(  # _build_fsdp_module
        name="offload_policy",
        kind=bool,
        meaning="Let FSDP2 keep parameters, gradients and optimizer state in host memory all the "
        "time.",
        unit="",
        keys=_trained_engines("offload_policy"),
        transition=Transition.ENGINE,
        requires=(_FSDP2, _GPU),
    ),
    Knob(  # _gradient_sync_context
        name="use_no_sync_for_gradient_accumulation",
        kind=bool,
        meaning="Reduce gradients once a mini-batch instead of once a micro-batch, keeping them "
        "unsharded meanwhile.",
        unit="",
        keys=_trained_engines("use_no_sync_for_gradient_accumulation"),
        transition=Transition.ENGINE,
        requires=(_FSDP,),
    ),
    Knob(
        # __init__: compute_entropy_from_logits (the engine's key; the actor's own is copied into it
        # by the YAML)
        name="entropy_from_logits_with_chunking",
        kind=bool,
        meaning="Compute the entropy of the logits in chunks of tokens to save memory.",
        unit="",
        keys=(f"{ACTOR}.fsdp_config.entropy_from_logits_with_chunking",),
        transition=Transition.ENGINE,
        requires=(_FSDP, _UNFUSED, _ANY_ENTROPY),
    ),
    Knob(  # prepare_model_outputs
        name="entropy_checkpointing",
        kind=bool,
        meaning="Recompute the entropy in backward instead of keeping its intermediate values.",
        unit="",
        keys=(f"{ACTOR}.fsdp_config.entropy_checkpointing",),
        transition=Transition.ENGINE,
        requires=(_FSDP, _UNFUSED, _UPDATE_ENTROPY),
    ),
    Knob(  # __init__: compute_entropy_from_logits
        name="use_torch_compile",
        kind=bool,
        meaning="Compile the computation of the entropy with torch.compile.",
        unit="",
        keys=(f"{ACTOR}.fsdp_config.use_torch_compile",),
        transition=Transition.ENGINE,
        requires=(_FSDP, _UNFUSED, _ANY_ENTROPY),
    ),
    Knob(
        # engine_workers.py TrainingWorker.__init__, models/transformers/monkey_patch.py
        # apply_monkey_patch
        name="use_remove_padding",
        kind=bool,
        meaning="Pack the sequences of a micro-batch without padding.",
        unit="",
        keys=_models("use_remove_padding"),
        # verl patches the model's classes for the life of the process.
        transition=Transition.COLD,
    ),
    Knob(  # _build_module
        name="enable_gradient_checkpointing",
        kind=bool,
        meaning="Recompute activations in backward instead of keeping them.",
        unit="",
        keys=_models("enable_gradient_checkpointing"),
        transition=Transition.ENGINE,
    ),
    Knob(  # apply_monkey_patch, prepare_model_outputs; a value head has no logits to fuse
        name="use_fused_kernels",
        kind=bool,
        meaning="Compute log-probabilities and entropy from hidden states without the full logits.",
        unit="",
        keys=(f"{MODEL}.use_fused_kernels",),
        # verl patches the model's classes for the life of the process.
        transition=Transition.COLD,
        requires=(_FSDP,),
    ),
    Knob(  # _build_module; Liger's kernels are written in Triton
        name="use_liger",
        kind=bool,
        meaning="Replace the model's layers by Liger's fused kernels.",
        unit="",
        keys=_models("use_liger"),
        # verl patches the model's classes for the life of the process.
        transition=Transition.COLD,
        requires=(_FSDP, _GPU),
    ),
)


def _overlap_knob(
    name: str,
    kind: type,
    meaning: str,
    unit: str,
    roles: tuple[str, ...] = tuple(ENGINES),
    requires: tuple[Requirement, ...] = (),
) -> Knob:
    """Return a setting of this package's engines, which 0 leaves as verl has it."""
    return Knob(
        name=name,
        kind=kind,
        meaning=meaning,
        unit=unit,
        keys=overlap_keys(name, roles),
        low=0,
        absent=kind(0),
        transition=Transition.ENGINE,
        requires=(_FSDP2, _SHARDED, *requires),
    )


# Read by verl_bridge/engine.py when an engine is built.
_OVERLAP_KNOBS = (
    _overlap_knob(
        "bucket_size",
        int,
        "Consecutive layers share one all-gather and one reduce-scatter until their gathered "
        "parameters reach this size; 0: every layer has its own.",
        "bytes",
    ),
    _overlap_knob(
        "min_overlap_time_s",
        float,
        "Layers share their collectives until they compute at least this long in forward; 0: no "
        "such condition.",
        "s",
    ),
    _overlap_knob(
        "overlap_threshold",
        float,
        "Units are gathered as far ahead as keeps communication below this share of the "
        "computation that hides it; 0: depths are not derived.",
        "ratio",
    ),
    _overlap_knob(
        "forward_prefetch_depth",
        int,
        "Units whose parameters are gathered ahead in forward; 0: as overlap_threshold says, or "
        "FSDP2 by itself.",
        "units",
    ),
    _overlap_knob(
        "backward_prefetch_depth",
        int,
        "Units whose parameters are gathered ahead in backward; 0: as overlap_threshold says, or "
        "FSDP2 by itself, which is one.",
        "units",
        (ACTOR, "critic"),
        (_RESHARDS,),
    ),
)

# Read by verl/workers/rollout/vllm_rollout/vllm_async_server.py (vllm),
# sglang_rollout/async_sglang_server.py (sglang), and by this package's transformers rollout (hf).
_ROLLOUT_KNOBS = (
    Knob(
        name="rollout_gpu_memory_utilization",
        kind=float,
        meaning="Share of the device's memory that the rollout engine takes while it generates.",
        unit="ratio",
        keys=(f"{ROLLOUT}.gpu_memory_utilization",),
        low=0.01,
        high=1.0,
        transition=Transition.ROLLOUT,
        requires=(_VLLM_SGLANG,),
    ),
    Knob(
        name="rollout_max_num_seqs",
        kind=int,
        meaning="Sequences that a rollout replica generates at once.",
        unit="sequences",
        keys=(f"{ROLLOUT}.max_num_seqs",),
        low=1,
        transition=Transition.ROLLOUT,
        requires=(_ANY_ROLLOUT,),
    ),
    Knob(
        name="rollout_max_num_batched_tokens",
        kind=int,
        meaning="Tokens that a rollout replica processes in one iteration.",
        unit="tokens",
        keys=(f"{ROLLOUT}.max_num_batched_tokens",),
        low=1,
        transition=Transition.ROLLOUT,
        requires=(_VLLM,),
    ),
    Knob(  # llm_server.py _initialize_llm_servers
        name="rollout_tensor_model_parallel_size",
        kind=int,
        meaning="Ranks that share one rollout replica.",
        unit="ranks",
        keys=(f"{ROLLOUT}.tensor_model_parallel_size",),
        low=1,
        transition=Transition.ROLLOUT,
        requires=(_ANY_ROLLOUT,),
    ),
    Knob(
        name="rollout_enforce_eager",
        kind=bool,
        meaning="Run the rollout without CUDA graphs.",
        unit="",
        keys=(f"{ROLLOUT}.enforce_eager",),
        transition=Transition.ROLLOUT,
        requires=(_VLLM_SGLANG, _GPU),
    ),
    Knob(
        name="rollout_enable_chunked_prefill",
        kind=bool,
        meaning="Split long prompts over iterations and mix them with decoding.",
        unit="",
        keys=(f"{ROLLOUT}.enable_chunked_prefill",),
        transition=Transition.ROLLOUT,
        requires=(_VLLM,),
    ),
    Knob(
        name="rollout_enable_prefix_caching",
        kind=bool,
        meaning="Reuse the key-value cache of equal prompt prefixes.",
        unit="",
        keys=(f"{ROLLOUT}.enable_prefix_caching",),
        transition=Transition.ROLLOUT,
        requires=(_VLLM,),
    ),
    Knob(
        name="rollout_free_cache_engine",
        kind=bool,
        meaning="Free the rollout's memory while the models are trained.",
        unit="",
        keys=(f"{ROLLOUT}.free_cache_engine",),
        transition=Transition.ROLLOUT,
        requires=(_VLLM_SGLANG, _GPU),
    ),
    Knob(  # vllm_rollout.py update_weights, sglang_rollout.py update_weights, rollout_hf.py
        name="rollout_update_weights_bucket_megabytes",
        kind=int,
        meaning="Size of the pieces in which new weights go from the actor to the rollout.",
        unit="MiB",
        keys=(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",),
        low=1,
        transition=Transition.ROLLOUT,
        requires=(_ANY_ROLLOUT,),
    ),
)

# The algorithm's own settings: tuned only when a sweep names them, never to win throughput.
_ALGORITHM_KNOBS = (
    Knob(  # verl/workers/utils/losses.py ppo_loss
        name="kl_coef",
        kind=float,
        meaning="Weight of the KL to the reference in the actor's loss.",
        unit="",
        keys=(f"{ACTOR}.kl_loss_coef",),
        low=0.0,
        transition=Transition.ENGINE,
        requires=(_one_of(f"{ACTOR}.use_kl_loss", True),),
    ),
    Knob(  # verl/trainer/ppo/core_algos.py get_kl_controller, for the KL in the reward
        name="target_kl",
        kind=float,
        meaning="KL to the reference that the adaptive penalty in the reward steers to.",
        unit="nats",
        keys=("algorithm.kl_ctrl.target_kl",),
        low=1e-6,
        transition=Transition.COLD,
        requires=(
            _one_of("algorithm.use_kl_in_reward", True),
            _one_of("algorithm.kl_ctrl.type", "adaptive"),
        ),
    ),
    Knob(
        # core_algos.py compute_policy_loss_vanilla: clip_ratio alone is not read while low and high
        # are set
        name="clip_ratio",
        kind=float,
        meaning="How far the policy's probability ratio may move from 1 before the loss is "
        "clipped.",
        unit="ratio",
        keys=(f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"),
        low=1e-4,
        high=1.0,
        transition=Transition.ENGINE,
        read=_read_clip_ratio,
    ),
)

KNOBS: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (
        *_BATCH_KNOBS,
        *_ENGINE_KNOBS,
        *_OVERLAP_KNOBS,
        *_ROLLOUT_KNOBS,
        *_ALGORITHM_KNOBS,
    )
}
"""Every knob by its name."""

ROLLOUT_KNOBS = frozenset(knob.name for knob in _ROLLOUT_KNOBS)
"""Knobs that act on generation and weight sync; the others act on the phases that train."""
