"""A sweep as a RayJob of Kubernetes (KubeRay): its manifest, rendered from the sweep file.

Runs where the user is; speaks with no cluster. The job's cluster is made for the sweep: a head that
runs the driver, and as many workers as its trials need at once. The sweep file and the scripts that
it names by relative paths travel in a ConfigMap; models, data and secrets are the cluster's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from autotune.cluster import entrypoint, job_environment
from autotune.config import Sweep, to_yaml
from autotune.errors import BadInputError
from autotune.placement import HELPER_CPUS, node_bundle
from autotune.submission import SWEEP_FILE, sweep_id
from autotune.tuning import storage_units
from autotune.verl_bridge.overrides import leaves
from autotune.verl_bridge.paths import relative_files

JOB_FOLDER = "/sweep"
RESULTS_FOLDER = "/home/autotune/autotune"
"""The image's user, and where relative output folders start."""
MAX_CONFIG_BYTES = 900_000
"""Kubernetes takes 1 MiB for a ConfigMap, its keys included."""
_MAX_NAME = 47


@dataclass(frozen=True, kw_only=True)
class ManifestSettings:
    """What the sweep file does not say."""

    image: str
    """Image of head and workers, see ``docker/``."""
    volume_claim: str | None
    """PersistentVolumeClaim for models, data and records, mounted by every pod at the home of the
    image's user; None mounts none."""
    secret: str | None
    """Secret whose entries become variables of every pod."""
    memory_gib: int
    """Memory of a worker pod; half of it is the limit of its shared memory."""


def manifest(sweep: Sweep, base_dir: Path, settings: ManifestSettings) -> str:
    """Return the manifest as YAML: a ConfigMap and a RayJob.

    Raises:
        BadInputError: Files that are too large to travel, or records that would be lost.
    """
    if settings.volume_claim is None and sweep.config.output_uri is None:
        raise BadInputError(
            "The sweep's records would be lost with the job's cluster.",
            "Set output_uri in the sweep file, or give --volume-claim.",
        )
    name = _name(sweep)
    files = _files(sweep, base_dir)
    return yaml.safe_dump_all(
        [_config_map(name, files), _ray_job(name, sweep, files, settings)], sort_keys=False
    )


def _name(sweep: Sweep) -> str:
    """Return the sweep's id as Kubernetes spells names, its hash kept."""
    stem, _, digest = sweep_id(sweep).lower().rpartition("-")
    plain = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")
    return f"{plain[: _MAX_NAME - len(digest) - 1].rstrip('-')}-{digest}"


def _files(sweep: Sweep, base_dir: Path) -> dict[str, str]:
    """Return path in the job's folder -> content."""
    files = {SWEEP_FILE: to_yaml(sweep.config)}
    for key, path in relative_files(leaves(sweep.base_config), base_dir).items():
        if path.is_dir() or path.stat().st_size > MAX_CONFIG_BYTES or _is_binary(path):
            raise BadInputError(
                f"{key}: {path.relative_to(base_dir)} cannot travel in a manifest.",
                "Put models and data on a volume or a hub that every pod reaches, and name their "
                "absolute paths; only scripts travel.",
            )
        files[str(path.relative_to(base_dir))] = path.read_text(encoding="utf-8")
    if sum(len(content.encode()) for content in files.values()) > MAX_CONFIG_BYTES:
        raise BadInputError("The sweep's scripts are too large for a ConfigMap (1 MiB).")
    return files


def _is_binary(path: Path) -> bool:
    return b"\0" in path.read_bytes()[:8192]


def _config_map(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": {_key(path): content for path, content in files.items()},
    }


def _key(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "__", path)


def _ray_job(
    name: str, sweep: Sweep, files: Mapping[str, str], settings: ManifestSettings
) -> dict[str, Any]:
    resources = sweep.config.resources
    command = entrypoint(sweep, python="python")
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "submissionMode": "HTTPMode",
            "jobId": sweep_id(sweep),
            "entrypoint": f"cd {JOB_FOLDER} && {command}",
            "runtimeEnvYAML": yaml.safe_dump({"env_vars": job_environment()}),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0", "num-gpus": "0"},
                    "template": _pod(
                        "ray-head", name, files, settings, _head_resources(sweep, settings)
                    ),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "trials",
                        "replicas": resources.nodes * sweep.config.search.max_concurrent,
                        "minReplicas": resources.nodes,
                        "maxReplicas": resources.nodes * sweep.config.search.max_concurrent,
                        "rayStartParams": {},
                        "template": _pod(
                            "ray-worker", name, files, settings, _worker_resources(sweep, settings)
                        ),
                    }
                ],
            },
        },
    }


def _head_resources(sweep: Sweep, settings: ManifestSettings) -> dict[str, str]:
    """The head runs the driver and the trials' helper actors."""
    helpers = storage_units(sweep) + HELPER_CPUS
    cpus = helpers * sweep.config.search.max_concurrent
    return {"cpu": str(cpus), "memory": f"{settings.memory_gib}Gi"}


def _worker_resources(sweep: Sweep, settings: ManifestSettings) -> dict[str, str]:
    bundle = node_bundle(sweep.config.resources)
    amounts = {"cpu": f"{bundle['CPU']:g}", "memory": f"{settings.memory_gib}Gi"}
    if "GPU" in bundle:
        amounts["nvidia.com/gpu"] = f"{bundle['GPU']:g}"
    return amounts


def _pod(
    container: str,
    name: str,
    files: Mapping[str, str],
    settings: ManifestSettings,
    amounts: Mapping[str, str],
) -> dict[str, Any]:
    mounts = [
        {"name": "sweep", "mountPath": JOB_FOLDER, "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    volumes: list[dict[str, Any]] = [
        {
            "name": "sweep",
            "configMap": {
                "name": name,
                "items": [{"key": _key(path), "path": path} for path in files],
            },
        },
        {
            "name": "shared-memory",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{settings.memory_gib // 2}Gi"},
        },
    ]
    if settings.volume_claim is not None:
        mounts.append({"name": "results", "mountPath": RESULTS_FOLDER})
        claim = {"claimName": settings.volume_claim}
        volumes.append({"name": "results", "persistentVolumeClaim": claim})
    pod: dict[str, Any] = {
        "name": container,
        "image": settings.image,
        "workingDir": JOB_FOLDER,
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "volumeMounts": mounts,
        "securityContext": {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if settings.secret is not None:
        pod["envFrom"] = [{"secretRef": {"name": settings.secret}}]
    return {"spec": {"containers": [pod], "volumes": volumes}}
