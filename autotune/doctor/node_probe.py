"""What one node is like: facts without judgement.

Runs on every node of the cluster, in a Ray task, and starts one Python process there that imports
verl as a worker would. Touches no GPU: device memory is what the driver's tool says. Returns plain
data; what could not be found out is None, with the reason under ``absent``.
"""

import contextlib
import importlib.util
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_VERL_TIMEOUT_S = 45
_SMI_TIMEOUT_S = 15
_ENVIRONMENT = ("NCCL_", "CUDA_DEVICE_MAX_CONNECTIONS", "GLOO_")
_IMPORT_VERL = """
import importlib, json, sys
device, rollout = sys.argv[1:]
problems = []
try:
    # Asked first: verl's own error does not name it.
    from autotune.verl_bridge.discovery import lost_plugin
    problems += ["verl does not know " + name for name in lost_plugin()]
    import verl
    import verl.trainer.ppo.v1.trainer_sync
    from autotune.verl_bridge.plugin import missing_registrations
    missing = ["verl does not know " + name for name in missing_registrations(device)]
    problems += [problem for problem in missing if problem not in problems]
except Exception as error:
    problems.append(f"verl: {type(error).__name__}: {error}")
if rollout:
    try:
        importlib.import_module(rollout)
    except Exception as error:
        problems.append(f"{rollout}: {type(error).__name__}: {error}")
print("PROBE " + json.dumps(problems))
"""


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What to look at."""

    packages: Sequence[str]
    """Distributions whose versions count."""
    paths: Mapping[str, str]
    """Key of the job -> absolute path that every node must have."""
    device: str
    """``gpu`` or ``cpu``."""
    rollout_module: str
    """Module of the rollout engine; empty when this package brings it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the base job gives to its workers."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    name: str
    total_gib: float
    free_gib: float


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """One node."""

    host: str
    python: str
    versions: Mapping[str, str | None]
    """Distribution -> installed version, None where it is not installed."""
    gpus: Sequence[Gpu] | None
    missing_paths: Mapping[str, str]
    """Key -> path, for those that cannot be read."""
    verl_problems: Sequence[str] | None
    """What goes wrong when a worker imports verl, the plug-ins and the rollout engine."""
    has_flash_attn: bool
    shm_free_gib: float | None
    temp_free_gib: float
    open_files: int
    """Soft limit of this process."""
    num_cores: int
    """CPU cores that this process may use."""
    environment: Mapping[str, str]
    """NCCL's and gloo's variables, as a worker sees them."""
    wandb_mode: str | None
    has_wandb_key: bool
    absent: Mapping[str, str]


def probe(request: ProbeRequest) -> NodeFacts:
    """Look at the node that this process runs on."""
    absent: dict[str, str] = {}
    environment = {**os.environ, **request.environment}
    return NodeFacts(
        host=socket.gethostname(),
        python=platform.python_version(),
        versions={package: _version(package) for package in request.packages},
        gpus=_gpus(absent),
        missing_paths={
            key: path for key, path in request.paths.items() if not os.access(path, os.R_OK)
        },
        verl_problems=_verl_problems(request, environment, absent),
        has_flash_attn=importlib.util.find_spec("flash_attn") is not None,
        shm_free_gib=_free_gib("/dev/shm", absent),
        temp_free_gib=shutil.disk_usage(_temp_folder()).free / 2**30,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        num_cores=len(os.sched_getaffinity(0)),
        environment={k: v for k, v in environment.items() if k.startswith(_ENVIRONMENT)},
        wandb_mode=environment.get("WANDB_MODE"),
        has_wandb_key="WANDB_API_KEY" in environment or _has_netrc_key(),
        absent=absent,
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpus(absent: dict[str, str]) -> list[Gpu] | None:
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free"]
    command.append("--format=csv,noheader,nounits")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True
        )
    except FileNotFoundError:
        absent["gpus"] = "there is no nvidia-smi"
        return None
    except subprocess.SubprocessError as error:
        absent["gpus"] = f"nvidia-smi failed: {error}"
        return None
    gpus = []
    for line in done.stdout.splitlines():
        name, total, free = (part.strip() for part in line.split(","))
        gpus.append(Gpu(name=name, total_gib=float(total) / 1024, free_gib=float(free) / 1024))
    return gpus


def _verl_problems(
    request: ProbeRequest, environment: Mapping[str, str], absent: dict[str, str]
) -> list[str] | None:
    command = [sys.executable, "-c", _IMPORT_VERL, request.device, request.rollout_module]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_VERL_TIMEOUT_S,
            env={**environment, "RAY_ADDRESS": "", "CUDA_VISIBLE_DEVICES": ""},
        )
    except subprocess.TimeoutExpired:
        absent["verl_problems"] = f"importing verl took more than {_VERL_TIMEOUT_S} s"
        return None
    found = [line for line in done.stdout.splitlines() if line.startswith("PROBE ")]
    if not found:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return [f"importing verl ended with code {done.returncode}: {last[0]}"]
    problems: list[str] = json.loads(found[-1].removeprefix("PROBE "))
    return problems


def _free_gib(path: str, absent: dict[str, str]) -> float | None:
    try:
        return shutil.disk_usage(path).free / 2**30
    except OSError as error:
        absent["shm_free_gib"] = f"{path}: {error.strerror}"
        return None


def _temp_folder() -> str:
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"


def _has_netrc_key() -> bool:
    with contextlib.suppress(OSError):
        return "api.wandb.ai" in (Path.home() / ".netrc").read_text(encoding="utf-8")
    return False
