"""What is wrong with a cluster for one sweep, from the facts of its nodes; one line each.

Runs in the driver; pure functions. Ranges of versions are those that this package declares and was
run with. A finding that stops the sweep is an ERROR, one that costs speed or safety a WARNING.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import requires
from typing import TypeVar

from packaging.requirements import Requirement

from autotune.config import Sweep
from autotune.doctor.node_probe import NodeFacts
from autotune.placement import trials_at_once, why_none_fits
from autotune.report.text import plural
from autotune.verl_bridge import job
from autotune.verl_bridge.overrides import leaves

DISTRIBUTION = "verl-autotune"
WATCHED = ("verl", "torch", "ray", "transformers", "tensordict", "TransferQueue", "optuna")
WATCHED_GPU = ("vllm",)

MIN_OPEN_FILES = 4096
"""Ray asks for 65,536; a job's processes and their sockets do not fit into the usual 1,024."""
MIN_SHM_GIB = 2.0
"""Ray's objects and the data loader's batches live there; below it Ray falls back to the disk."""
MIN_TEMP_GIB = 5.0
MIN_OUTPUT_GIB = 1.0
MAX_GPU_USE_RATIO = 0.05
"""Share of a GPU's memory that may be in use before a trial."""

_SLOW_NCCL = {
    "NCCL_P2P_DISABLE": "GPUs of one node talk through the host's memory",
    "NCCL_IB_DISABLE": "nodes talk through Ethernet even where there is InfiniBand",
    "NCCL_SHM_DISABLE": "GPUs of one node talk through sockets",
    "NCCL_DEBUG": "",
}


class Level(str, Enum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor's answer."""

    check: str
    level: Level
    text: str
    """What was found."""
    mend: str = ""
    """What to do about it."""


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """The whole cluster."""

    nodes: Sequence[NodeFacts]
    resources: Sequence[Mapping[str, float]]
    """What Ray may give away on each node of ``nodes``: resource -> amount."""
    num_storage_units: int
    output_problem: str | None
    """Why the sweep's folder cannot be written where the driver runs."""
    output_free_gib: float | None


def findings(sweep: Sweep, cluster: ClusterFacts) -> list[Finding]:
    """Return every check's lines, a single OK line where a check found nothing."""
    found: list[Finding] = []
    for name, check in _CHECKS.items():
        lines = list(check(sweep, cluster))
        if all(line.level is Level.OK for line in lines) and not lines:
            lines = [Finding(check=name, level=Level.OK, text="in order")]
        found += lines
    return found


def watched(sweep: Sweep) -> tuple[str, ...]:
    """Return the distributions whose versions count for a sweep."""
    return WATCHED + (WATCHED_GPU if sweep.config.resources.device == "gpu" else ())


def _placement(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    resources, units = sweep.config.resources, cluster.num_storage_units
    problem = why_none_fits(resources, units, cluster.resources)
    if problem:
        mend = "Lower resources.nodes, resources.ranks_per_node or cpus_per_rank, or add nodes."
        yield Finding(check="placement", level=Level.ERROR, text=problem, mend=mend)
        return
    at_once = trials_at_once(resources, units, cluster.resources)
    wanted = sweep.config.search.max_concurrent
    text = f"{plural(at_once, 'trial')} at once fit on {len(cluster.nodes)} nodes"
    if at_once < wanted:
        mend = f"search.max_concurrent is {wanted}: the others will wait."
        yield Finding(check="placement", level=Level.WARNING, text=text, mend=mend)
    else:
        yield Finding(check="placement", level=Level.OK, text=text)
    # Several nodes of Ray may be one machine.
    cores = sum({node.host: node.num_cores for node in cluster.nodes}.values())
    ranks = min(at_once, wanted) * resources.num_ranks
    if min(at_once, wanted) > 1 and ranks > cores:
        text = f"{ranks} ranks of trials at once share {cores} CPU cores"
        mend = "Such trials slow one another down: lower search.max_concurrent."
        yield Finding(check="placement", level=Level.WARNING, text=text, mend=mend)


def _versions(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    ranges = _declared_ranges("gpu" if sweep.config.resources.device == "gpu" else "")
    for package in watched(sweep):
        by_version = _hosts_by(cluster, lambda node: node.versions.get(package))
        wanted = ranges.get(_normal(package))
        for installed, hosts in by_version.items():
            problem = _version_problem(package, installed, wanted)
            if problem:
                mend = f"pip install '{package}{wanted or ''}' with the constraints file."
                text = f"{problem} on {hosts}"
                yield Finding(check="versions", level=Level.ERROR, text=text, mend=mend)
        if len(by_version) > 1:
            text = f"{package} differs between nodes: {_listed(by_version)}"
            mend = "Use one image for all nodes."
            yield Finding(check="versions", level=Level.ERROR, text=text, mend=mend)
    pythons = _hosts_by(cluster, lambda node: node.python.rpartition(".")[0])
    if len(pythons) > 1:
        text = f"Python differs between nodes: {_listed(pythons)}"
        mend = "Ray needs one minor version of Python on all nodes."
        yield Finding(check="versions", level=Level.ERROR, text=text, mend=mend)


def _version_problem(package: str, installed: str | None, wanted: str | None) -> str:
    if installed is None:
        return f"{package} is not installed"
    if wanted and not Requirement(f"{package}{wanted}").specifier.contains(
        installed.partition("+")[0], prereleases=True
    ):
        return f"{package} {installed} is outside {wanted}, the range that was run,"
    return ""


def _gpus(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    if sweep.config.resources.device != "gpu":
        return
    for node, resources in zip(cluster.nodes, cluster.resources, strict=True):
        promised = int(resources.get("GPU", 0))
        if not promised:
            continue
        if node.gpus is None:
            text = f"{node.host}: Ray gives away {promised} GPUs, but {node.absent['gpus']}"
            mend = "Install the driver's tools, or start Ray with the GPUs that are there."
            yield Finding(check="gpus", level=Level.ERROR, text=text, mend=mend)
            continue
        if promised > len(node.gpus):
            text = f"{node.host}: Ray gives away {promised} GPUs, there are {len(node.gpus)}"
            mend = "Start Ray without --num-gpus: ranks that share a GPU time each other."
            yield Finding(check="gpus", level=Level.ERROR, text=text, mend=mend)
        for index, gpu in enumerate(node.gpus):
            if gpu.total_gib - gpu.free_gib > MAX_GPU_USE_RATIO * gpu.total_gib:
                text = (
                    f"{node.host}: GPU {index} has {gpu.free_gib:.0f} of {gpu.total_gib:.0f} GiB "
                    "free"
                )
                mend = "Another process holds it (nvidia-smi): trials would measure it too."
                yield Finding(check="gpus", level=Level.WARNING, text=text, mend=mend)
    kinds = {gpu.name for node in cluster.nodes for gpu in node.gpus or ()}
    if len(kinds) > 1:
        text = f"the cluster's GPUs differ: {', '.join(sorted(kinds))}"
        mend = "Trials on different GPUs cannot be compared: sweep on one kind."
        yield Finding(check="gpus", level=Level.WARNING, text=text, mend=mend)


def _paths(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    missing: dict[tuple[str, str], list[str]] = {}
    for node in cluster.nodes:
        for key, path in node.missing_paths.items():
            missing.setdefault((key, path), []).append(node.host)
    for (key, path), hosts in missing.items():
        text = f"{key}: {path} cannot be read on {', '.join(hosts)}"
        mend = "Put it on storage that every node mounts."
        yield Finding(check="paths", level=Level.ERROR, text=text, mend=mend)


def _verl(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    for node in cluster.nodes:
        if node.verl_problems is None:
            text = f"{node.host}: {node.absent['verl_problems']}"
            mend = "Is the node overloaded, or its Python on slow storage?"
            yield Finding(check="verl", level=Level.WARNING, text=text, mend=mend)
        for problem in node.verl_problems or ():
            plug_in = "verl-autotune must be installed there with its entry points; "
            mend = plug_in if "does not know" in problem else ""
            mend += "VERL_LOGGING_LEVEL=DEBUG shows what verl loads."
            text = f"{node.host}: {problem}"
            yield Finding(check="verl", level=Level.ERROR, text=text, mend=mend)


def _attention(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    if sweep.config.resources.device != "gpu":
        return
    without = [node.host for node in cluster.nodes if not node.has_flash_attn]
    uses_fused = leaves(sweep.base_config).get(f"{job.MODEL}.use_fused_kernels")
    if without and not uses_fused:
        text = f"flash-attn is missing on {', '.join(without)}"
        mend = (
            "verl then computes log-probabilities row by row, many times slower: install "
            f"flash-attn, or set {job.MODEL}.use_fused_kernels=true."
        )
        yield Finding(check="attention", level=Level.WARNING, text=text, mend=mend)


def _limits(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    for node in cluster.nodes:
        if node.open_files < MIN_OPEN_FILES:
            text = f"{node.host}: at most {node.open_files} open files a process"
            mend = f"ulimit -n {MIN_OPEN_FILES} or more, before Ray is started there."
            yield Finding(check="limits", level=Level.ERROR, text=text, mend=mend)
        if node.shm_free_gib is not None and node.shm_free_gib < MIN_SHM_GIB:
            text = f"{node.host}: {node.shm_free_gib:.1f} GiB of shared memory are free"
            mend = "In a container: --shm-size 16g or more; empty /dev/shm of what was left there."
            yield Finding(check="limits", level=Level.ERROR, text=text, mend=mend)
        if node.temp_free_gib < MIN_TEMP_GIB:
            text = f"{node.host}: {node.temp_free_gib:.1f} GiB are free where Ray spills and logs"
            mend = "Free some space, or start Ray with --temp-dir elsewhere."
            yield Finding(check="limits", level=Level.WARNING, text=text, mend=mend)


def _output(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    if cluster.output_problem is not None:
        mend = "Choose another output_dir."
        yield Finding(
            check="output", level=Level.ERROR, text=cluster.output_problem, mend=mend
        )
    elif cluster.output_free_gib is not None and cluster.output_free_gib < MIN_OUTPUT_GIB:
        text = f"{cluster.output_free_gib:.1f} GiB are free for the sweep's records"
        yield Finding(
            check="output", level=Level.WARNING, text=text, mend="Choose another output_dir."
        )


def _wandb(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    driver, mode = cluster.nodes[0], sweep.config.wandb.mode
    where = "wandb.mode"
    if mode == "auto":
        where = "WANDB_MODE"
        mode = driver.wandb_mode or ("online" if driver.has_wandb_key else "offline")
    if mode == "online" and not driver.has_wandb_key:
        text = f"{where} is online, but there is no key"
        mend = "Set WANDB_API_KEY on the node that runs the driver, or wandb.mode: offline."
        yield Finding(check="wandb", level=Level.ERROR, text=text, mend=mend)
        return
    yield Finding(check="wandb", level=Level.OK, text=mode)


def _nccl(sweep: Sweep, cluster: ClusterFacts) -> Iterator[Finding]:
    uses_gpu = sweep.config.resources.device == "gpu"
    seen = _hosts_by(cluster, lambda node: tuple(sorted(node.environment.items())))
    if len(seen) > 1:
        text = "variables of NCCL or gloo differ between nodes: " + "; ".join(
            f"{hosts}: {dict(variables) or 'none'}" for variables, hosts in seen.items()
        )
        mend = "Set them alike, best in the base job's runtime_env."
        yield Finding(check="nccl", level=Level.WARNING, text=text, mend=mend)
    for node in cluster.nodes:
        for name, effect in _SLOW_NCCL.items():
            value = node.environment.get(name, "0")
            if uses_gpu and effect and value not in ("0", ""):
                text = f"{node.host}: {name}={value}: {effect}"
                mend = "Unset it, unless production runs with it too."
                yield Finding(check="nccl", level=Level.WARNING, text=text, mend=mend)
        if uses_gpu and node.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
            text = f"{node.host}: CUDA_DEVICE_MAX_CONNECTIONS=1 serialises reduce-scatter"
            mend = "Unset it: FSDP overlaps communication with compute, Megatron alone wants it."
            yield Finding(check="nccl", level=Level.WARNING, text=text, mend=mend)


Value = TypeVar("Value")
Check = Callable[[Sweep, ClusterFacts], Iterator[Finding]]

_CHECKS: dict[str, Check] = {
    "placement": _placement,
    "versions": _versions,
    "gpus": _gpus,
    "paths": _paths,
    "verl": _verl,
    "attention": _attention,
    "limits": _limits,
    "output": _output,
    "wandb": _wandb,
    "nccl": _nccl,
}


def _declared_ranges(extra: str) -> dict[str, str]:
    """Return distribution -> range that this package declares; the extra's own ones win."""
    ranges: dict[str, str] = {}
    for text in requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or (extra and marker.evaluate({"extra": extra})):
            ranges[_normal(requirement.name)] = str(requirement.specifier)
    return ranges


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _hosts_by(cluster: ClusterFacts, value: Callable[[NodeFacts], Value]) -> dict[Value, str]:
    grouped: dict[Value, list[str]] = {}
    for node in cluster.nodes:
        grouped.setdefault(value(node), []).append(node.host)
    return {key: ", ".join(hosts) for key, hosts in grouped.items()}


def _listed(by_value: Mapping[Value, str]) -> str:
    return "; ".join(f"{value} on {hosts}" for value, hosts in by_value.items())
