"""verl's validity rules on small jobs whose answers are worked out by hand."""

import functools
import json
from pathlib import Path

import pytest

from autotune.errors import BadInputError
from autotune.verl_bridge.job import ACTOR, REF, ROLLOUT
from autotune.verl_bridge.overrides import compose_base, leaves
from autotune.verl_bridge.rules import job_rules, model_facts, padded_sequences

# 8 prompts x 4 responses on 2 ranks: 32 sequences a step, one mini-batch, 16 sequences a rank.
SMALL_JOB = (
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "data.max_prompt_length=64",
    "data.max_response_length=32",
    "actor_rollout_ref.model.path=org/model",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.ppo_mini_batch_size=8",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    f"{ACTOR}.use_kl_loss=true",
    f"{REF}.log_prob_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.name=hf",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.n=4",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=2",
    "critic.ppo_micro_batch_size_per_gpu=4",
)


@functools.cache
def small_job() -> dict[str, object]:
    return leaves(compose_base("ppo_trainer", SMALL_JOB))


def job(**changes: object) -> dict[str, object]:
    """Return the small job with changes, ``actor__x`` for an actor's key and ``data__x`` for "
    "others."""
    flat = dict(small_job())
    sections = {"actor": ACTOR, "ref": REF, "rollout": ROLLOUT, "model": "actor_rollout_ref.model"}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        flat[f"{sections.get(section, section)}.{key.replace('__', '.')}"] = value
    return flat


def broken(flat: dict[str, object]) -> dict[str, str]:
    messages = {rule.name: rule.check(flat) for rule in job_rules(flat)}
    return {name: message for name, message in messages.items() if message is not None}


def test_the_small_job_breaks_no_rule() -> None:
    assert broken(job()) == {}


def test_a_job_with_a_critic_breaks_no_rule_either() -> None:
    assert broken(job(algorithm__adv_estimator="gae")) == {}


@pytest.mark.parametrize(
    ("changes", "rule", "shown"),
    [
        # 7 x 3 = 21 sequences over 2 ranks; the mini-batch of 6 x 3 = 18 still fits 2 ranks
        (
            {"data__train_batch_size": 7, "rollout__n": 3, "actor__ppo_mini_batch_size": 6},
            "train_batch_over_ranks",
            "data.train_batch_size (7)",
        ),
        (
            {"actor__ppo_mini_batch_size": 16},
            "mini_batch_in_train_batch",
            "ppo_mini_batch_size (16)",
        ),
        # 3 x 1 = 3 sequences over 2 ranks
        (
            {"actor__ppo_mini_batch_size": 3, "rollout__n": 1},
            "mini_batch_over_ranks",
            "data parallel size (2: 2 ranks / sequence parallel size 1)",
        ),
        ({"actor__ppo_micro_batch_size_per_gpu": 5}, "micro_batch_in_mini_batch", "16 sequences"),
        # two mini-batches of 4 x 4 / 2 = 8 sequences a rank
        (
            {"actor__ppo_mini_batch_size": 4, "actor__ppo_micro_batch_size_per_gpu": 16},
            "micro_batch_in_mini_batch",
            "must divide the 8 sequences",
        ),
        ({"actor__ppo_micro_batch_size_per_gpu": None}, "micro_batch_is_set", "must be set"),
        ({"actor__ppo_micro_batch_size": 8}, "micro_batch_is_set", "is deprecated"),
        (
            {"rollout__log_prob_micro_batch_size_per_gpu": 32},
            "rollout_log_prob_micro_batch_in_batch",
            "must divide the 16 sequences that a rank scores",
        ),
        (
            {"ref__log_prob_micro_batch_size_per_gpu": 3},
            "ref_log_prob_micro_batch_in_batch",
            f"{REF}.log_prob_micro_batch_size_per_gpu (3)",
        ),
        ({"rollout__log_prob_micro_batch_size": 4}, "rollout_log_prob_micro_batch_is_set", "depr"),
        (
            {"ref__log_prob_micro_batch_size_per_gpu": None},
            "ref_log_prob_micro_batch_is_set",
            "set",
        ),
        ({"actor__use_dynamic_bsz": True}, "dynamic_batching_agrees", "must be equal"),
        ({"rollout__tensor_model_parallel_size": 3}, "rollout_over_ranks", "number of ranks (2)"),
        (
            {"trainer__n_gpus_per_node": 4, "actor__fsdp_config__fsdp_size": 3},
            "actor_fsdp_size",
            "(3)",
        ),
        ({"actor__ulysses_sequence_parallel_size": 4}, "actor_sequence_parallel", "ranks (2)"),
        (
            {"actor__ulysses_sequence_parallel_size": 2, "model__use_remove_padding": False},
            "actor_sequence_parallel",
            "use_remove_padding=true",
        ),
    ],
)
def test_a_broken_rule_names_keys_and_values(
    changes: dict[str, object], rule: str, shown: str
) -> None:
    found = broken(job(**changes))
    assert rule in found and shown in found[rule]


def test_the_longest_sequence_must_fit_a_token_budget() -> None:
    # 64 + 32 = 96 tokens
    dynamic = {"actor__use_dynamic_bsz": True, "rollout__log_prob_use_dynamic_bsz": True}
    assert broken(job(**dynamic, actor__ppo_max_token_len_per_gpu=96)) == {}
    found = broken(job(**dynamic, actor__ppo_max_token_len_per_gpu=95))
    assert (
        list(found) == ["update_tokens"] and "longest sequence (96 tokens" in found["update_tokens"]
    )


def test_sequence_parallelism_multiplies_the_token_budget() -> None:
    # 2 x 48 = 96 tokens
    found = broken(
        job(
            actor__use_dynamic_bsz=True,
            rollout__log_prob_use_dynamic_bsz=True,
            actor__ulysses_sequence_parallel_size=2,
            actor__ppo_max_token_len_per_gpu=48,
        )
    )
    assert "update_tokens" not in found


def test_without_dynamic_batching_token_budgets_do_not_count() -> None:
    assert broken(job(actor__ppo_max_token_len_per_gpu=1)) == {}


def test_sequence_parallelism_makes_a_ranks_mini_batch_larger() -> None:
    # 32 sequences / (2 ranks / 2) = 32 a data parallel rank
    both = {"actor__ulysses_sequence_parallel_size": 2, "ref__ulysses_sequence_parallel_size": 2}
    assert broken(job(**both, actor__ppo_micro_batch_size_per_gpu=32)) == {}


def test_verl_fills_a_batch_up_to_whole_mini_batches() -> None:
    # 8 x 4 = 32 sequences; mini-batches of 3 x 4 = 12, 2 ranks: lcm 12, so 36
    flat = job(actor__ppo_mini_batch_size=3)
    assert padded_sequences(flat) == 36


def test_the_scoring_micro_batch_divides_the_filled_up_batch() -> None:
    # 36 / 2 = 18 sequences a rank: 6 divides, 4 does not; a mini-batch of 12 / 2 = 6
    three = {"actor__ppo_mini_batch_size": 3, "actor__ppo_micro_batch_size_per_gpu": 6}
    six = {f"{role}__log_prob_micro_batch_size_per_gpu": 6 for role in ("rollout", "ref")}
    assert broken(job(**three, **six)) == {}
    assert set(broken(job(**three))) == {
        "rollout_log_prob_micro_batch_in_batch",
        "ref_log_prob_micro_batch_in_batch",
    }


def test_rules_of_roles_that_the_job_lacks_are_left_out() -> None:
    names = {rule.name for rule in job_rules(job(actor__use_kl_loss=False))}
    assert not any(name.startswith(("ref_", "critic_", "rollout_attention")) for name in names)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"critic__ppo_mini_batch_size": 16}, "critic_mini_batch_in_train_batch"),
        ({"critic__ppo_mini_batch_size": 3, "rollout__n": 1}, "critic_mini_batch_over_ranks"),
        ({"critic__ppo_micro_batch_size_per_gpu": None}, "critic_micro_batch_is_set"),
        ({"critic__ppo_infer_max_token_len_per_gpu": 95}, "critic_tokens"),
        ({"critic__fsdp__fsdp_size": 3, "trainer__n_gpus_per_node": 4}, "critic_fsdp_size"),
    ],
)
def test_the_critic_has_rules_of_its_own(changes: dict[str, object], rule: str) -> None:
    assert rule in broken(job(algorithm__adv_estimator="gae", **changes))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"rollout__max_num_batched_tokens": 100}, "rollout_tokens_over_sequences"),
        (
            {"rollout__enable_chunked_prefill": False, "rollout__max_model_len": 9000},
            "rollout_tokens_without_chunked_prefill",
        ),
    ],
)
def test_vllm_has_rules_of_its_own(changes: dict[str, object], rule: str) -> None:
    assert list(broken(job(rollout__name="vllm", **changes))) == [rule]
    assert broken(job(**changes)) == {}


@pytest.mark.parametrize(
    ("heads", "key_value_heads", "valid"),
    [(6, 2, False), (8, 2, True), (8, 8, True), (12, 6, False)],
)
def test_sequence_parallelism_of_four_must_fit_the_models_heads(
    tmp_path: Path, heads: int, key_value_heads: int, valid: bool
) -> None:
    facts = {"num_attention_heads": heads, "num_key_value_heads": key_value_heads}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    sizes = {f"{role}__ulysses_sequence_parallel_size": 4 for role in ("actor", "ref")}
    found = broken(job(model__path=str(tmp_path), trainer__n_gpus_per_node=4, **sizes))
    assert ("actor_sequence_parallel" not in found) is valid


def test_the_heads_of_a_vision_model_are_those_of_its_text_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_attention_heads": 16}}))
    assert model_facts(str(tmp_path))["num_attention_heads"] == 16


def test_a_broken_model_configuration_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInputError, match="config.json is not valid JSON"):
        model_facts(str(tmp_path))


def test_a_size_below_one_is_an_error() -> None:
    with pytest.raises(BadInputError, match=f"base: {ACTOR}.ppo_mini_batch_size is 0"):
        job_rules(job(actor__ppo_mini_batch_size=0))


def test_every_rule_names_the_keys_that_it_reads() -> None:
    flat = job(algorithm__adv_estimator="gae", rollout__name="vllm")
    absent = "critic.ppo_infer_max_token_len_per_gpu"
    missing = {key for rule in job_rules(flat) for key in rule.reads if key not in flat}
    assert missing == {absent}


class Recorder(dict[str, object]):
    """A mapping that remembers which keys were asked for."""

    def __init__(self, content: dict[str, object]) -> None:
        super().__init__(content)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.asked.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_rule_reads_no_more_than_it_names(dynamic: bool) -> None:
    # the roles that a job has are fixed when its rules are made
    fixed = {"critic.enable", "algorithm.adv_estimator"}
    flat = job(algorithm__adv_estimator="gae", rollout__name="vllm")
    for key in (f"{ACTOR}.use_dynamic_bsz", f"{REF}.log_prob_use_dynamic_bsz"):
        flat[key] = dynamic
    for rule in job_rules(flat):
        recorder = Recorder(flat)
        rule.check(recorder)
        assert recorder.asked - fixed <= set(rule.reads), rule.name
