"""Asking every node of a cluster what it is like.

Runs in the driver; starts one Ray task on every node, which reserves nothing, and waits for all of
them. The sweep's folder is looked at where the driver runs.
"""

import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from autotune.config import Sweep
from autotune.doctor.findings import DISTRIBUTION, ClusterFacts, watched
from autotune.doctor.node_probe import NodeFacts, ProbeRequest, probe
from autotune.errors import SweepError
from autotune.sweep import store_of
from autotune.tuning import connection, storage_units
from autotune.verl_bridge.overrides import leaves
from autotune.verl_bridge.paths import needed_paths

_ROLLOUT_MODULES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
"""verl's name of a rollout engine -> module that it needs."""

_TIMEOUT_S = 55


def examine(sweep: Sweep, address: str | None) -> ClusterFacts:
    """Return the facts of a cluster.

    Args:
        sweep: The loaded sweep.
        address: Ray cluster to look at; None starts a local one.

    Raises:
        SweepError: A node did not answer.
    """
    with connection(sweep, address):
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]
        mine = ray.get_runtime_context().get_node_id()
        # The driver's node first: what only concerns the driver is asked of it.
        alive.sort(key=lambda node: (node["NodeID"] != mine, node["NodeManagerAddress"]))
        nodes = _probe_all(request_of(sweep), [node["NodeID"] for node in alive])
        resources = [node["Resources"] for node in alive]
    problem, free_gib = _output(store_of(sweep).folder)
    return ClusterFacts(
        nodes=nodes,
        resources=resources,
        num_storage_units=storage_units(sweep),
        output_problem=problem,
        output_free_gib=free_gib,
    )


def request_of(sweep: Sweep) -> ProbeRequest:
    """Return what to look at on every node."""
    base = leaves(sweep.base_config)
    ray_init: Any = OmegaConf.to_container(sweep.base_config.ray_kwargs.ray_init, resolve=True)
    environment = (ray_init.get("runtime_env") or {}).get("env_vars") or {}
    return ProbeRequest(
        packages=watched(sweep),
        paths=needed_paths(base, Path.cwd()),
        device=sweep.config.resources.device,
        rollout_module=_ROLLOUT_MODULES.get(str(base["actor_rollout_ref.rollout.name"]), ""),
        environment={str(name): str(value) for name, value in environment.items()},
    )


def _probe_all(request: ProbeRequest, node_ids: list[str]) -> list[NodeFacts]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0)(probe)
    references = [
        task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(request)
        for node_id in node_ids
    ]
    try:
        answers: list[NodeFacts] = ray.get(references, timeout=_TIMEOUT_S)
    except (ray.exceptions.RayError, ImportError) as error:
        raise SweepError(
            f"A node could not be examined: {str(error).strip().splitlines()[-1]}.",
            f"Is {DISTRIBUTION} {version(DISTRIBUTION)} installed on every node?",
        ) from error
    return answers


def _output(folder: Path) -> tuple[str | None, float | None]:
    """Say why the sweep's folder cannot be written, and how much is free there."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        return f"{existing} is a file, not a folder", None
    if not os.access(existing, os.W_OK):
        return f"{existing} cannot be written", None
    return None, shutil.disk_usage(existing).free / 2**30
