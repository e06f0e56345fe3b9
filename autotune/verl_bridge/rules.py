"""verl's own validity rules as data: which settings verl 0.9.1 refuses, or cannot run.

Runs in the driver, on the leaves of a composed configuration, so that an impossible setting costs
microseconds instead of a started job. Each rule names its source in verl. Only rules that hold
whatever the data: memory is not judged here.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import BadInputError
from autotune.verl_bridge import job
from autotune.verl_bridge.job import ACTOR, MODEL, REF, ROLLOUT, Leaves

SYNTHETIC_SEQUENCE_TOKENS = 128
"""Tokens of a sequence that verl appends to fill a batch (padding_utils.py
SYNTHETIC_PADDING_SEQ_LEN)."""

CRITIC_TOKENS = "critic.ppo_infer_max_token_len_per_gpu"
CRITIC_TOKENS_DEFAULT = 32768
"""verl/workers/config/critic.py CriticConfig.ppo_infer_max_token_len_per_gpu; verl's YAML does not
list the key."""

_RANKS = ("trainer.n_gpus_per_node", "trainer.nnodes")
_LENGTHS = ("data.max_prompt_length", "data.max_response_length")
_SEQUENCES = (
    "data.train_batch_size",
    f"{ROLLOUT}.n",
    f"{ACTOR}.ppo_mini_batch_size",
    "critic.ppo_mini_batch_size",
)
_ROLLOUT_AXES = ("tensor_model", "data", "pipeline_model")
_DYNAMIC = f"{ACTOR}.use_dynamic_bsz"


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition between settings."""

    name: str
    reads: tuple[str, ...]
    """verl keys that decide it."""
    check: Callable[[Leaves], str | None]
    """Return None when the setting is valid, otherwise what is wrong, with keys and values."""


def job_rules(leaves: Leaves) -> tuple[Rule, ...]:
    """Return the rules that concern this job: those of roles that it lacks are left out.

    Args:
        leaves: The base job, flattened, with absolute paths; ``config.json`` of its model folder is
            read if it exists.
    """
    _check_sizes(leaves)
    rules = [*_batch_rules(), *_micro_batch_rules(leaves), *_token_rules(leaves)]
    rules += _parallel_rules(leaves, model_facts(leaves[f"{MODEL}.path"]))
    if job.has_critic(leaves):
        rules += _critic_rules()
    if leaves[f"{ROLLOUT}.name"] == "vllm":
        rules += _vllm_rules(model_facts(leaves[f"{MODEL}.path"]))
    return tuple(rules)


def _check_sizes(leaves: Leaves) -> None:
    """Refuse sizes below 1: every rule divides by some of them.

    Raises:
        BadInputError: With the key.
    """
    sizes = [*_RANKS, *_LENGTHS, *_SEQUENCES[:3], job.STORAGE_UNITS]
    sizes += [f"{ROLLOUT}.{axis}_parallel_size" for axis in _ROLLOUT_AXES]
    sizes += [key for role in (ACTOR, REF) for key in _sp_keys(role)]
    sizes += [_SEQUENCES[3], *_sp_keys("critic")] if job.has_critic(leaves) else []
    for key in sizes:
        value = leaves[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInputError(
                f"base: {key} is {value!r}.", "It must be an integer of at least 1."
            )


def model_facts(path: object) -> Mapping[str, int]:
    """Return the integers of a model folder's ``config.json``; empty when there is no such file (a
    hub name).

    Raises:
        BadInputError: The file is not a JSON object.
    """
    file = Path(str(path)) / "config.json"
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInputError(f"{MODEL}.path: {file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadInputError(f"{MODEL}.path: {file} does not hold a JSON object.")
    text = content.get("text_config")
    merged = {**content, **text} if isinstance(text, dict) else content
    return {name: value for name, value in merged.items() if type(value) is int}


def padded_sequences(leaves: Leaves) -> int:
    """Return the sequences of one step over all ranks, verl's synthetic ones included.

    trainer_base.py ``_get_required_batch_multiple`` and ``_balance_batch``: the batch is filled up
    to a multiple of the data parallel size and of every mini-batch.
    """
    multiple = math.lcm(
        job.data_parallel_size(leaves, ACTOR), job.mini_batch_sequences(leaves, ACTOR)
    )
    if job.has_critic(leaves):
        multiple = math.lcm(multiple, job.mini_batch_sequences(leaves, "critic"))
    return math.ceil(_step_sequences(leaves) / multiple) * multiple


def _sp_keys(role: str) -> tuple[str, ...]:
    engine = "critic.fsdp" if role == "critic" else f"{role}.fsdp_config"
    outer = () if role == "critic" else (f"{role}.ulysses_sequence_parallel_size",)
    return (*outer, f"{engine}.ulysses_sequence_parallel_size")


_PADDED = (*_SEQUENCES, *_RANKS, *_sp_keys(ACTOR))
"""What :func:`padded_sequences` reads."""


def _step_sequences(leaves: Leaves) -> int:
    return job.integer(leaves, "data.train_batch_size") * job.integer(leaves, f"{ROLLOUT}.n")


def _batch_rules() -> list[Rule]:
    return [
        Rule(
            "train_batch_over_ranks", (*_SEQUENCES[:2], *_RANKS, _DYNAMIC), _train_batch_over_ranks
        ),
        Rule(
            "mini_batch_in_train_batch",
            (*_SEQUENCES[:1], *_SEQUENCES[2:3], _DYNAMIC),
            _mini_batch_in_train_batch,
        ),
        Rule(
            "mini_batch_over_ranks",
            (*_SEQUENCES[1:3], *_RANKS, *_sp_keys(ACTOR)),
            _mini_batch_over_ranks,
        ),
    ]


# verl/utils/config.py validate_config, "Check total batch size for data correctness" (not Megatron:
# minimal_bsz = n_gpus)
def _train_batch_over_ranks(leaves: Leaves) -> str | None:
    ranks = job.num_ranks(leaves)
    if leaves[_DYNAMIC] or _step_sequences(leaves) % ranks == 0:
        return None
    return (
        f"data.train_batch_size ({leaves['data.train_batch_size']}) x {ROLLOUT}.n "
        f"({leaves[f'{ROLLOUT}.n']}) must be "
        f"divisible by the number of ranks ({ranks})"
    )


# verl/workers/config/actor.py ActorConfig.validate
def _mini_batch_in_train_batch(leaves: Leaves) -> str | None:
    prompts, mini = (
        job.integer(leaves, "data.train_batch_size"),
        job.integer(leaves, f"{ACTOR}.ppo_mini_batch_size"),
    )
    if leaves[_DYNAMIC] or prompts >= mini:
        return None
    return (
        f"data.train_batch_size ({prompts}) must be at least {ACTOR}.ppo_mini_batch_size ({mini})"
    )


# verl/workers/engine_workers.py TrainingWorker.train_mini_batch
def _mini_batch_over_ranks(leaves: Leaves) -> str | None:
    return _over_data_parallel(leaves, ACTOR)


def _over_data_parallel(leaves: Leaves, role: str) -> str | None:
    size = job.data_parallel_size(leaves, role)
    if job.mini_batch_sequences(leaves, role) % size == 0:
        return None
    return (
        f"{role}.ppo_mini_batch_size ({leaves[f'{role}.ppo_mini_batch_size']}) x {ROLLOUT}.n "
        f"({leaves[f'{ROLLOUT}.n']}) must be divisible by the data parallel size ({size}: "
        f"{job.num_ranks(leaves)} ranks "
        f"/ sequence parallel size {job.sequence_parallel_size(leaves, role)})"
    )


def _micro_batch_rules(leaves: Leaves) -> list[Rule]:
    update = f"{ACTOR}.ppo_micro_batch_size"
    rules = [
        Rule("micro_batch_is_set", (_DYNAMIC, update, f"{update}_per_gpu"), _micro_batch_is_set),
        Rule(
            "micro_batch_in_mini_batch",
            (_DYNAMIC, f"{update}_per_gpu", *_SEQUENCES[1:3], *_RANKS, *_sp_keys(ACTOR)),
            _micro_batch_in_mini_batch,
        ),
        Rule(
            "dynamic_batching_agrees",
            (_DYNAMIC, f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
            _dynamic_batching_agrees,
        ),
        _log_prob_set_rule(ROLLOUT, _DYNAMIC),
    ]
    if job.scores_with_actor(leaves):
        rules.append(_log_prob_rule(ROLLOUT, ACTOR, _DYNAMIC))
    if job.has_reference_engine(leaves):
        rules += [
            _log_prob_set_rule(REF, f"{REF}.log_prob_use_dynamic_bsz"),
            _log_prob_rule(REF, REF, f"{REF}.log_prob_use_dynamic_bsz"),
        ]
    return rules


# verl/workers/config/actor.py ActorConfig.__post_init__ (not both), engine_workers.py init_model
# (per_gpu not None)
def _micro_batch_is_set(leaves: Leaves) -> str | None:
    return None if leaves[_DYNAMIC] else _set_per_gpu(leaves, f"{ACTOR}.ppo_micro_batch_size")


def _set_per_gpu(leaves: Leaves, key: str) -> str | None:
    if leaves[key] is not None:
        return f"{key} ({leaves[key]}) is deprecated: set {key}_per_gpu alone"
    if leaves[f"{key}_per_gpu"] is None:
        return f"{key}_per_gpu must be set where dynamic batching is off"
    return None


# verl/workers/engine/utils.py prepare_micro_batches, for the update: engine_workers.py train_batch
def _micro_batch_in_mini_batch(leaves: Leaves) -> str | None:
    micro = leaves[f"{ACTOR}.ppo_micro_batch_size_per_gpu"]
    sequences = job.mini_batch_sequences(leaves, ACTOR) // job.data_parallel_size(leaves, ACTOR)
    if leaves[_DYNAMIC] or not isinstance(micro, int) or (micro > 0 and sequences % micro == 0):
        return None
    return (
        f"{ACTOR}.ppo_micro_batch_size_per_gpu ({micro}) must divide the {sequences} sequences "
        "of a rank's mini-batch "
        f"({ACTOR}.ppo_mini_batch_size {leaves[f'{ACTOR}.ppo_mini_batch_size']} x {ROLLOUT}.n "
        f"{leaves[f'{ROLLOUT}.n']} / data parallel size {job.data_parallel_size(leaves, ACTOR)})"
    )


# verl/workers/engine_workers.py ActorRolloutRefWorker.init_model
def _dynamic_batching_agrees(leaves: Leaves) -> str | None:
    scoring = leaves[f"{ROLLOUT}.log_prob_use_dynamic_bsz"]
    if leaves[_DYNAMIC] == scoring:
        return None
    return (
        f"{_DYNAMIC} ({leaves[_DYNAMIC]}) and {ROLLOUT}.log_prob_use_dynamic_bsz ({scoring}) "
        "must be equal"
    )


# verl/utils/config.py validate_config check_mutually_exclusive, engine_workers.py init_model
# (per_gpu not None)
def _log_prob_set_rule(section: str, dynamic: str) -> Rule:
    key = f"{section}.log_prob_micro_batch_size"
    name = f"{section.rpartition('.')[2]}_log_prob_micro_batch_is_set"
    return Rule(
        name,
        (key, f"{key}_per_gpu", dynamic),
        lambda at: None if at[dynamic] else _set_per_gpu(at, key),
    )


# verl/workers/engine/utils.py prepare_micro_batches, for forward-only batches: engine_workers.py
# infer_batch
def _log_prob_rule(section: str, role: str, dynamic: str) -> Rule:
    key = f"{section}.log_prob_micro_batch_size_per_gpu"

    def check(leaves: Leaves) -> str | None:
        micro = leaves[key]
        sequences = padded_sequences(leaves) // job.data_parallel_size(leaves, role)
        if leaves[dynamic] or not isinstance(micro, int) or (micro > 0 and sequences % micro == 0):
            return None
        return (
            f"{key} ({micro}) must divide the {sequences} sequences that a rank scores in a step "
            f"({padded_sequences(leaves)} sequences / data parallel size "
            f"{job.data_parallel_size(leaves, role)})"
        )

    name = f"{section.rpartition('.')[2]}_log_prob_micro_batch_in_batch"
    return Rule(name, (key, dynamic, *_PADDED, *_sp_keys(role)), check)


def _token_rules(leaves: Leaves) -> list[Rule]:
    rules = [_token_rule("update_tokens", f"{ACTOR}.ppo_max_token_len_per_gpu", ACTOR, _DYNAMIC)]
    if job.scores_with_actor(leaves):
        rules.append(
            _token_rule(
                "rollout_log_prob_tokens",
                f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
                ACTOR,
                _DYNAMIC,
            )
        )
    if job.has_reference_engine(leaves):
        dynamic = f"{REF}.log_prob_use_dynamic_bsz"
        rules.append(
            _token_rule(
                "ref_log_prob_tokens", f"{REF}.log_prob_max_token_len_per_gpu", REF, dynamic
            )
        )
    return rules


# verl/utils/seqlen_balancing.py rearrange_micro_batches: a micro-batch must hold the longest
# sequence. verl asks this of the sequences that occur; here it is asked of the longest that may
# occur, so that no later batch can break it.
def _token_rule(name: str, key: str, role: str, dynamic: str) -> Rule:
    def check(leaves: Leaves) -> str | None:
        cap = leaves[key]
        if not leaves[dynamic]:
            return None
        if not isinstance(cap, int):
            return f"{key} must be set where dynamic batching is on"
        return _cap_error(leaves, key, cap, role)

    return Rule(name, (key, dynamic, *_LENGTHS, *_PADDED, *_sp_keys(role)), check)


def _cap_error(leaves: Leaves, key: str, cap: int, role: str) -> str | None:
    parallel, longest = job.sequence_parallel_size(leaves, role), _longest_sequence(leaves)
    if cap * parallel >= longest:
        return None
    return (
        f"{key} ({cap}) x sequence parallel size ({parallel}) must be at least the longest "
        f"sequence ({longest} tokens: "
        f"data.max_prompt_length {leaves['data.max_prompt_length']} + data.max_response_length "
        f"{leaves['data.max_response_length']}, or {SYNTHETIC_SEQUENCE_TOKENS} where verl fills "
        "up the batch)"
    )


def _longest_sequence(leaves: Leaves) -> int:
    longest = job.longest_sequence(leaves)
    filled_up = padded_sequences(leaves) != _step_sequences(leaves)
    return max(longest, SYNTHETIC_SEQUENCE_TOKENS) if filled_up else longest


def _critic_rules() -> list[Rule]:
    micro = "critic.ppo_micro_batch_size"
    dynamic = "critic.use_dynamic_bsz"
    sizes = ("data.train_batch_size", "critic.ppo_mini_batch_size", dynamic)
    spread = ("critic.ppo_mini_batch_size", f"{ROLLOUT}.n", *_RANKS, *_sp_keys("critic"))
    tokens = (CRITIC_TOKENS, *_LENGTHS, *_PADDED, *_sp_keys("critic"))
    return [
        Rule("critic_mini_batch_in_train_batch", sizes, _critic_mini_batch_in_train_batch),
        Rule(
            "critic_mini_batch_over_ranks",
            spread,
            lambda leaves: _over_data_parallel(leaves, "critic"),
        ),
        Rule(
            "critic_micro_batch_is_set",
            (micro, f"{micro}_per_gpu", dynamic),
            _critic_micro_batch_is_set,
        ),
        Rule("critic_tokens", tokens, _critic_tokens),
    ]


# verl/workers/config/critic.py CriticConfig.validate
def _critic_mini_batch_in_train_batch(leaves: Leaves) -> str | None:
    prompts, mini = (
        job.integer(leaves, "data.train_batch_size"),
        job.integer(leaves, "critic.ppo_mini_batch_size"),
    )
    if leaves["critic.use_dynamic_bsz"] or prompts >= mini:
        return None
    return f"data.train_batch_size ({prompts}) must be at least critic.ppo_mini_batch_size ({mini})"


# verl/workers/config/critic.py CriticConfig.__post_init__: exactly one of the two, although the V1
# trainer reads neither
def _critic_micro_batch_is_set(leaves: Leaves) -> str | None:
    whole, per_gpu = (
        leaves["critic.ppo_micro_batch_size"],
        leaves["critic.ppo_micro_batch_size_per_gpu"],
    )
    if leaves["critic.use_dynamic_bsz"] or (whole is None) != (per_gpu is None):
        return None
    return (
        f"exactly one of critic.ppo_micro_batch_size ({whole}) and "
        f"critic.ppo_micro_batch_size_per_gpu ({per_gpu}) must "
        "be set where critic.use_dynamic_bsz is off (verl checks it, its V1 trainer uses neither)"
    )


# verl/trainer/ppo/v1/trainer_base.py _setup: the critic's engine batches by tokens, whatever
# critic.use_dynamic_bsz says
def _critic_tokens(leaves: Leaves) -> str | None:
    if leaves.get("critic.fsdp.use_dynamic_bsz", True) is False:
        return None
    cap = job.number_or(leaves, CRITIC_TOKENS, CRITIC_TOKENS_DEFAULT)
    return _cap_error(leaves, CRITIC_TOKENS, cap, "critic")


def _parallel_rules(leaves: Leaves, facts: Mapping[str, int]) -> list[Rule]:
    roles = [ACTOR]
    roles += [REF] if job.has_reference_engine(leaves) else []
    roles += ["critic"] if job.has_critic(leaves) else []
    rules: list[Rule] = []
    for role in roles:
        rules.append(_sequence_parallel_rule(role, facts))
        rules.append(_shard_rule(role))
    rollout = tuple(f"{ROLLOUT}.{axis}_parallel_size" for axis in _ROLLOUT_AXES)
    return [*rules, Rule("rollout_over_ranks", (*rollout, *_RANKS), _rollout_over_ranks)]


# verl/workers/engine/fsdp/transformer_impl.py __init__ (remove padding) and _init_device_mesh
# (ranks), verl/models/transformers/monkey_patch.py apply_monkey_patch (heads)
def _sequence_parallel_rule(role: str, facts: Mapping[str, int]) -> Rule:
    padding = (
        "critic.model.use_remove_padding" if role == "critic" else f"{MODEL}.use_remove_padding"
    )

    def check(leaves: Leaves) -> str | None:
        size, ranks = job.sequence_parallel_size(leaves, role), job.num_ranks(leaves)
        if size == 1:
            return None
        what = f"{role}'s ulysses_sequence_parallel_size ({size})"
        if ranks % size:
            return f"{what} must divide the number of ranks ({ranks})"
        if not leaves[padding]:
            return f"{what} above 1 needs {padding}=true"
        return _heads_error(what, size, facts)

    return Rule(
        f"{role.rpartition('.')[2]}_sequence_parallel", (*_sp_keys(role), padding, *_RANKS), check
    )


def _heads_error(what: str, size: int, facts: Mapping[str, int]) -> str | None:
    heads = facts.get("num_attention_heads", size)
    key_value_heads = facts.get("num_key_value_heads", heads)
    if heads % size:
        return f"{what} must divide the model's num_attention_heads ({heads})"
    if key_value_heads % size and size % key_value_heads:
        return (
            f"{what} must divide, or be a multiple of, the model's num_key_value_heads "
            f"({key_value_heads})"
        )
    return None


# verl/workers/engine/fsdp/utils.py create_device_mesh
def _shard_rule(role: str) -> Rule:
    key = "critic.fsdp.fsdp_size" if role == "critic" else f"{role}.fsdp_config.fsdp_size"

    def check(leaves: Leaves) -> str | None:
        size, ranks = leaves.get(key, -1), job.num_ranks(leaves)
        if (
            not isinstance(size, int)
            or size < 0
            or size >= ranks
            or (size > 0 and ranks % size == 0)
        ):
            return None
        return f"{key} ({size}) must divide the number of ranks ({ranks}), or be -1"

    return Rule(f"{role.rpartition('.')[2]}_fsdp_size", (key, *_RANKS), check)


# verl/workers/engine_workers.py ActorRolloutRefWorker.init_model, "build rollout device mesh"
def _rollout_over_ranks(leaves: Leaves) -> str | None:
    axes = {axis: job.integer(leaves, f"{ROLLOUT}.{axis}_parallel_size") for axis in _ROLLOUT_AXES}
    size, ranks = math.prod(axes.values()), job.num_ranks(leaves)
    if size > 0 and ranks % size == 0:
        return None
    shown = " x ".join(f"{axis}_parallel_size {value}" for axis, value in axes.items())
    return (
        f"the ranks of one rollout replica ({ROLLOUT}: {shown} = {size}) must divide the number "
        f"of ranks ({ranks})"
    )


def _vllm_rules(facts: Mapping[str, int]) -> list[Rule]:
    tensor, tokens = f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.max_num_batched_tokens"
    prefill, length = f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.max_model_len"

    # vLLM's ModelConfig.verify_with_parallel_config
    def check_heads(leaves: Leaves) -> str | None:
        size = job.integer(leaves, tensor)
        heads = facts.get("num_attention_heads", size)
        if heads % size == 0:
            return None
        return f"{tensor} ({size}) must divide the model's num_attention_heads ({heads})"

    # vLLM's SchedulerConfig: it refuses fewer tokens than sequences in one iteration
    def check_sequences(leaves: Leaves) -> str | None:
        cap, sequences = job.integer(leaves, tokens), job.integer(leaves, f"{ROLLOUT}.max_num_seqs")
        if cap >= sequences:
            return None
        return f"{tokens} ({cap}) must be at least {ROLLOUT}.max_num_seqs ({sequences})"

    # verl/workers/rollout/vllm_rollout/vllm_async_server.py _validate_configs: it would quietly
    # raise the value
    def check_prefill(leaves: Leaves) -> str | None:
        limit = (
            leaves[length] if leaves[length] is not None else facts.get("max_position_embeddings")
        )
        cap = job.integer(leaves, tokens)
        if leaves[prefill] or not isinstance(limit, int) or cap >= limit:
            return None
        return (
            f"{tokens} ({cap}) must be at least the model's longest sequence ({limit}) where "
            f"{prefill} is off"
        )

    return [
        Rule("rollout_attention_heads", (tensor,), check_heads),
        Rule("rollout_tokens_over_sequences", (tokens, f"{ROLLOUT}.max_num_seqs"), check_sequences),
        Rule("rollout_tokens_without_chunked_prefill", (tokens, prefill, length), check_prefill),
    ]
