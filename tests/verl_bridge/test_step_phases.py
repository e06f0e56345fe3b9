"""Phases, micro-batches and mini-batches of a step, counted by hand on composed jobs.

64 prompts x 4 answers over 8 ranks: 32 sequences a rank of at most 96 tokens; mini-batches of 16
prompts: 8 sequences a rank, four mini-batches.
"""

import functools
from typing import Any

import pytest

from autotune.models.model_shape import ModelShape
from autotune.models.overlap_plan import Work
from autotune.models.step_communication import Phase, WeightSync
from autotune.verl_bridge.overrides import compose_base, leaves
from autotune.verl_bridge.step_phases import (
    phases_of,
    roles_of,
    weight_sync_of,
    why_not_modelled,
)

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
JOB = (
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=64",
    "data.max_prompt_length=64",
    "data.max_response_length=32",
    "trainer.n_gpus_per_node=8",
    f"{ROLLOUT}.name=vllm",
    f"{ROLLOUT}.n=4",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=16",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.ppo_mini_batch_size=16",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
    f"{ACTOR}.use_kl_loss=true",
    f"{REF}.log_prob_micro_batch_size_per_gpu=8",
)
CRITIC = ("algorithm.adv_estimator=gae", "critic.strategy=fsdp2", "critic.ppo_mini_batch_size=16")
SHAPE = ModelShape.of(
    {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 64,
    }
)


@functools.cache
def composed(*overrides: str) -> dict[str, Any]:
    return leaves(compose_base("ppo_trainer", [*JOB, *overrides]))


def phases(*overrides: str) -> dict[str, Phase]:
    job = composed(*overrides)
    assert SHAPE is not None
    return {found.name: found for found in phases_of(job, dict.fromkeys(roles_of(job), SHAPE))}


def test_a_step_without_critic_has_three_phases() -> None:
    found = phases()
    assert list(found) == ["update_actor", "old_log_prob", "ref"]
    counts = {name: (each.num_micro_batches, each.num_mini_batches) for name, each in found.items()}
    assert counts == {"update_actor": (4, 4), "old_log_prob": (2, 1), "ref": (4, 1)}
    assert found["update_actor"].work == Work(
        tokens=2 * 96, dtype="bfloat16", trains=True, recomputes=True, reshards=True
    )
    assert found["old_log_prob"].work.tokens == 16 * 96
    assert not found["old_log_prob"].work.trains
    # The actor's units are those of its update; the reference is wrapped for what it scores.
    assert found["old_log_prob"].wrapped_for == found["update_actor"].work
    assert found["ref"].wrapped_for == found["ref"].work


def test_epochs_repeat_the_update() -> None:
    assert phases(f"{ACTOR}.ppo_epochs=3")["update_actor"].num_mini_batches == 12


def test_a_critic_is_batched_by_tokens() -> None:
    found = phases(*CRITIC, "+critic.ppo_infer_max_token_len_per_gpu=400")
    # 400 tokens hold four sequences of 96: a mini-batch of 8 has two, the batch of 32 eight.
    update, values = found["update_critic"], found["values"]
    assert (update.num_micro_batches, update.num_mini_batches) == (2, 4)
    assert (values.num_micro_batches, values.num_mini_batches) == (8, 1)
    assert update.work.tokens == values.work.tokens == 4 * 96
    assert not update.has_head and not values.has_head


def test_token_budgets_take_whole_sequences() -> None:
    found = phases(
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu=300",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu=10000",
    )
    assert found["update_actor"].work.tokens == 3 * 96
    assert found["update_actor"].num_micro_batches == 3
    # No micro-batch is larger than what there is.
    assert found["old_log_prob"].work.tokens == 32 * 96


def test_the_engines_own_settings_are_read() -> None:
    engine = f"{ACTOR}.fsdp_config"
    found = phases(
        f"{engine}.reshard_after_forward=false",
        f"{engine}.use_no_sync_for_gradient_accumulation=true",
        f"{engine}.forward_prefetch=true",
        f"+{engine}.mixed_precision.param_dtype=fp32",
        f"+{engine}.mixed_precision.reduce_dtype=bf16",
        f"+{engine}.wrap_policy.overlap.bucket_size=1000",
        f"+{engine}.wrap_policy.overlap.sequence_tokens=50",
    )["update_actor"]
    assert found.reduces_once and not found.work.reshards
    assert (found.work.dtype, found.reduce_dtype) == ("float32", "bfloat16")
    assert found.settings.bucket_size == 1000
    assert found.settings.forward_prefetch_depth == 1
    assert found.work.tokens == 2 * 50


def test_weights_are_gathered_as_they_are_stored() -> None:
    assert SHAPE is not None
    assert weight_sync_of(composed(), SHAPE) == WeightSync(shape=SHAPE, dtype="float32")
    stored = composed(f"{ACTOR}.fsdp_config.model_dtype=bf16")
    assert weight_sync_of(stored, SHAPE).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ((), None),
        (("trainer.n_gpus_per_node=1",), "there is one rank"),
        ((f"{ACTOR}.strategy=fsdp",), "strategy is fsdp, and only fsdp2"),
        ((f"{ACTOR}.fsdp_config.fsdp_size=4",), "fsdp_size is 4 of 8 ranks"),
        ((f"{ACTOR}.ulysses_sequence_parallel_size=2",), "splits sequences over 2 ranks"),
        (("actor_rollout_ref.model.lora_rank=8",), "LoRA"),
        (("actor_rollout_ref.model.lora_rank=8", f"{ACTOR}.use_kl_loss=false"), "LoRA"),
    ],
)
def test_what_is_not_modelled_is_said(overrides: tuple[str, ...], reason: str | None) -> None:
    found = why_not_modelled(composed(*overrides))
    assert found is None if reason is None else found is not None and reason in found
