"""Submitting, watching, stopping, resuming and fetching through the command line, on a real Ray
head with its dashboard. The job plays a driver (``toy_driver.py``); test_service.py runs verl.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from local_ray import cluster_with_dashboard

from autotune.cluster import SweepJobs
from autotune.errors import SweepError

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"
WAIT_S = 600

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


class Laptop:
    """A folder with a sweep file, and the commands that are run there."""

    def __init__(self, folder: Path, address: str, python: Path, output: Path) -> None:
        self.folder, self.address, self.python = folder, address, python
        self.records = output / "toy"

    def run(self, command: str, *arguments: str) -> str:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "autotune.cli", command, *arguments),
                *("--address", self.address),
            ],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def submit(self, command: str = "submit") -> str:
        return self.run(command, "sweep.yaml", "--python", str(self.python))

    def wait(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not is_so():
            is_lost = ": failed" in self.run("status", "sweep.yaml")
            assert not is_lost and time.monotonic() < deadline_s, self.run("logs", "sweep.yaml")
            time.sleep(0.5)


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    folder, output = tmp_path_factory.mktemp("laptop"), tmp_path_factory.mktemp("output")
    content = yaml.safe_load(QUICKSTART.read_text())
    content |= {"name": "toy", "output_dir": str(output)}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
    tiny = folder / "demo" / "tiny"
    (tiny / "model").mkdir(parents=True)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    (tiny / "model" / "config.json").write_text(json.dumps(heads))
    for name in ("train.parquet", "test.parquet", "reward.py"):
        (tiny / name).touch()
    python = folder / "python"
    python.write_text(
        f"#!/bin/sh\nPYTHONPATH={ROOT}:{ROOT / 'tests'} "
        f'exec {sys.executable} {ROOT / "tests" / "toy_driver.py"} "$@"\n'
    )
    python.chmod(0o755)
    cluster, address = cluster_with_dashboard(num_cpus=2)
    yield Laptop(folder, address, python, output)
    cluster.shutdown()


def test_a_sweep_is_submitted_once_watched_stopped_resumed_and_fetched(laptop: Laptop) -> None:
    assert "Submitted as autotune-toy-" in laptop.submit()
    assert "was submitted before" in laptop.submit()
    laptop.wait(lambda: "1 of 30 trials" in laptop.run("status", "sweep.yaml"))
    assert ": running" in laptop.run("status", "sweep.yaml")
    log = laptop.run("logs", "sweep.yaml")
    assert "driver: running" in log
    [worker] = [line for line in log.splitlines() if line.startswith("worker: ")]
    assert "_ray_pkg_" in worker and "['autotune.verl_bridge.plugin']" in worker
    assert "last line of the job" in laptop.run("logs", "sweep.yaml", "--trial", "0")
    assert "There is no log of trial 77" in laptop.run("logs", "sweep.yaml", "--trial", "77")

    assert "starts no more trials" in laptop.run("stop", "sweep.yaml")
    laptop.wait(lambda: "stopped; its finished" in laptop.run("status", "sweep.yaml"))
    assert "go on     autotune resume" in laptop.submit()

    assert "-r2." in laptop.submit("resume")
    laptop.wait(lambda: ": finished" in laptop.run("status", "sweep.yaml"))
    assert "driver: done" in laptop.run("logs", "-f", "sweep.yaml")
    assert laptop.run("status").count("autotune-toy-") == 1

    assert "files in here" in laptop.run("fetch", "sweep.yaml", "--out", "here")
    here = laptop.folder / "here"
    for path in laptop.records.rglob("*"):
        if path.is_file() and path.name != "sweep.lock":
            assert (here / path.relative_to(laptop.records)).read_bytes() == path.read_bytes()


def test_a_sweep_that_was_never_submitted_is_bad_input(laptop: Laptop) -> None:
    said = laptop.run("status", "autotune-other-01234567")
    assert "knows no sweep 'autotune-other-01234567'" in said


def test_a_cluster_that_does_not_answer_is_one_line(laptop: Laptop) -> None:
    nobody = Laptop(laptop.folder, "http://127.0.0.1:9", laptop.python, laptop.records)
    assert "No Ray dashboard answers at http://127.0.0.1:9" in nobody.run("status")


def test_a_head_whose_agent_found_its_port_taken_is_told_what_to_do() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        taken = other.getsockname()[1]
        cluster, address = cluster_with_dashboard(num_cpus=1, agent_port=taken)
        try:
            jobs = SweepJobs(address, agent_timeout_s=1.0)
            with pytest.raises(SweepError, match="--dashboard-agent-listen-port=0"):
                jobs.start(entrypoint="true")
        finally:
            cluster.shutdown()
