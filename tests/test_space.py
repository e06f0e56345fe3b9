"""The search space on a small job: counts by hand, canonical settings, overrides, sampling."""

import functools
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from autotune import space as space_module
from autotune.domain import make_domain
from autotune.errors import BadInputError
from autotune.space import Space
from autotune.verl_bridge.overrides import compose_base, leaves, sources
from autotune.verl_bridge.rules import job_rules

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
DYNAMIC, TOKENS = "use_dynamic_bsz", "ppo_max_token_len_per_gpu"
SCORING_TOKENS = "log_prob_max_token_len_per_gpu"

# 8 prompts x 4 responses on 2 ranks: 32 sequences a step, one mini-batch, 16 sequences a rank.
SMALL_JOB = (
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "data.max_prompt_length=64",
    "data.max_response_length=32",
    "actor_rollout_ref.model.path=org/model",
    f"{ACTOR}.strategy=fsdp2",
    f"{ACTOR}.ppo_mini_batch_size=8",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
    f"{ACTOR}.use_kl_loss=true",
    f"{REF}.log_prob_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.name=hf",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.n=4",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=2",
)


@functools.cache
def composed(extra: tuple[str, ...]) -> tuple[dict[str, object], dict[str, str]]:
    config = compose_base("ppo_trainer", [*SMALL_JOB, *extra])
    return leaves(config), sources(config)


def make_space(*extra: str, **knobs: Any) -> Space:
    """Build a space over the small job; a list means choices, a mapping is a whole domain."""
    flat, followed = composed(extra)
    domains = {
        name: make_domain(name, **(value if isinstance(value, dict) else {"choices": value}))
        for name, value in knobs.items()
    }
    return Space(domains, flat, job_rules(flat), followed)


def micro_batches() -> Space:
    return make_space(**{MICRO: [1, 2, 3, 4], SCORING: [2, 3, 4, 5]})


def conditional() -> Space:
    return make_space(**{DYNAMIC: [False, True], MICRO: [1, 2, 4], TOKENS: {"choices": [96, 960]}})


def test_counts_of_excluded_settings_are_exact() -> None:
    # 16 sequences a rank, for the update and for scoring: 3 and 5 do not divide it
    summary = micro_batches().summary()
    assert (summary.num_points, summary.num_checked, summary.num_valid) == (16, 16, 3 * 2)
    assert summary.excluded == {
        "micro_batch_in_mini_batch": 4,
        "rollout_log_prob_micro_batch_in_batch": 8,
        "ref_log_prob_micro_batch_in_batch": 8,
    }
    assert "(3) must divide the 16 sequences" in summary.examples["micro_batch_in_mini_batch"]


def test_knobs_that_no_rule_reads_multiply_the_counts() -> None:
    space = make_space(**{MICRO: [1, 3], "reshard_after_forward": [True, False]})
    summary = space.summary()
    assert (summary.num_points, summary.num_valid) == (4, 2)
    assert summary.excluded == {"micro_batch_in_mini_batch": 2}


def test_a_large_space_is_counted_over_the_knobs_that_decide() -> None:
    # 16 of 1..16 micro-batch sizes: the 5 divisors of 16 are valid; 40,000 bucket sizes multiply
    space = make_space(
        **{
            MICRO: {"low": 1, "high": 16},
            "rollout_update_weights_bucket_megabytes": {"low": 1, "high": 40_000},
        }
    )
    summary = space.summary()
    assert (summary.num_points, summary.num_valid) == (16 * 40_000, 5 * 40_000)


def test_a_continuous_knob_leaves_the_number_of_points_open() -> None:
    space = make_space(**{MICRO: [1, 2, 3], "clip_ratio": {"low": 0.1, "high": 0.3}})
    summary = space.summary()
    assert summary.num_points is None
    assert (summary.num_checked, summary.num_valid) == (3, 2)
    assert "clip_ratio" in summary.method


def test_too_many_deciding_settings_are_sampled() -> None:
    space = make_space(**{MICRO: {"low": 1, "high": 200}, SCORING: {"low": 1, "high": 200}})
    summary = space.summary()
    assert summary.num_points == 40_000
    assert summary.num_checked == space_module.NUM_SAMPLED and "random sample" in summary.method


def test_a_sampled_summary_is_the_same_every_time() -> None:
    knobs = {MICRO: {"low": 1, "high": 200}, SCORING: {"low": 1, "high": 200}}
    assert make_space(**knobs).summary() == make_space(**knobs).summary()


def test_settings_that_differ_only_in_knobs_that_do_not_act_count_once() -> None:
    # dynamic: 2 token budgets; fixed: 3 micro-batch sizes
    summary = conditional().summary()
    assert (summary.num_points, summary.num_valid) == (2 + 3, 5)


def test_the_engine_decides_which_knobs_act() -> None:
    space = conditional()
    fixed = space.snap({DYNAMIC: False, MICRO: 4, TOKENS: 960})
    dynamic = space.snap({DYNAMIC: True, MICRO: 4, TOKENS: 960})
    assert space.active(fixed) == {DYNAMIC: False, MICRO: 4}
    assert space.active(dynamic) == {DYNAMIC: True, TOKENS: 960}


def test_a_knob_that_does_not_act_has_the_base_jobs_value() -> None:
    space = conditional()
    assert space.snap({DYNAMIC: True, MICRO: 4, TOKENS: 960})[MICRO] == 2


def test_equal_jobs_have_equal_keys() -> None:
    space = conditional()
    one = {DYNAMIC: True, MICRO: 1, TOKENS: 960}
    assert space.key(one) == space.key({**one, MICRO: 4})
    assert space.key(one) != space.key({**one, TOKENS: 96})


def test_the_users_condition_decides_too() -> None:
    space = make_space(
        **{
            "reshard_after_forward": [True, False],
            "forward_prefetch": {
                "choices": [True, False],
                "when": {"reshard_after_forward": True},
            },
        }
    )
    assert space.summary().num_points == 3
    assert space.active({"reshard_after_forward": False, "forward_prefetch": True}) == {
        "reshard_after_forward": False
    }


def test_conditions_chain() -> None:
    space = make_space(
        **{
            "reshard_after_forward": [True, False],
            "forward_prefetch": {"choices": [True], "when": {"reshard_after_forward": False}},
            MICRO: {"choices": [1, 4], "when": {"forward_prefetch": True}},
        }
    )
    params = {"reshard_after_forward": True, "forward_prefetch": True, MICRO: 4}
    assert set(space.active(params)) == {"reshard_after_forward"}
    assert MICRO in space.active({**params, "reshard_after_forward": False})


def test_the_baseline_is_the_base_jobs_own_setting() -> None:
    assert micro_batches().baseline() == {MICRO: 2, SCORING: 4}


def test_the_baseline_needs_no_override() -> None:
    assert conditional().overrides(conditional().baseline()) == []


def test_the_baseline_outside_the_domains_stays_itself() -> None:
    space = make_space(**{MICRO: [8, 16]})
    assert space.snap(space.baseline()) == {MICRO: 2}
    assert space.snap({MICRO: 3}) == {MICRO: 8}


def test_only_what_differs_from_the_base_job_is_written() -> None:
    space = micro_batches()
    assert space.overrides({MICRO: 2, SCORING: 2}) == [
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=2",
        f"{REF}.log_prob_micro_batch_size_per_gpu=2",
    ]


def test_keys_that_follow_by_themselves_are_not_written() -> None:
    assert conditional().overrides({DYNAMIC: True, MICRO: 2, TOKENS: 16384}) == [
        f"{ACTOR}.use_dynamic_bsz=true"
    ]


def test_a_key_that_would_follow_is_written_where_it_must_stay() -> None:
    # verl copies the update's token budget into the scoring budgets unless they are written
    space = make_space(
        f"{ACTOR}.use_dynamic_bsz=true", **{TOKENS: [960, 16384], SCORING_TOKENS: [960, 16384]}
    )
    written = space.overrides({TOKENS: 960, SCORING_TOKENS: 16384})
    assert written == [
        f"{ACTOR}.ppo_max_token_len_per_gpu=960",
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu=16384",
        f"{REF}.log_prob_max_token_len_per_gpu=16384",
    ]


@pytest.mark.parametrize("tokens", [960, 16384])
@pytest.mark.parametrize("scoring", [960, 16384])
def test_hydra_gives_the_job_that_the_rules_judged(tokens: int, scoring: int) -> None:
    extra = (f"{ACTOR}.use_dynamic_bsz=true",)
    space = make_space(*extra, **{TOKENS: [960, 16384], SCORING_TOKENS: [960, 16384]})
    written = space.overrides({TOKENS: tokens, SCORING_TOKENS: scoring})
    flat = leaves(compose_base("ppo_trainer", [*SMALL_JOB, *extra, *written]))
    assert flat[f"{ACTOR}.ppo_max_token_len_per_gpu"] == tokens
    assert flat[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] == scoring
    assert flat[f"{REF}.log_prob_max_token_len_per_gpu"] == scoring


def test_rules_see_the_keys_that_follow() -> None:
    # the scoring budgets follow the update's: 95 tokens hold no sequence of 96
    space = make_space(f"{ACTOR}.use_dynamic_bsz=true", **{TOKENS: [95, 96]})
    assert [text.partition(":")[0] for text in space.violations({TOKENS: 95})] == [
        "update_tokens",
        "rollout_log_prob_tokens",
        "ref_log_prob_tokens",
    ]


def test_a_key_that_the_base_job_does_not_list_is_appended() -> None:
    name = "critic_ppo_infer_max_token_len_per_gpu"
    space = make_space(
        "algorithm.adv_estimator=gae",
        "critic.ppo_micro_batch_size_per_gpu=4",
        **{name: [4096]},
    )
    assert space.overrides({name: 4096}) == ["++critic.ppo_infer_max_token_len_per_gpu=4096"]


def test_full_sharding_is_not_written_over_verls_minus_one() -> None:
    space = make_space("trainer.n_gpus_per_node=4", **{"fsdp_size": [2, 4]})
    assert space.baseline() == {"fsdp_size": 4}
    assert space.overrides({"fsdp_size": 4}) == []
    assert f"{ACTOR}.fsdp_config.fsdp_size=2" in space.overrides({"fsdp_size": 2})


def test_a_value_that_the_base_job_lacks_is_never_written() -> None:
    space = make_space(
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=null",
        **{DYNAMIC: [True, False], MICRO: [4, 8]},
    )
    assert space.overrides(space.baseline()) == []
    assert f"{ACTOR}.ppo_micro_batch_size_per_gpu=8" in space.overrides({DYNAMIC: False, MICRO: 8})


def test_violations_name_rule_and_values() -> None:
    (text,) = micro_batches().violations({MICRO: 3, SCORING: 4})
    assert text.startswith("micro_batch_in_mini_batch: ") and "(3)" in text
    assert not micro_batches().is_valid({MICRO: 3, SCORING: 4})


def test_numbers_stay_numeric_for_the_sampler() -> None:
    found = make_space(
        **{
            MICRO: [4, 64],
            "reshard_after_forward": [False],
            "clip_ratio": {"low": 0.25, "high": 0.3},
            SCORING: [4, 8],
        }
    ).distributions()
    assert found == {
        MICRO: IntDistribution(2, 64, log=True),  # widened to the base job's 2
        "reshard_after_forward": CategoricalDistribution([False, True]),
        "clip_ratio": FloatDistribution(0.2, 0.3),
        SCORING: IntDistribution(4, 8),
    }


def test_valid_settings_are_iterated_once_each() -> None:
    space = conditional()
    keys = [space.key(setting) for setting in space.iter_valid()]
    assert len(keys) == len(set(keys)) == 5


def test_random_valid_settings_cover_the_space_and_then_end() -> None:
    space, rng = micro_batches(), np.random.default_rng(1)
    seen: set[Any] = set()
    while (setting := space.random_valid(rng, exclude=seen)) is not None:
        assert space.is_valid(setting) and space.key(setting) not in seen
        seen.add(space.key(setting))
    assert len(seen) == 6


def test_random_valid_is_seeded() -> None:
    draws = [micro_batches().random_valid(np.random.default_rng(7)) for _ in range(2)]
    assert draws[0] == draws[1]


def test_a_rare_valid_setting_is_found() -> None:
    # of micro-batches 1 and 3 with scoring 1..100, only 1 with 1, 2, 4, 8 or 16 is valid
    space = make_space(**{MICRO: [1, 3], SCORING: {"low": 1, "high": 100}})
    taken: set[Any] = set()
    for _ in range(5):
        setting = space.random_valid(np.random.default_rng(0), exclude=taken)
        assert setting is not None
        taken.add(space.key(setting))
    assert space.random_valid(np.random.default_rng(0), exclude=taken) is None


def test_no_valid_setting_is_refused_with_rules_and_counts() -> None:
    space = make_space(**{MICRO: [3, 5]})
    with pytest.raises(
        BadInputError,
        match=r"no valid setting besides .*micro_batch_in_mini_batch excludes 2 of 2 .*\(3\)",
    ):
        space.check_not_empty(space.summary())


def test_a_space_of_the_base_job_alone_is_refused() -> None:
    space = make_space(**{MICRO: [2]})
    with pytest.raises(BadInputError, match="its only setting is the base job's own"):
        space.check_not_empty(space.summary())


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"rollout_gpu_memory_utilization": [0.4]},
            rf"ignores it: it acts only where {ROLLOUT}.name is vllm or sglang",
        ),
        ({"offload_policy": [True]}, "trainer.device is cuda or npu"),
        ({TOKENS: [4096]}, f"{TOKENS}: this job ignores it.*{DYNAMIC} is true"),
        ({"entropy_checkpointing": [True]}, "the update computes the entropy"),
        ({"critic_ppo_infer_max_token_len_per_gpu": [4096]}, "no role that reads"),
        ({"target_kl": [0.1]}, "algorithm.use_kl_in_reward is true"),
        (
            {DYNAMIC: [True, False], TOKENS: {"choices": [4096], "when": {DYNAMIC: False}}},
            rf"{TOKENS}: this job ignores it.*own condition: {DYNAMIC} is False",
        ),
    ],
)
def test_a_knob_that_the_engine_ignores_is_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        make_space(**knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {MICRO: {"choices": [4], "when": {DYNAMIC: False}}},
            f"knobs.{MICRO}.when.{DYNAMIC}: {DYNAMIC} is not a knob of this sweep",
        ),
        (
            {DYNAMIC: [False], MICRO: {"choices": [4], "when": {DYNAMIC: True}}},
            f"knobs.{MICRO}.when.{DYNAMIC} is True, which is not in the domain",
        ),
        (
            {
                "forward_prefetch": {"choices": [True], "when": {MICRO: 4}},
                MICRO: {"choices": [4], "when": {"forward_prefetch": True}},
            },
            "the conditions form a circle: forward_prefetch on ",
        ),
        (
            {DYNAMIC: {"choices": [True, False], "when": {TOKENS: 96}}, TOKENS: [96]},
            "the conditions form a circle",
        ),
    ],
)
def test_a_condition_that_cannot_be_is_refused(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        make_space(**knobs)


def test_different_values_in_the_base_job_are_refused() -> None:
    with pytest.raises(BadInputError, match=f"{SCORING}: the base job has different values"):
        make_space(f"{REF}.log_prob_micro_batch_size_per_gpu=8", **{SCORING: [2]})


def test_the_candidates_of_a_small_space_are_all_its_valid_settings() -> None:
    space = micro_batches()
    found = space.candidates(np.random.default_rng(0), limit=100)
    assert [space.key(setting) for setting in found] == [
        space.key(setting) for setting in space.iter_valid()
    ]


def test_the_candidates_of_a_large_space_are_different_valid_settings() -> None:
    space = make_space(**{MICRO: {"low": 1, "high": 16}, "clip_ratio": {"low": 0.1, "high": 0.3}})
    assert not space.is_small(limit=50)
    found = space.candidates(np.random.default_rng(0), limit=50)
    assert 1 < len({space.key(setting) for setting in found}) == len(found) < 50
    assert all(space.is_valid(setting) for setting in found)


def test_integers_over_a_wide_range_are_drawn_as_real_numbers() -> None:
    wide = make_space(**{DYNAMIC: [True], TOKENS: {"low": 96, "high": 1_000_000}})
    assert isinstance(wide.distributions()[TOKENS], FloatDistribution)
    setting = wide.snap({DYNAMIC: True, TOKENS: 1234.4})
    assert setting[TOKENS] == 1234 and isinstance(setting[TOKENS], int)
