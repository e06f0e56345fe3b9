"""How fast are the links and devices under a sweep's trials? Measured once for each cluster.

Runs in the driver; one actor for each rank runs :class:`autotune.measure.probe.RankProbe` on a
bundle of a trial's own kind of placement group, with the base job's environment. Reads and writes
``calibration.json`` in the sweep's folder, which holds for all of its trials, and
``<output_dir>/.calibration/<key>.json``, which other sweeps on the same cluster find.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from autotune.config import Sweep
from autotune.errors import SweepError
from autotune.models.calibration import Calibration
from autotune.models.calibration_record import SCHEMA_VERSION, CalibrationRecord, read_record
from autotune.models.links import fit
from autotune.objective import timestamp
from autotune.placement import bundles
from autotune.settings import ResourcesConfig
from autotune.store import CALIBRATION_FILE, SweepStore, write_atomic

_Say = Callable[[str], None]
"""Gets what is being measured, for the progress line."""

CACHE_FOLDER = ".calibration"
"""Below the output folder: what was measured for any sweep."""

_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
_DTYPES = {"gpu": ("bfloat16", "float32"), "cpu": ("float32",)}
_BUDGET_S = {"gpu": 8.0, "cpu": 1.0}
"""Seconds for the message sizes of one collective; large sizes that would not fit are left out."""
_PLACEMENT_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 180.0
_STEP_TIMEOUT_S = 120.0


def calibration_of(sweep: Sweep, store: SweepStore, console: Any) -> CalibrationRecord:
    """Return the sweep's calibration: its own from an earlier start, the cluster's, or a new one.

    The store must be locked and Ray connected; the record is in the sweep's folder afterwards.

    Args:
        sweep: The sweep.
        store: Its folder.
        console: Where progress goes (rich).

    Raises:
        BadInputError: A calibration on disk cannot be read.
        SweepError: The measurement failed; the cluster may well run trials all the same.
    """
    own = store.folder / CALIBRATION_FILE
    if own.exists():
        return read_record(own)
    known = cache_path(sweep)
    record = read_record(known) if known.exists() else measure(sweep, console)
    store.write(CALIBRATION_FILE, record.to_json())
    return record


def cache_path(sweep: Sweep) -> Path:
    """Return where the calibration of the connected cluster is kept for this sweep's trials."""
    folder = Path(sweep.config.output_dir).resolve() / CACHE_FOLDER
    return folder / f"{_key(sweep)}.json"


def measure(sweep: Sweep, console: Any) -> CalibrationRecord:
    """Measure on a placement group as a trial's, and keep the result for other sweeps.

    Args:
        sweep: Whose resources and environment are used; Ray must be connected.
        console: Where progress goes (rich).

    Raises:
        SweepError: There was no room, a rank failed, or the ranks did not answer in time.
    """
    from ray import exceptions

    try:
        with console.status("Calibrating") as status:
            record = _measure(sweep, lambda what: status.update(f"Calibrating: {what}"))
    except exceptions.GetTimeoutError as error:
        raise SweepError("Calibration: the ranks did not answer in time.") from error
    except (
        exceptions.RayTaskError,
        exceptions.RayActorError,
        exceptions.RuntimeEnvSetupError,
        exceptions.OutOfMemoryError,
    ) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise SweepError(f"Calibration: a rank failed: {lines[-1].strip()}") from error
    path = cache_path(sweep)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, record.to_json())
    return record


class _Rank:
    """The actor: a probe, and where it is. The driver loads no torch for it."""

    def __init__(self, device: str) -> None:
        from autotune.measure.probe import RankProbe

        self._probe = RankProbe(device)

    def where(self) -> tuple[str, str]:
        """Return this node's address and the device's name."""
        import ray

        return ray.util.get_node_ip_address(), self._probe.device_name()

    def free_port(self) -> int:
        """Return a port on which nobody listens."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
        return port

    def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Call a method of the probe."""
        return getattr(self._probe, method)(**arguments)


class _Ranks:
    """All ranks, in the order of their nodes: a ring crosses each link between nodes once."""

    def __init__(self, actors: Sequence[Any]) -> None:
        places = _get([actor.where.remote() for actor in actors], _START_TIMEOUT_S)
        order = sorted(range(len(actors)), key=lambda index: (places[index][0], index))
        self._actors = [actors[index] for index in order]
        self.nodes = sorted({address for address, _ in places})
        self.device_name = " + ".join(sorted({name for _, name in places}))
        port = _get(self._actors[0].free_port.remote(), _STEP_TIMEOUT_S)
        self._address = f"{places[order[0]][0]}:{port}"

    def join(self) -> str:
        """Make one process group; return its backend."""
        arguments = {"num_ranks": len(self._actors), "address": self._address}
        joined = [
            actor.call.remote("join", {"rank": rank, **arguments})
            for rank, actor in enumerate(self._actors)
        ]
        backend: str = _get(joined, _START_TIMEOUT_S)[0]
        return backend

    def call(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method of every rank's probe at once."""
        results: list[Any] = _get(
            [actor.call.remote(method, arguments) for actor in self._actors], _STEP_TIMEOUT_S
        )
        return results


def _measure(sweep: Sweep, say: _Say) -> CalibrationRecord:
    resources = sweep.config.resources
    began_s = time.monotonic()
    say("starting the ranks")
    with _placed(resources, _environment(sweep)) as actors:
        ranks = _Ranks(actors)
        backend = ranks.join()
        samples: dict[str, list[tuple[int, float]]] = {}
        for name in _COLLECTIVES:
            say(name.replace("_", "-"))
            budget_s = _BUDGET_S[resources.device]
            samples[name] = ranks.call("collective", name=name, budget_s=budget_s)[0]
        say("a layer and copies")
        rates = {
            dtype: min(ranks.call("flops_per_s", dtype=dtype))
            for dtype in _DTYPES[resources.device]
        }
        constants = Calibration(
            world_size=resources.num_ranks,
            **{name: fit(pairs) for name, pairs in samples.items()},
            flops_per_s=rates,
            copy_bytes_per_s=min(ranks.call("copy_bytes_per_s")),
            launch_overhead_s=max(ranks.call("launch_overhead_s")),
        )
        ranks.call("leave")
    return CalibrationRecord(
        constants=constants,
        device=resources.device,
        device_name=ranks.device_name,
        num_nodes=len(ranks.nodes),
        backend=backend,
        samples=samples,
        key=_key(sweep),
        measured_at=timestamp(),
        took_s=time.monotonic() - began_s,
    )


@contextmanager
def _placed(resources: ResourcesConfig, environment: Mapping[str, str]) -> Iterator[list[Any]]:
    """Hold a trial's kind of placement group with an actor on every rank's bundle."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group(bundles(resources), strategy=resources.strategy)
    actors: list[Any] = []
    try:
        if not group.wait(_PLACEMENT_TIMEOUT_S):
            raise SweepError(
                "Calibration: the cluster had no room for a trial's placement group within "
                f"{_PLACEMENT_TIMEOUT_S:g} s."
            )
        for index in range(resources.num_ranks):
            options = {
                "num_cpus": resources.cpus_per_rank,
                "num_gpus": int(resources.device == "gpu"),
                "runtime_env": {"env_vars": dict(environment)},
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=index // resources.ranks_per_node
                ),
            }
            rank_class = ray.remote(_Rank).options(**options)
            actors.append(rank_class.remote("cuda" if resources.device == "gpu" else "cpu"))
        yield actors
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def _get(references: Any, timeout_s: float) -> Any:
    import ray

    return ray.get(references, timeout=timeout_s)


def _environment(sweep: Sweep) -> dict[str, str]:
    """Return the variables that the base job gives to its workers: NCCL's are among them."""
    ray_init = OmegaConf.to_container(sweep.base_config.ray_kwargs.ray_init, resolve=True)
    assert isinstance(ray_init, dict)
    given = (ray_init.get("runtime_env") or {}).get("env_vars") or {}
    return {str(name): str(value) for name, value in given.items()}


def _key(sweep: Sweep) -> str:
    """Digest what the constants depend on: nodes, devices, placement, environment, torch."""
    import ray

    resources = sweep.config.resources
    nodes = sorted(
        [node["NodeManagerHostname"], sorted(_devices(node["Resources"]).items())]
        for node in ray.nodes()
        if node["Alive"]
    )
    # A local cluster's workers inherit the driver's variables.
    inherited = {
        name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "GLOO_"))
    }
    content = {
        "schema_version": SCHEMA_VERSION,
        "nodes": nodes,
        "bundles": bundles(resources),
        "strategy": resources.strategy,
        "environment": inherited | _environment(sweep),
        "torch": version("torch"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _devices(resources: Mapping[str, float]) -> dict[str, float]:
    return {
        name: amount
        for name, amount in resources.items()
        if name == "GPU" or name.startswith("accelerator_type:")
    }
