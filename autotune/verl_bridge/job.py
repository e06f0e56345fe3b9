"""What a verl job is made of, read from the leaves of its configuration: roles, ranks, sizes.

Runs in the driver. Pure functions over ``dotted key -> resolved value``; each names the place in
verl 0.9.1 that decides the same question. Keys that a job lacks raise KeyError: the caller composed
them with verl's own YAML.
"""

from collections.abc import Mapping

Leaves = Mapping[str, object]

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"

OWN_ROLLOUT = "hf"
"""``rollout.name`` of this package's transformers rollout."""


def integer(leaves: Leaves, key: str) -> int:
    """Return an integer leaf."""
    value = leaves[key]
    assert isinstance(value, int), f"{key} is {value!r}; types are checked when the job is composed"
    return value


def number_or(leaves: Leaves, key: str, absent: int) -> int:
    """Return an integer leaf, or ``absent`` where the configuration lacks the key and verl's
    dataclass decides."""
    return integer(leaves, key) if key in leaves else absent


def longest_sequence(leaves: Leaves) -> int:
    """Return the tokens of the longest sequence that the data may have."""
    return integer(leaves, "data.max_prompt_length") + integer(leaves, "data.max_response_length")


def num_ranks(leaves: Leaves) -> int:
    """Return the number of verl's workers (``validate_config``: n_gpus)."""
    return integer(leaves, "trainer.n_gpus_per_node") * integer(leaves, "trainer.nnodes")


def has_critic(leaves: Leaves) -> bool:
    """Say whether the job trains a critic (verl/trainer/ppo/utils.py ``need_critic``)."""
    enable = leaves["critic.enable"]
    return bool(enable) if enable is not None else leaves["algorithm.adv_estimator"] == "gae"


def has_reference(leaves: Leaves) -> bool:
    """Say whether the job scores with a reference policy (verl/trainer/ppo/utils.py
    ``need_reference_policy``)."""
    return bool(leaves["algorithm.use_kl_in_reward"]) or bool(leaves[f"{ACTOR}.use_kl_loss"])


def trains_adapter(leaves: Leaves) -> bool:
    """Say whether the actor trains an adapter (LoRA) and not the model (trainer_base.py
    ``_init_resource_pool_mgr``: lora_rank)."""
    ranks = (number_or(leaves, f"{MODEL}.{key}", 0) for key in ("lora.rank", "lora_rank"))
    return any(rank > 0 for rank in ranks) or leaves.get(f"{MODEL}.lora_adapter_path") is not None


def has_reference_engine(leaves: Leaves) -> bool:
    """Say whether the reference has an engine of its own; with LoRA the actor without adapter is
    the reference.

    trainer_base.py ``_init_resource_pool_mgr``: ref_in_actor.
    """
    return has_reference(leaves) and not trains_adapter(leaves)


def recomputes_old_log_prob(leaves: Leaves) -> bool:
    """Say whether the actor scores the rollout's responses again (trainer_base.py
    ``_compute_old_log_prob``)."""
    return not leaves["algorithm.rollout_correction.bypass_mode"]


def scores_with_actor(leaves: Leaves) -> bool:
    """Say whether the actor runs forward-only batches, whose budget is ``rollout.log_prob_*``."""
    reference_in_actor = has_reference(leaves) and not has_reference_engine(leaves)
    return recomputes_old_log_prob(leaves) or reference_in_actor


def updates_with_entropy(leaves: Leaves) -> bool:
    """Say whether the actor's update computes the entropy (trainer_base.py ``_update_actor``)."""
    return bool(leaves[f"{ACTOR}.calculate_entropy"]) or leaves[f"{ACTOR}.entropy_coeff"] != 0


def sequence_parallel_size(leaves: Leaves, role: str) -> int:
    """Return the Ulysses size of one role's engine; 1 where the job's engine has no such setting.

    Args:
        leaves: The job.
        role: ``ACTOR``, ``REF`` or ``critic``.

    verl/workers/config/actor.py ``FSDPActorConfig.__post_init__``: the role's own (deprecated) key
    replaces the engine's when it is above 1. The critic's has no such forwarding: its engine's key
    alone counts.
    """
    if role == "critic":
        return number_or(leaves, "critic.fsdp.ulysses_sequence_parallel_size", 1)
    outer = number_or(leaves, f"{role}.ulysses_sequence_parallel_size", 1)
    return (
        outer
        if outer > 1
        else number_or(leaves, f"{role}.fsdp_config.ulysses_sequence_parallel_size", 1)
    )


def data_parallel_size(leaves: Leaves, role: str) -> int:
    """Return how many ranks see different sequences (transformer_impl.py
    ``get_data_parallel_size``)."""
    return max(1, num_ranks(leaves) // sequence_parallel_size(leaves, role))


def uses_fsdp(leaves: Leaves) -> bool:
    """Say whether the actor runs on FSDP1 or FSDP2, configured by verl's ``model_engine=dp``."""
    is_configured = f"{ACTOR}.fsdp_config.fsdp_size" in leaves
    return is_configured and leaves[f"{ACTOR}.strategy"] in ("fsdp", "fsdp2")


def mini_batch_sequences(leaves: Leaves, section: str) -> int:
    """Return the sequences of one update over all ranks: prompts of a mini-batch x responses per
    prompt."""
    return integer(leaves, f"{section}.ppo_mini_batch_size") * integer(leaves, f"{ROLLOUT}.n")
