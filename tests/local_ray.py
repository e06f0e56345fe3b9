"""A Ray of the tests' own on this machine."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

_ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def local_ray(num_cpus: int) -> Iterator[None]:
    """Start Ray on this machine and stop it afterwards.

    Its workers import what the tests import. `address="local"` matters: without it Ray joins
    whichever cluster this machine ran last, a killed one too.
    """
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    try:
        yield
    finally:
        ray.shutdown()


def cluster_with_dashboard(num_cpus: int, *, agent_port: int = 0) -> tuple[Any, str]:
    """Start the head of a cluster; return it and the dashboard's address.

    Args:
        num_cpus: Of the head.
        agent_port: Where the head's agent listens, which starts jobs. 0: any free one, so that
            several clusters find room on one machine; Ray's own default is always the same.
    """
    from ray.cluster_utils import Cluster

    port = free_port()
    arguments = {
        "num_cpus": num_cpus,
        "include_dashboard": True,
        "dashboard_port": port,
        "dashboard_agent_listen_port": agent_port,
    }
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    return cluster, f"http://127.0.0.1:{port}"


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
