"""What a killed sweep left in a cluster that lives on: real placement groups, actors, processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from local_ray import local_ray
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.leftovers import cleared, identity_of, named_groups, remove_leftovers
from autotune.verl_bridge.job_processes import JOB_ENV, job_name

OURS, OTHERS = "0123456789abcdef", "0123456789abcdee"
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with local_ray(num_cpus=4):
        yield


def group_of(sweep_id: str) -> Any:
    group = named_groups(sweep_id, [{"CPU": 1}], "PACK").to_placement_group()
    ray.get(group.ready())
    return group


def states() -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in placement_group_table().values()}


def test_an_identity_is_made_once_for_each_folder(tmp_path: Path) -> None:
    first = identity_of(tmp_path / "a")
    assert identity_of(tmp_path / "a") == first != identity_of(tmp_path / "b")


def test_groups_of_one_sweep_have_names_of_their_own(cluster: None) -> None:
    group_of(OURS)
    group_of(OURS)
    ours = [name for name, state in states().items() if OURS in name and state == "CREATED"]
    assert len(ours) == 2
    assert len(remove_leftovers(OURS).placement_groups) == 2


def test_what_ran_before_is_gone_at_the_start_and_what_runs_now_at_the_end(
    cluster: None, tmp_path: Path
) -> None:
    ours = identity_of(tmp_path)
    group_of(ours)
    with cleared(tmp_path):
        assert [states()[name] for name in states() if ours in name] == ["REMOVED"]
        group_of(ours)
    assert [states()[name] for name in states() if ours in name] == ["REMOVED"] * 2


def test_only_the_sweeps_own_groups_actors_and_processes_are_removed(cluster: None) -> None:
    ours, others = group_of(OURS), group_of(OTHERS)
    anonymous = placement_group([{"CPU": 1}])
    ray.get(anonymous.ready())

    class Sleeper:
        """Goes to its worker by value."""

        def node(self) -> int:
            return os.getpid()

    actors: dict[str, Any] = {
        name: ray.remote(Sleeper)
        .options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group))
        .remote()
        for name, group in (("ours", ours), ("others", others))
    }
    for actor in actors.values():
        ray.get(actor.node.remote())
    processes = {
        sweep_id: subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(300)"],
            env={**os.environ, JOB_ENV: job_name(sweep_id, "group")},
        )
        for sweep_id in (OURS, OTHERS)
    }
    try:
        removed = remove_leftovers(OURS)
        assert len(removed.placement_groups) == 1 and OURS in removed.placement_groups[0]
        assert [text.split()[0] for text in removed.processes] == [str(processes[OURS].pid)]
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actors["ours"].node.remote())
        assert ray.get(actors["others"].node.remote()) > 0
        assert processes[OURS].wait(timeout=10) < 0 and processes[OTHERS].poll() is None
        assert remove_leftovers(OURS).placement_groups == []
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
