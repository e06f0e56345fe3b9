"""A sweep on a Ray cluster of three nodes on this machine, through the command line: submitted,
watched, robbed of a node, stopped, resumed, fetched. verl runs over two of the nodes.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_ray import cluster_with_dashboard

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"
TIMEOUT_S = 900

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@dataclass
class Service:
    """The cluster, and the folder from which the sweep is submitted."""

    cluster: Any
    nodes: list[Any]
    address: str
    laptop: Path
    home: Path
    disks: Path

    def add_node(self) -> None:
        """Add a node with a disk of its own, as machines have: on a shared one a new node unpacks
        the job's files anew under those that run."""
        disk = self.disks / str(len(list(self.disks.iterdir())))
        disk.mkdir()
        self.nodes.append(self.cluster.add_node(num_cpus=2, temp_dir=str(disk)))

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "autotune.cli", command, *arguments]
        return subprocess.run(
            [*words, "--address", self.address],
            cwd=self.laptop,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def records(self) -> list[dict[str, Any]]:
        path = self.home / "sweeps" / "service" / "trials.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, what: str, is_so: Any) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline_s, (what, self.run("logs", "sweep.yaml").stdout)
            time.sleep(1)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    subprocess.run(
        [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"], cwd=ROOT, check=True
    )
    laptop = tmp_path_factory.mktemp("laptop")
    home = tmp_path_factory.mktemp("cluster_home")
    # What is submitted must lie below the current folder.
    shutil.copytree(ROOT / "demo" / "tiny", laptop / "demo" / "tiny")
    content = yaml.safe_load(QUICKSTART.read_text())
    content |= {"name": "service", "output_dir": str(home / "sweeps"), "calibrate": False}
    content["resources"] |= {"nodes": 2, "ranks_per_node": 1, "strategy": "STRICT_SPREAD"}
    content["trial"] |= {"measured_steps": 1, "profiled_steps": 0, "startup_timeout_s": 600}
    content["search"] |= {"num_trials": 3}
    # Its cold jobs would take longer than all the rest.
    content["verify"] = {"enabled": False}
    (laptop / "sweep.yaml").write_text(yaml.safe_dump(content))
    cluster, address = cluster_with_dashboard(num_cpus=8)
    with tempfile.TemporaryDirectory(prefix="nodes_", dir="/tmp") as disks:
        service = Service(cluster, [], address, laptop, home, Path(disks))
        for _ in range(2):
            service.add_node()
        yield service
        cluster.shutdown()


def test_a_sweep_survives_a_node_and_a_stop(service: Service) -> None:
    submitted = service.run("submit", "sweep.yaml", "--python", sys.executable)
    assert submitted.returncode == 0, submitted.stderr
    assert "Submitted as autotune-service-" in submitted.stdout
    again = service.run("submit", "sweep.yaml", "--python", sys.executable)
    assert "was submitted before" in again.stdout

    # A node dies while a trial runs on it; another takes its place, and the trial is tried again.
    steps = service.home / "sweeps" / "service" / "steps.jsonl"
    service.wait("the first step", steps.exists)
    service.cluster.remove_node(service.nodes.pop(0), allow_graceful=False)
    service.add_node()
    service.wait("the baseline", lambda: len(service.records()) >= 1)
    assert service.records()[0]["state"] == "complete"
    status = service.run("status", "sweep.yaml")
    assert "running" in status.stdout and "of 3 trials" in status.stdout, status.stdout

    stopped = service.run("stop", "sweep.yaml")
    assert "starts no more trials" in stopped.stdout, stopped.stderr
    service.wait("the stop", lambda: ": stopped" in service.run("status", "sweep.yaml").stdout)
    kept = service.records()
    assert 1 <= len(kept) < 3

    resumed = service.run("resume", "sweep.yaml", "--python", sys.executable)
    assert "-r2." in resumed.stdout, resumed.stderr
    service.wait("the end", lambda: ": finished" in service.run("status", "sweep.yaml").stdout)
    assert service.records()[: len(kept)] == kept
    assert [record["number"] for record in service.records()] == [0, 1, 2]

    logs = service.run("logs", "sweep.yaml")
    assert "Records:" in logs.stdout
    assert "verl" in service.run("logs", "sweep.yaml", "--trial", "0").stdout
    fetched = service.run("fetch", "sweep.yaml", "--out", "here")
    assert fetched.returncode == 0, fetched.stderr
    here = service.laptop / "here"
    for name in ("trials.jsonl", "steps.jsonl", "config.yaml", "report.html", "study.journal"):
        there = service.home / "sweeps" / "service" / name
        assert (here / name).read_bytes() == there.read_bytes()
