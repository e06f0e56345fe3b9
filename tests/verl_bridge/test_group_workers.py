"""verl's workers on a trial's placement group, on several Ray nodes of this machine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TrialStartError
from autotune.verl_bridge.group_workers import group_workers

CASE = Path(__file__).with_name("group_workers_case.py")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


def run(strategy: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(CASE), strategy], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(("strategy", "num_nodes"), [("SPREAD", 3), ("STRICT_PACK", 1)])
def test_ranks_are_numbered_node_by_node(strategy: str, num_nodes: int) -> None:
    told = run(strategy)
    workers = told["workers"]
    assert [worker["rank"] for worker in workers] == list(range(6))
    nodes = [worker["node"] for worker in workers]
    assert [nodes[rank] for rank in (0, 2, 4)] == [nodes[rank] for rank in (1, 3, 5)]
    assert len(set(nodes)) == num_nodes
    assert {worker["local_world_size"] for worker in workers} == {"2"}
    assert {worker["group"] for worker in workers} == {told["group"]}


def test_another_version_of_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.verl_bridge.group_workers.VERL_VERSIONS", ("0.0.1",))
    with pytest.raises(TrialStartError, match="verl 0.9.1 is installed; .* in 0.0.1 only"):
        with group_workers(None):
            pass
