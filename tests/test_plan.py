"""What a sweep would do, counted by hand on the quickstart."""

import dataclasses
from pathlib import Path

import pytest
from objective_cases import record

from autotune.config import Sweep, load_sweep
from autotune.plan import (
    expected_cost,
    first_settings,
    limit_of_cost,
    make_plan,
    memory_parts,
    remote_code,
    text_of,
    training_cost,
)
from autotune.plan_forecast import Basis, basis_of, forecast

QUICKSTART = Path(__file__).parents[1] / "search_spaces" / "quickstart_cpu.yaml"


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    """Nine trials of two ranks, six steps each; limits of 300 s and 120 s a step."""
    return load_sweep(QUICKSTART, ["output_dir=nowhere", "calibrate=false"], is_elsewhere=True)


@pytest.fixture(scope="module")
def basis(sweep: Sweep) -> Basis | None:
    return basis_of(sweep, file=None, link=None, flops_per_s=None)


def test_the_first_settings_begin_with_the_baseline_and_stop_where_results_decide(
    sweep: Sweep, basis: Basis | None
) -> None:
    plan = make_plan(sweep, 9, basis)
    assert plan.first[0] == sweep.space.baseline()
    assert len(plan.first) == sweep.config.search.num_startup_trials
    assert len({tuple(setting.items()) for setting in plan.first}) == len(plan.first)
    text = text_of(sweep, plan)
    assert f"the other {9 - len(plan.first)} depend on the results" in text
    assert "Expected: no basis yet" in text
    assert "Baseline and corners, predicted" in text


def test_settings_that_the_sweep_file_gives_depend_on_no_result(sweep: Sweep) -> None:
    given = [{"ppo_micro_batch_size_per_gpu": size} for size in (4, 8, 16)]
    search = dataclasses.replace(sweep.config.search, num_startup_trials=2, first=given)
    asked = dataclasses.replace(sweep, config=dataclasses.replace(sweep.config, search=search))
    tried = first_settings(asked, 9)
    assert [setting["ppo_micro_batch_size_per_gpu"] for setting in tried] == [2, 4, 8, 16]



def test_looking_at_a_plan_leaves_nothing_behind(sweep: Sweep, basis: Basis | None) -> None:
    make_plan(sweep, 1, basis)
    assert not Path("nowhere").exists()


def test_the_time_limits_bound_the_cost(sweep: Sweep) -> None:
    cost = limit_of_cost(sweep, 0)
    trial_s = 300 + 6 * 120
    assert cost.num_trials == 9
    assert cost.gpu_hours == pytest.approx(9 * 2 * trial_s / 3600)
    assert cost.wall_hours == pytest.approx(9 * trial_s / 3600)


def test_the_predicted_step_says_what_training_alone_costs(
    sweep: Sweep, basis: Basis | None
) -> None:
    found = forecast(sweep, basis)
    cost, step = training_cost(sweep, 1, found), found.base.communication
    assert cost is not None and step is not None
    assert cost.wall_hours == pytest.approx(8 * 6 * step.step_s / 3600)


def test_trials_that_have_finished_say_what_the_others_cost(sweep: Sweep) -> None:
    records = [record(n, metrics={"gpu_seconds": seconds}) for n, seconds in enumerate((80, 100))]
    cost = expected_cost(sweep, records)
    assert cost is not None
    assert cost.num_trials == 7
    assert cost.gpu_hours == pytest.approx(7 * 90 / 3600)
    assert cost.wall_hours == pytest.approx(7 * 45 / 3600)
    assert expected_cost(sweep, []) is None


def test_memory_is_guessed_for_the_base_job_and_the_largest_setting(sweep: Sweep) -> None:
    gib = 2.0**30
    static = {"offload_policy": 8 * gib, "ppo_micro_batch_size_per_gpu": 0.5 * gib}
    parts = memory_parts(sweep, static)
    # The base job's micro-batch is 2, the sweep's largest 16.
    assert [(part.base_gib, part.largest_gib) for part in parts] == [(8.0, 8.0), (0.5, 4.0)]
    assert memory_parts(sweep, {}) == []


def test_code_of_a_models_repository_is_named() -> None:
    leaves = {"actor_rollout_ref.model.trust_remote_code": True, "data.trust_remote_code": False}
    assert remote_code(leaves) == ["actor_rollout_ref.model.trust_remote_code"]
