"""Rollout servers that are ended: real actors with children that outlive them.

Starting them again needs verl's workers: ``test_live_rollout.py``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from local_ray import local_ray
from rollout_servers import Balancer, RolloutServer

from autotune.errors import RolloutFailedError
from autotune.verl_bridge.job_processes import end_tree
from autotune.verl_bridge.rollout_restart import Server, end_servers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def connected() -> Iterator[None]:
    with local_ray(num_cpus=2):
        yield


class Replica:
    def __init__(self, server: Any) -> None:
        self.servers = [server]


class Manager:
    """verl's manager of servers, as far as ending them goes."""

    def __init__(self, names: Sequence[str], note: Path | None = None) -> None:
        make: Any = ray.remote(RolloutServer)
        make_balancer: Any = ray.remote(Balancer)
        self.actors = [make.options(name=name, num_cpus=0).remote(note) for name in names]
        self.rollout_replicas = [Replica(actor) for actor in self.actors]
        self.server_handles = self.actors
        self.server_addresses = [f"at {name}" for name in names]
        self.global_load_balancer = make_balancer.options(num_cpus=0).remote(
            [*self.server_addresses, "another"]
        )

    def get_replicas(self) -> list[Replica]:
        return self.rollout_replicas

    def get_addresses(self) -> list[str]:
        return self.server_addresses

    def children(self) -> list[int]:
        return ray.get([actor.child.remote() for actor in self.actors])


class Workers:
    """One worker on the servers' node."""

    def await_end_of(self, servers: Sequence[Server]) -> list[list[str]]:
        return [end_tree([key for server in servers for key in server.processes], 0.5)]


class HelplessWorkers:
    """A worker whose node does not let go of a process."""

    def await_end_of(self, servers: Sequence[Server]) -> list[list[str]]:
        return [["123 (stuck in its driver)"], []]


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_no_process_of_a_server_survives_it() -> None:
    manager = Manager(["a", "b"])
    children = manager.children()
    servers = end_servers(manager, Workers())
    assert [server.name for server in servers] == ["a", "b"]
    for server, child in zip(servers, children, strict=True):
        assert {pid for pid, _ in server.processes} > {child}
    assert all(is_gone(pid) for server in servers for pid, _ in server.processes)


def test_their_names_can_be_taken_again_at_once() -> None:
    for _ in range(3):
        end_servers(Manager(["again"]), Workers())


def test_manager_and_balancer_know_none_of_them_afterwards() -> None:
    manager = Manager(["c"])
    end_servers(manager, Workers())
    assert (manager.get_replicas(), manager.get_addresses()) == ([], [])
    assert ray.get(manager.global_load_balancer.servers.remote()) == ["another"]


def test_an_engine_is_asked_to_end_its_processes_first(tmp_path: Path) -> None:
    end_servers(Manager(["d"], tmp_path / "asked"), Workers())
    assert (tmp_path / "asked").exists()


def test_a_process_that_stays_is_an_error() -> None:
    manager = Manager(["e"])
    (child,) = manager.children()
    with pytest.raises(RolloutFailedError, match="do not end: 123 .stuck in its driver"):
        end_servers(manager, HelplessWorkers())
    psutil.Process(child).kill()


def test_a_server_that_is_dead_already_is_an_error() -> None:
    manager = Manager(["f"])
    (child,) = manager.children()
    ray.kill(manager.actors[0])
    with pytest.raises(ray.exceptions.RayActorError):
        end_servers(manager, Workers())
    psutil.Process(child).kill()
