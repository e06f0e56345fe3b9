"""The catalogue of knobs against verl's own configuration, and reading a job's values."""

import functools

import pytest

from autotune.errors import BadInputError
from autotune.knobs import KNOBS, ROLLOUT_KNOBS
from autotune.verl_bridge import schema
from autotune.verl_bridge.overrides import compose_base, container, leaves

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"


@functools.cache
def default_leaves() -> dict[str, object]:
    return leaves(
        compose_base("ppo_trainer", [f"{ACTOR}.use_kl_loss=true", f"{ROLLOUT}.name=vllm"])
    )


def job(**changes: object) -> dict[str, object]:
    return default_leaves() | {key.replace("__", "."): value for key, value in changes.items()}


@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_reads_a_default_job(name: str) -> None:
    value = KNOBS[name].from_config(job())
    assert value is None or isinstance(value, KNOBS[name].kind)


@pytest.mark.parametrize("name", KNOBS)
def test_every_key_exists_in_verl(name: str) -> None:
    default = container(compose_base("ppo_trainer", []))
    for key in KNOBS[name].keys:
        # verl leaves the content of a wrap policy open; below it stand this package's own keys.
        key = key.partition(".overlap.")[0]
        expected = schema.expectation(key, default)
        assert expected.unknown_to is None
        assert key in default_leaves() or expected.annotation is not None


def test_no_two_knobs_write_one_key() -> None:
    keys = [key for knob in KNOBS.values() for key in knob.keys]
    assert len(keys) == len(set(keys))


def test_knobs_of_the_rollout_are_those_that_write_its_section_but_for_scoring() -> None:
    of_rollout = {
        name
        for name, knob in KNOBS.items()
        if any(key.startswith(f"{ROLLOUT}.") and ".log_prob_" not in key for key in knob.keys)
    }
    assert of_rollout == ROLLOUT_KNOBS


def test_the_scoring_micro_batch_is_written_for_actor_and_reference() -> None:
    written = KNOBS["log_prob_micro_batch_size_per_gpu"].to_overrides(8, job())
    assert written == {
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8,
        f"{REF}.log_prob_micro_batch_size_per_gpu": 8,
    }


def test_keys_of_a_role_that_the_job_lacks_are_left_out() -> None:
    flat = job() | {f"{ACTOR}.use_kl_loss": False, "algorithm.adv_estimator": "grpo"}
    assert KNOBS["reshard_after_forward"].keys_in(flat) == (
        f"{ACTOR}.fsdp_config.reshard_after_forward",
    )


def test_with_lora_the_reference_has_no_engine_of_its_own() -> None:
    flat = job() | {"actor_rollout_ref.model.lora_rank": 8}
    assert KNOBS["log_prob_micro_batch_size_per_gpu"].keys_in(flat) == (
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    )


def test_a_knob_of_a_missing_role_is_refused() -> None:
    with pytest.raises(BadInputError, match="critic_ppo_infer.*this job ignores it.*no role"):
        KNOBS["critic_ppo_infer_max_token_len_per_gpu"].from_config(
            job(algorithm__adv_estimator="grpo")
        )


def test_a_key_that_verls_yaml_does_not_list_has_verls_default() -> None:
    assert KNOBS["critic_ppo_infer_max_token_len_per_gpu"].from_config(job()) == 32768


def test_different_values_of_one_knob_in_the_base_job_are_refused_with_both() -> None:
    flat = job() | {f"{ACTOR}.clip_ratio_high": 0.28}
    with pytest.raises(
        BadInputError, match=r"clip_ratio: .*clip_ratio_low=0.2.*clip_ratio_high=0.28"
    ):
        KNOBS["clip_ratio"].from_config(flat)


def test_a_clip_limit_left_at_null_is_the_clip_ratio() -> None:
    flat = job() | {f"{ACTOR}.clip_ratio_low": None, f"{ACTOR}.clip_ratio_high": None}
    assert KNOBS["clip_ratio"].from_config(flat) == 0.2


@pytest.mark.parametrize(("size", "ranks"), [(-1, 8), (4, 4), (16, 8)])
def test_fsdp_size_is_read_as_a_number_of_ranks(size: int, ranks: int) -> None:
    flat = job() | dict.fromkeys(KNOBS["fsdp_size"].keys, size)
    assert KNOBS["fsdp_size"].from_config(flat) == ranks


def test_the_deprecated_sequence_parallel_key_counts_where_it_is_above_one() -> None:
    flat = job() | {f"{role}.ulysses_sequence_parallel_size": 2 for role in (ACTOR, REF)}
    flat |= {"critic.fsdp.ulysses_sequence_parallel_size": 2}
    assert KNOBS["ulysses_sequence_parallel_size"].from_config(flat) == 2


@pytest.mark.parametrize(
    ("name", "value", "parsed"),
    [
        ("ppo_max_token_len_per_gpu", 25e3, 25000),
        ("ppo_micro_batch_size_per_gpu", 4, 4),
        ("rollout_gpu_memory_utilization", 1, 1.0),
        ("use_dynamic_bsz", True, True),
    ],
)
def test_values_become_the_knobs_kind(name: str, value: object, parsed: object) -> None:
    result = KNOBS[name].parse(value, "key")
    assert result == parsed and type(result) is type(parsed)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "ppo_micro_batch_size_per_gpu",
            2.5,
            r"k is 2.5 \(float\). .* takes an integer of at least 1",
        ),
        ("ppo_micro_batch_size_per_gpu", True, r"k is True \(bool\)"),
        ("ppo_micro_batch_size_per_gpu", "4", r"k is '4' \(str\)"),
        ("ppo_micro_batch_size_per_gpu", 0, "k is 0, outside .* at least 1"),
        ("rollout_gpu_memory_utilization", 1.5, "k is 1.5, outside .* at least 0.01 and at most 1"),
        ("rollout_gpu_memory_utilization", float("nan"), "k is nan"),
        ("rollout_gpu_memory_utilization", float("inf"), "k is inf"),
        ("ppo_micro_batch_size_per_gpu", float("inf"), "k is inf"),
        ("ppo_micro_batch_size_per_gpu", None, "k is None"),
        ("use_dynamic_bsz", 1, r"k is 1 \(int\). .* takes true or false"),
    ],
)
def test_values_that_a_knob_cannot_take_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        KNOBS[name].parse(value, "k")


@pytest.mark.parametrize("name", ["bucket_size", "forward_prefetch_depth", "overlap_threshold"])
def test_overlap_knobs_are_zero_in_a_job_that_does_not_know_them(name: str) -> None:
    assert KNOBS[name].from_config(job()) == 0


def test_an_overlap_knob_reaches_every_engine_of_the_job() -> None:
    assert KNOBS["bucket_size"].to_overrides(25_000_000, job()) == {
        f"{engine}.wrap_policy.overlap.bucket_size": 25_000_000
        for engine in (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")
    }


def test_the_reference_has_no_backward_pass_to_prefetch_in() -> None:
    assert not any(REF in key for key in KNOBS["backward_prefetch_depth"].keys_in(job()))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bucket_size", {"actor_rollout_ref__actor__strategy": "fsdp"}),
        ("forward_prefetch_depth", {"trainer__n_gpus_per_node": 1}),
        ("overlap_threshold", {"actor_rollout_ref__actor__fsdp_config__fsdp_size": 1}),
        (
            "backward_prefetch_depth",
            {"actor_rollout_ref__actor__fsdp_config__reshard_after_forward": False},
        ),
    ],
)
def test_overlap_knobs_need_something_to_gather(name: str, changes: dict[str, object]) -> None:
    acting = {"actor_rollout_ref__actor__strategy": "fsdp2"}
    assert all(requirement.holds(job(**acting)) for requirement in KNOBS[name].requires)
    assert not all(
        requirement.holds(job(**acting | changes)) for requirement in KNOBS[name].requires
    )
