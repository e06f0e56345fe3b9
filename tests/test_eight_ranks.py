"""The real job on eight gloo ranks: on one machine, and over two Ray nodes of four ranks each.

Both compute the same: what differs is where the ranks are. About 12 GiB of memory each.
"""

import contextlib
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import ray

from autotune.config import Sweep, load_sweep
from autotune.in_order import SettingRun, run_live
from autotune.objective import TrialState
from autotune.tuning import cluster

ROOT = Path(__file__).parents[1]
NUM_RANKS = 8
LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "one node": ("resources.nodes=1", "resources.ranks_per_node=8"),
    "two nodes": (
        "resources.nodes=2",
        "resources.ranks_per_node=4",
        "resources.strategy=STRICT_SPREAD",
    ),
}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]


def load(layout: str, folder: Path) -> Sweep:
    """The quickstart on eight ranks: 8 prompts x 4 answers are 4 sequences a rank."""
    text = (ROOT / "search_spaces" / "quickstart_cpu.yaml").read_text()
    one_server = "rollout.tensor_model_parallel_size="
    assert one_server + "2" in text
    file = folder / "sweep.yaml"
    file.write_text(text.replace(one_server + "2", f"{one_server}{NUM_RANKS}"))
    protocol = ("trial.measured_steps=1", "trial.startup_timeout_s=900", "trial.step_timeout_s=300")
    return load_sweep(file, [*LAYOUTS[layout], *protocol])


@contextlib.contextmanager
def two_nodes(sweep: Sweep) -> Iterator[None]:
    """Two Ray nodes with room for four ranks each, and a head that has none."""
    from ray.cluster_utils import Cluster

    simulated = Cluster(initialize_head=True, head_node_args={"num_cpus": 3})
    try:
        for _ in range(2):
            simulated.add_node(num_cpus=6)
        with cluster(sweep, simulated.address):
            yield
    finally:
        simulated.shutdown()


class Workers:
    """Looks for verl's workers while a trial runs; knows how many each node had at most."""

    def __init__(self) -> None:
        self.by_node: list[int] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Workers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(2.0):
            nodes = Counter(
                actor["Address"]["NodeID"]
                for actor in ray._private.state.actors().values()
                if "WorkerDict" in actor["ActorClassName"] and actor["State"] == "ALIVE"
            )
            self.by_node = max(self.by_node, sorted(nodes.values()), key=sum)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[SettingRun, list[int]]]:
    make_assets = [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"]
    subprocess.run(make_assets, cwd=ROOT, check=True)
    before = os.getcwd()
    os.chdir(ROOT)
    found = {}
    try:
        for layout in LAYOUTS:
            folder = tmp_path_factory.mktemp("eight")
            sweep = load(layout, folder)
            with cluster(sweep, None) if layout == "one node" else two_nodes(sweep):
                with Workers() as workers:
                    [run] = run_live(sweep, [sweep.space.baseline()], folder / "logs")
                found[layout] = run, workers.by_node
    finally:
        os.chdir(before)
    return found


Runs = dict[str, tuple[SettingRun, list[int]]]


@pytest.mark.parametrize(("layout", "expected"), [("one node", [8]), ("two nodes", [4, 4])])
def test_the_ranks_are_where_they_should_be(runs: Runs, layout: str, expected: list[int]) -> None:
    assert runs[layout][1] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_trial_completes_with_every_number(runs: Runs, layout: str) -> None:
    record = runs[layout][0].record
    assert (record.state, record.cause) == (TrialState.COMPLETE, "")
    # Eight ranks that agree, and a policy that the update sees as it was scored.
    assert 0 <= _value(record.metrics, "rank_divergence") < 1e-6
    assert 0 <= _value(record.metrics, "kl_std") < 1e-4
    assert 0 < _value(record.metrics, "exposed_comm_ratio") < 1
    for name in ("throughput_tokens_per_s_per_gpu", "comm_all_gather_s", "peak_reserved_gib"):
        assert _value(record.metrics, name) > 0


def test_every_rank_reports(runs: Runs) -> None:
    for run, _ in runs.values():
        values: Any = run.steps[1].metrics["autotune/kl_per_rank"]
        assert len(values) == NUM_RANKS and all(math.isfinite(value) for value in values)


def test_two_nodes_compute_what_one_computes(runs: Runs) -> None:
    one, two = (runs[layout][0].steps[0].metrics for layout in LAYOUTS)
    assert one["actor/grad_norm"] == pytest.approx(two["actor/grad_norm"], rel=1e-5)
    assert one["critic/score/mean"] == pytest.approx(two["critic/score/mean"], rel=1e-6)


def _value(metrics: Mapping[str, float | None], name: str) -> float:
    value = metrics[name]
    assert value is not None, name
    return value
