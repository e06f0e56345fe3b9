"""Ending the rollout's servers in a live job, and starting them again with another configuration.

Runs in the trial's verl process, two functions of it in the servers. verl starts its servers once
and never ends them: they are Ray actors with fixed names, and a rollout engine's processes are
children of theirs, which outlive a killed actor and hold its device memory. So the processes are
listed first, the engine is asked to end them, the actors are killed, and all of them are seen to be
gone before verl's own manager starts new ones. Agent loops stay: they ask verl's balancer for a
server at each request, and the balancer is told of the change. Whatever fails here ends the job.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from autotune.errors import RolloutFailedError
from autotune.verl_bridge.job_processes import ProcessKey, own_tree

ANSWER_S = 30.0
"""How long a server that sleeps or is idle may take to answer."""
SHUTDOWN_S = 30.0
"""How long an engine may take to end its processes."""
NAME_S = 30.0
"""How long Ray may take to give a killed actor's name free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One actor of the rollout, and its processes."""

    name: str
    """The actor's, in the job's namespace; empty where it has none."""
    node_id: str
    processes: tuple[ProcessKey, ...]


def end_servers(manager: Any, workers: Any) -> list[Server]:
    """End all servers of verl's manager, see them gone, and return what they were.

    Args:
        manager: verl's ``LLMServerManager``; no request runs.
        workers: The worker group beside whose ranks the servers run.

    Raises:
        RolloutFailedError: A process or a name stays.
    """
    actors = [actor for replica in manager.get_replicas() for actor in replica.servers]
    servers: list[Server] = ray.get(_ask(actors, _describe), timeout=ANSWER_S)
    ray.get(manager.global_load_balancer.remove_servers.remote(manager.get_addresses()))
    with contextlib.suppress(ray.exceptions.RayError):
        # An engine that does not end by itself is killed.
        ray.get(_ask(actors, _shut_down), timeout=SHUTDOWN_S)
    for actor in actors:
        ray.kill(actor)
    left = sorted({name for names in workers.await_end_of(servers) for name in names})
    if left:
        raise RolloutFailedError(f"Processes of the rollout do not end: {', '.join(left)}.")
    _await_names([server.name for server in servers if server.name])
    manager.rollout_replicas, manager.server_handles, manager.server_addresses = [], [], []
    return servers


def start_servers(manager: Any, config: Any) -> None:
    """Have verl's manager, whose servers are gone, start those of a configuration.

    Args:
        manager: verl's ``LLMServerManager``.
        config: verl's whole configuration.
    """
    type(manager).__init__(
        manager,
        config=config,
        worker_group=manager.worker_group,
        rollout_resource_pool=manager.rollout_resource_pool,
    )
    asyncio.run(manager._initialize_llm_servers())
    servers = dict(zip(manager.server_addresses, manager.server_handles, strict=True))
    ray.get(manager.global_load_balancer.add_servers.remote(servers))


def _ask(actors: Sequence[Any], function: Any) -> list[Any]:
    return [actor.__ray_call__.remote(function) for actor in actors]


def _describe(_server: Any) -> Server:
    context = ray.get_runtime_context()
    return Server(
        name=context.get_actor_name() or "",
        node_id=context.get_node_id(),
        processes=tuple(own_tree()),
    )


def _shut_down(server: Any) -> None:
    """End an engine that lives in processes of its own, as vLLM's; others end with the actor."""
    shutdown = getattr(getattr(server, "engine", None), "shutdown", None)
    if shutdown is not None:
        shutdown()


def _await_names(names: Sequence[str]) -> None:
    deadline = time.monotonic() + NAME_S
    for name in names:
        while _is_taken(name):
            if time.monotonic() > deadline:
                raise RolloutFailedError(
                    f"Ray still has an actor {name} {NAME_S:g} s after it was killed."
                )
            time.sleep(0.05)


def _is_taken(name: str) -> bool:
    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True
