"""Two gloo ranks measure each other for real: sizes, order and agreement, not speed."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RANK = """
import json, sys
from autotune.measure.probe import RankProbe

rank, address = int(sys.argv[1]), sys.argv[2]
probe = RankProbe("cpu")
found = {"backend": probe.join(rank=rank, num_ranks=2, address=address)}
for name in ("all_gather", "reduce_scatter", "all_reduce"):
    found[name] = probe.collective(name, budget_s=0.0)
found["longer"] = probe.collective("all_reduce", budget_s=0.5)
found["flops"] = probe.flops_per_s("float32")
found["copy"] = probe.copy_bytes_per_s()
found["launch"] = probe.launch_overhead_s()
probe.leave()
print(json.dumps(found))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RANK, str(rank), address],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=280)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_both_ranks_come_to_the_same_samples(ranks: list[dict[str, Any]]) -> None:
    for name in ("all_gather", "reduce_scatter", "all_reduce", "longer"):
        assert ranks[0][name] == ranks[1][name]


def test_without_a_budget_only_the_two_smallest_sizes_are_taken(
    ranks: list[dict[str, Any]],
) -> None:
    for name in ("all_gather", "reduce_scatter", "all_reduce"):
        assert [size for size, _ in ranks[0][name]] == [65536, 262144]


def test_sizes_rise_fourfold_and_every_time_is_positive(ranks: list[dict[str, Any]]) -> None:
    sizes = [size for size, _ in ranks[0]["longer"]]
    assert sizes == [65536 * 4**power for power in range(len(sizes))]
    assert all(seconds > 0 for _, seconds in ranks[0]["longer"])


def test_compute_copies_and_launches_are_agreed_and_plausible(ranks: list[dict[str, Any]]) -> None:
    for name, low, high in (("flops", 1e8, 1e13), ("copy", 1e6, 1e12), ("launch", 1e-8, 1e-1)):
        assert ranks[0][name] == ranks[1][name]
        assert low < ranks[0][name] < high


def test_ranks_without_an_accelerator_meet_over_gloo(ranks: list[dict[str, Any]]) -> None:
    assert {rank["backend"] for rank in ranks} == {"gloo"}
