"""What ran a sweep: versions of packages, of the driver and of this package's source.

Runs in the driver; imports none of the packages. What a machine does not have is left out.
"""

import contextlib
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    *("verl-autotune", "verl", "torch", "ray", "optuna", "transformers", "vllm"),
    *("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
)
_DRIVER = Path("/proc/driver/nvidia/version")
_GIT_TIMEOUT_S = 10


def versions() -> Mapping[str, str]:
    """Return package -> installed version; Python, platform, driver and source commit included."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    driver = nvidia_driver(_DRIVER.read_text()) if _DRIVER.exists() else None
    commit = source_commit(Path(__file__).parent)
    return {
        **found,
        **({"nvidia-driver": driver} if driver is not None else {}),
        **({"autotune-commit": commit} if commit is not None else {}),
    }


def nvidia_driver(text: str) -> str | None:
    """Return the version that the kernel module's own file states."""
    match = re.search(r"NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text)
    return match.group(1) if match else None


def source_commit(folder: Path) -> str | None:
    """Return the commit that a folder's files are of, ``-dirty`` where some were changed since."""
    # An installed package may lie inside somebody's checkout without being a part of it.
    if not _git(folder, "ls-files"):
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40") or None


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints; empty where there is no git, or it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
