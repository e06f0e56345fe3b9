"""A sweep that waits for room says so: a toy trial on a real local Ray that others hold."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from local_ray import local_ray
from ray import tune
from ray.tune.search import Searcher
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from autotune.placement import bundles
from autotune.settings import ResourcesConfig
from autotune.tuning import run_tuner
from autotune.waiting import WaitsForRoom

ROOT = Path(__file__).parents[1]
RESOURCES = ResourcesConfig(nodes=1, ranks_per_node=2, device="cpu")
NUM_CPUS = 7

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class One(Searcher):
    """Suggests one trial."""

    is_asked = is_over = False

    def suggest(self, trial_id: str) -> Any:
        if self.is_asked:
            return Searcher.FINISHED
        self.is_asked = True
        return {"number": 0}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.is_over = not error

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


class Toy(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"done": True}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_ray(num_cpus=NUM_CPUS):
        yield


def held(num_cpus: int) -> PlacementGroup:
    group = placement_group([{"CPU": float(num_cpus)}])
    ray.get(group.ready())
    return group


def run(callback: WaitsForRoom) -> One:
    searcher = One()
    trainable = tune.with_resources(
        Toy, tune.PlacementGroupFactory([{}, *bundles(RESOURCES)], strategy="PACK")
    )
    run_tuner(searcher, trainable, max_concurrent=1, callbacks=[callback])
    return searcher


def test_what_is_wanted_and_what_is_free_is_said_and_the_trial_runs_once_there_is_room() -> None:
    others, said = held(NUM_CPUS - 1), list[str]()

    def say(text: str) -> None:
        said.append(text)
        remove_placement_group(others)

    searcher = run(WaitsForRoom(RESOURCES, 1, patience_s=0.5, say=say))
    assert searcher.is_over
    (text,) = said
    assert "one needs 1 x (2 CPU), PACK, and 1 CPU are free in the whole cluster" in text


def test_a_cluster_that_has_become_too_small_is_said_to_be() -> None:
    others, said = held(NUM_CPUS), list[str]()

    def say(text: str) -> None:
        said.append(text)
        remove_placement_group(others)

    # 2 ranks, 4 helpers and 2 storage units: one CPU more than there is.
    run(WaitsForRoom(RESOURCES, 2, patience_s=0.5, say=say))
    (text,) = said
    assert text.endswith("One trial needs 8 CPU, the cluster has 7. It waits for a node to come.")


def test_a_trial_that_begins_at_once_is_not_spoken_of() -> None:
    said = list[str]()
    assert run(WaitsForRoom(RESOURCES, 1, patience_s=60, say=said.append)).is_over
    assert said == []


def test_a_trial_that_can_never_fit_ends_the_sweep_before_it_begins(tmp_path: Path) -> None:
    make_assets = [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"]
    subprocess.run(make_assets, cwd=ROOT, check=True)
    file = ROOT / "search_spaces" / "quickstart_cpu.yaml"
    address = ray.get_runtime_context().gcs_address
    words = [sys.executable, "-m", "autotune.cli", "sweep", str(file), "resources.nodes=2"]
    done = subprocess.run(
        [*words, f"output_dir={tmp_path}", "--address", address],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert "One trial needs 9 CPU, the cluster has 7." in done.stderr
    assert "use a larger cluster" in done.stderr
