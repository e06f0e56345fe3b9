"""However a sweep's trial ends, a cluster that lives on is as it was: no actor, no placement group
and no process of the trial is left. Real verl jobs on a real cluster, one for each way to end.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import yaml

from autotune.leftovers import identity_of
from autotune.verl_bridge.job_processes import processes_of

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"
GONE_S = 10

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

REWARDS = {
    "good": "return 1.0 if len(solution_str) % 2 else 0.0",
    "raises": "raise RuntimeError('a reward that is broken')",
    "hangs": "time.sleep(600)",
}
"""What the job's reward does; verl runs it in processes of its own."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    subprocess.run(
        [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"], cwd=ROOT, check=True
    )
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


class Sweep:
    """A sweep on the cluster, in a process of its own."""

    def __init__(self, folder: Path, address: str, reward: str) -> None:
        content = yaml.safe_load(QUICKSTART.read_text())
        (folder / "reward.py").write_text(
            "import time\n\n\ndef compute_score(data_source, solution_str, ground_truth, "
            f"extra_info=None):\n    {REWARDS[reward]}\n"
        )
        overrides = [
            one
            for one in content["base"]["overrides"]
            if not one.startswith("reward.custom_reward_function.path")
        ]
        overrides.append("reward.custom_reward_function.path=reward.py")
        content["base"]["overrides"] = overrides
        content |= {"name": "ends", "calibrate": False}
        content["trial"] |= {"measured_steps": 1, "profiled_steps": 0, "step_timeout_s": 30}
        content["search"] |= {"num_trials": 1}
        content["verify"] = {"enabled": False}
        content["wandb"] = {"mode": "disabled"}
        (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
        (folder / "demo").symlink_to(ROOT / "demo")
        self.store = folder / "sweeps" / "ends"
        self.driver = subprocess.Popen(
            [sys.executable, "-m", "autotune.cli", "sweep", "sweep.yaml", "--address", address],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def wait_for_step(self) -> None:
        """Wait until a step is kept: the job is in its next one, or about to end."""
        while not (self.store / "steps.jsonl").exists():
            assert self.driver.poll() is None, self.driver.communicate()[0]
            time.sleep(0.1)

    def end(self) -> str:
        """Wait for the driver's end; returns what it printed."""
        return self.driver.communicate(timeout=300)[0]

    def processes(self) -> list[psutil.Process]:
        return processes_of(identity_of(self.store))


def in_cluster() -> dict[str, list[Any]]:
    """What lives in the cluster."""
    groups = ray.util.placement_group_table().values()
    return {
        "actors": [
            actor["ActorClassName"]
            for actor in ray._private.state.actors().values()
            if actor["State"] != "DEAD"
        ],
        "placement groups": [group["name"] for group in groups if group["state"] != "REMOVED"],
    }


def done(sweep: Sweep) -> str:
    text = sweep.end()
    assert sweep.driver.returncode == 0, text
    return text


def failed(sweep: Sweep) -> str:
    text = sweep.end()
    assert sweep.driver.returncode == 1 and "Traceback" not in text, text
    return text


def stopped(sweep: Sweep) -> str:
    sweep.wait_for_step()
    sweep.driver.send_signal(signal.SIGINT)
    text = sweep.end()
    assert sweep.driver.returncode == 130, text
    return text


def killed(sweep: Sweep) -> str:
    sweep.wait_for_step()
    sweep.driver.kill()
    return sweep.end()


@pytest.mark.parametrize(
    ("reward", "ends", "said"),
    [
        ("good", done, "1 of 1 trials finished"),
        ("raises", failed, "a reward that is broken"),
        ("hangs", failed, "finished no step for 30 s"),
        ("good", stopped, "Interrupted"),
        ("good", killed, ""),
    ],
    ids=["done", "failed", "hung", "stopped", "killed"],
)
def test_nothing_of_a_trial_is_left(
    address: str, tmp_path: Path, reward: str, ends: Callable[[Sweep], str], said: str
) -> None:
    nothing: dict[str, list[Any]] = {"actors": [], "placement groups": []}
    assert in_cluster() == nothing
    sweep = Sweep(tmp_path, address, reward)
    while len(in_cluster()["actors"]) < 5:
        assert sweep.driver.poll() is None, sweep.end()
        time.sleep(0.1)
    assert in_cluster()["placement groups"] and sweep.processes()
    assert said in ends(sweep)
    deadline_s = time.monotonic() + GONE_S
    while (in_cluster() != nothing or sweep.processes()) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert in_cluster() == nothing
    assert sweep.processes() == []
