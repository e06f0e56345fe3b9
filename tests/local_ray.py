"""A Ray of the tests' own on this machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

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
