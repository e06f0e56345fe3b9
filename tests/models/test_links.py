"""Latency and bandwidth come out of samples that they went into, and links get the right name."""

import dataclasses

import pytest

from autotune.models.calibration import Calibration, CollectiveCost
from autotune.models.links import (
    Scenario,
    at_world_size,
    bus_bytes_per_s,
    fit,
    fit_error_ratio,
    hiding_tokens,
    link_class,
)

SIZES = tuple(4**power * 65536 for power in range(8))
COST = CollectiveCost(latency_s=20e-6, bandwidth_bytes_per_s=100e9)


def calibration(bandwidth: float, world_size: int = 2) -> Calibration:
    cost = dataclasses.replace(COST, bandwidth_bytes_per_s=bandwidth)
    return Calibration(
        world_size=world_size,
        all_gather=cost,
        reduce_scatter=cost,
        all_reduce=cost,
        flops_per_s={"bfloat16": 600e12},
        launch_overhead_s=5e-6,
        copy_bytes_per_s=1e12,
    )


def samples(cost: CollectiveCost) -> list[tuple[int, float]]:
    return [(size, cost.time_s(size)) for size in SIZES]


def test_exact_samples_give_their_constants_back() -> None:
    found = fit(samples(COST))
    assert found.latency_s == pytest.approx(20e-6, rel=1e-3)
    assert found.bandwidth_bytes_per_s == pytest.approx(100e9, rel=1e-3)
    assert fit_error_ratio(found, samples(COST)) < 1e-3


@pytest.mark.parametrize("disturbed", [0, 3, 7])
def test_one_disturbed_sample_hardly_bends_the_line(disturbed: int) -> None:
    taken = samples(COST)
    taken[disturbed] = (taken[disturbed][0], 10 * taken[disturbed][1])
    found = fit(taken)
    errors = [abs(found.time_s(size) / COST.time_s(size) - 1) for size in SIZES]
    assert sorted(errors)[-2] < 0.25


def test_a_link_without_visible_latency_has_a_positive_one() -> None:
    found = fit([(size, size / 1e9) for size in SIZES])
    assert 0 < found.latency_s < 1e-6
    assert found.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.01)


@pytest.mark.parametrize("broken", [[(65536, 1e-3)], [(65536, 1e-3)] * 2, [(1, 0.0), (2, 1e-3)]])
def test_samples_that_make_no_line_are_refused(broken: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="two message sizes and positive times"):
        fit(broken)


def test_a_ring_passes_all_but_a_ranks_own_share_over_its_link() -> None:
    assert bus_bytes_per_s(calibration(100e9, world_size=4)) == pytest.approx(75e9)
    assert bus_bytes_per_s(calibration(100e9, world_size=1)) is None


@pytest.mark.parametrize(
    ("bus_gb_per_s", "num_nodes", "device", "name", "scenario"),
    [
        (330, 1, "gpu", "NVLink", Scenario.HIGH_THROUGHPUT),
        (45, 1, "gpu", "PCIe", Scenario.BALANCED),
        (9, 1, "gpu", "host memory", Scenario.STABLE),
        (46, 2, "gpu", "InfiniBand 400G", Scenario.HIGH_THROUGHPUT),
        (22, 2, "gpu", "InfiniBand 200G", Scenario.BALANCED),
        (1.2, 2, "gpu", "Ethernet", Scenario.STABLE),
        (330, 1, "cpu", "host memory or Ethernet", Scenario.STABLE),
    ],
)
def test_a_link_is_named_by_what_it_reaches(
    bus_gb_per_s: float, num_nodes: int, device: str, name: str, scenario: Scenario
) -> None:
    found = link_class(calibration(2 * bus_gb_per_s * 1e9), num_nodes=num_nodes, device=device)
    assert found is not None
    assert found.name.startswith(name)
    assert found.scenario is scenario


def test_one_rank_has_no_link() -> None:
    assert link_class(calibration(1e9, world_size=1), num_nodes=1, device="gpu") is None


def test_the_tokens_that_hide_a_gather_do_not_depend_on_the_layer() -> None:
    # 2 bytes / 300e9 B/s = 2 x tokens / 600e12 FLOP/s, hence tokens = 600e12 / 300e9
    assert hiding_tokens(calibration(300e9), dtype="bfloat16") == 2000
    assert hiding_tokens(calibration(300e9), dtype="float32") is None
    assert hiding_tokens(calibration(300e9, world_size=1), dtype="bfloat16") is None


def test_more_ranks_keep_what_a_link_moves_and_pay_a_round_of_latency_each() -> None:
    two = calibration(100e9)
    eight = at_world_size(two, 8)
    # a link passed 1/2 of the message, and passes 7/8 of it
    assert eight.all_gather.bandwidth_bytes_per_s == pytest.approx(100e9 * (1 / 2) / (7 / 8))
    assert bus_bytes_per_s(eight) == pytest.approx(bus_bytes_per_s(two))
    assert eight.reduce_scatter.latency_s == pytest.approx(7 * 20e-6)
    assert (eight.world_size, eight.flops_per_s) == (8, two.flops_per_s)


def test_the_way_back_gives_the_constants_that_were_measured() -> None:
    two = calibration(100e9)
    back = at_world_size(at_world_size(two, 8), 2)
    assert back.all_reduce.latency_s == pytest.approx(two.all_reduce.latency_s)
    assert back.all_reduce.bandwidth_bytes_per_s == pytest.approx(100e9)


def test_one_rank_has_no_link_to_tell_of() -> None:
    with pytest.raises(ValueError, match="no link between 1 ranks"):
        at_world_size(calibration(100e9, world_size=1), 8)
