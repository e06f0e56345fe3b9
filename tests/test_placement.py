"""How many trials a cluster can hold, counted by hand."""

import pytest

from autotune.placement import node_bundle, trials_at_once, why_none_fits
from autotune.settings import ResourcesConfig

BIG = {"CPU": 64.0, "GPU": 8.0}
SMALL = {"CPU": 64.0, "GPU": 4.0}


def resources(nodes: int, ranks: int, strategy: str = "PACK") -> ResourcesConfig:
    return ResourcesConfig(nodes=nodes, ranks_per_node=ranks, device="gpu", strategy=strategy)


def test_the_ranks_of_a_node_are_reserved_together() -> None:
    assert node_bundle(resources(2, 4)) == {"CPU": 4.0, "GPU": 4.0}


def test_without_gpus_a_rank_reserves_cpus_alone() -> None:
    cpu = ResourcesConfig(nodes=1, ranks_per_node=2, device="cpu", cpus_per_rank=3)
    assert node_bundle(cpu) == {"CPU": 6.0}


@pytest.mark.parametrize(
    ("nodes", "ranks", "strategy", "cluster", "expected"),
    [
        (1, 8, "PACK", [BIG, BIG], 2),
        (1, 3, "PACK", [BIG, SMALL], 3),  # 8 // 3 + 4 // 3: a node's ranks stay together.
        (2, 4, "PACK", [BIG, SMALL], 1),
        (2, 4, "STRICT_PACK", [BIG, SMALL], 1),
        (2, 4, "STRICT_PACK", [SMALL, SMALL], 0),
        (2, 4, "STRICT_SPREAD", [BIG], 0),
        (2, 4, "STRICT_SPREAD", [BIG, BIG], 2),
        (2, 4, "STRICT_SPREAD", [BIG, SMALL, SMALL], 2),
        (2, 4, "SPREAD", [BIG], 1),
        (1, 1, "PACK", [{"CPU": 13.0, "GPU": 8.0}], 2),  # Each needs 1 + 1 + 4 CPUs.
        (1, 1, "PACK", [], 0),
    ],
)
def test_trials_at_once(
    nodes: int, ranks: int, strategy: str, cluster: list[dict[str, float]], expected: int
) -> None:
    assert trials_at_once(resources(nodes, ranks, strategy), 1, cluster) == expected


@pytest.mark.parametrize(
    ("nodes", "ranks", "strategy", "cluster", "message"),
    [
        (2, 8, "PACK", [BIG], "needs 16 GPU, the cluster has 8"),
        (1, 1, "PACK", [{"CPU": 5.0, "GPU": 1.0}], "needs 6 CPU, the cluster has 5"),
        (1, 8, "PACK", [SMALL, SMALL], "each on one node; 0 of 2 nodes have room"),
        (2, 4, "STRICT_SPREAD", [BIG], "on different nodes; 1 of 1 nodes have room"),
        (2, 4, "STRICT_PACK", [SMALL, SMALL], "on one node; 2 of 2 nodes have room"),
    ],
)
def test_what_a_cluster_lacks_is_said(
    nodes: int, ranks: int, strategy: str, cluster: list[dict[str, float]], message: str
) -> None:
    assert message in why_none_fits(resources(nodes, ranks, strategy), 1, cluster)


def test_nothing_is_said_when_a_trial_fits() -> None:
    assert why_none_fits(resources(1, 8), 1, [BIG]) == ""
