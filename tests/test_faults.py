"""Each consistency metric against the fault that it is there for, on real gloo ranks with FSDP2.

The right metric passes its limit, the others stay where they were. One start of two ranks and one
of four serve all tests.
"""

import json
from pathlib import Path

import fault_ranks
import pytest
from torch import multiprocessing

from autotune.measure.gradients import cosine_deviation
from autotune.measure.kl import kl_std, rank_divergence

LIMITS = {"rank_divergence": 1e-6, "kl_std": 1e-4, "grad_deviation": 5e-3}
DRIFT_FLOORS = 100
"""A drift of the KL counts from this many noise floors on."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

Values = dict[str, float]


@pytest.fixture(scope="module", params=[2, 4])
def measured(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, Values]:
    """Scenario -> metric -> value, relative to the plain run with the same data."""
    folder, num_ranks = tmp_path_factory.mktemp("faults"), int(request.param)
    multiprocessing.spawn(fault_ranks.run, args=(str(folder), num_ranks), nprocs=num_ranks)
    ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(num_ranks)]
    return {
        name: _values(
            [rank[name] for rank in ranks],
            [rank["cancelling" if scenario.cancelling else "plain"] for rank in ranks],
        )
        for name, scenario in fault_ranks.SCENARIOS.items()
    }


def _values(ranks: list[dict[str, list[float]]], plain: list[dict[str, list[float]]]) -> Values:
    deviation = cosine_deviation(ranks[0]["grad_sketch"], plain[0]["grad_sketch"])
    assert deviation is not None
    return {
        "rank_divergence": rank_divergence([rank["scores"] for rank in ranks]),
        "kl_std": kl_std([value for rank in ranks for value in rank["k_nats"]]),
        "grad_deviation": deviation,
        "kl_drift": abs(_probe_kl(ranks) - _probe_kl(plain)),
    }


def _probe_kl(ranks: list[dict[str, list[float]]]) -> float:
    return sum(value for rank in ranks for value in rank["probe_kl"]) / len(ranks)


def _broken(values: Values) -> set[str]:
    return {name for name, limit in LIMITS.items() if values[name] > limit}


def test_the_noise_floor_of_another_micro_batch_is_far_below_every_limit(
    measured: dict[str, Values],
) -> None:
    floor = measured["other_micro_batch"]
    assert _broken({name: 1000 * value for name, value in floor.items()}) == set()


@pytest.mark.parametrize("sharding", ["one_unit", "replicated"])
def test_nothing_depends_on_the_sharding(measured: dict[str, Values], sharding: str) -> None:
    assert measured[sharding]["grad_deviation"] < 1e-12
    assert _broken(measured[sharding]) == set()


@pytest.mark.parametrize(
    ("fault", "metric"),
    [
        ("perturbed_rank", "rank_divergence"),
        ("own_gradient", "grad_deviation"),
        ("scaled_loss", "grad_deviation"),
        ("bf16_scores", "kl_std"),
        ("cancelling_bf16_reduction", "grad_deviation"),
    ],
)
def test_a_fault_breaks_the_limit_of_its_own_metric_alone(
    measured: dict[str, Values], fault: str, metric: str
) -> None:
    assert _broken(measured[fault]) == {metric}


@pytest.mark.parametrize("fault", ["own_gradient", "scaled_loss"])
def test_a_wrong_gradient_makes_the_policy_drift(measured: dict[str, Values], fault: str) -> None:
    floor = measured["other_micro_batch"]["kl_drift"]
    assert measured[fault]["kl_drift"] > DRIFT_FLOORS * floor


def test_scores_in_another_precision_leave_gradient_and_updates_as_they_were(
    measured: dict[str, Values],
) -> None:
    values = measured["bf16_scores"]
    assert (values["grad_deviation"], values["kl_drift"]) == (0.0, 0.0)


def test_reduction_in_bf16_shows_where_gradients_do_not_cancel_but_keeps_the_limit(
    measured: dict[str, Values],
) -> None:
    values, floor = measured["bf16_reduction"], measured["other_micro_batch"]
    assert 1000 * floor["grad_deviation"] < values["grad_deviation"] < LIMITS["grad_deviation"]
    assert _broken(values) == set()
