"""What a sweep takes along to a cluster: its file, the files that it names by relative paths, and
this package.

Runs where the sweep is submitted from; Ray is not needed. Everything lies in one folder that Ray
unpacks on every node as the job's working directory. The package travels with its entry points, so
that verl's processes find the plug-in on nodes that lack it. Nothing of the environment is shipped:
variables and tokens are the cluster's own. Files named by absolute paths, and models named by their
hub, are the cluster's too.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path

from autotune.config import Sweep, to_yaml
from autotune.errors import BadInputError
from autotune.store import write_atomic
from autotune.sweep import identity
from autotune.verl_bridge.overrides import leaves
from autotune.verl_bridge.paths import relative_files

DISTRIBUTION = "verl-autotune"
SWEEP_FILE = "sweep.yaml"
MAX_MIB = 100
"""Largest size of the shipped files; Ray keeps them in the head node's memory."""


def sweep_id(sweep: Sweep) -> str:
    """Return the sweep's name on a cluster: equal for equal sweeps, whatever their budgets."""
    content = json.dumps(identity(to_yaml(sweep.config)), sort_keys=True)
    return f"autotune-{sweep.config.name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def pack(sweep: Sweep, base_dir: Path, folder: Path) -> None:
    """Fill an empty folder with what the sweep needs on the cluster.

    Args:
        sweep: Loaded with ``is_elsewhere``.
        base_dir: Folder that the job's relative paths start from.
        folder: Becomes the job's working directory.

    Raises:
        BadInputError: A relative path leaves ``base_dir``, or the files are too large.
    """
    files = list(_shipped(sweep, base_dir))
    _check_size(files, base_dir)
    for file in files:
        target = folder / file.relative_to(base_dir)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    write_atomic(folder / SWEEP_FILE, to_yaml(sweep.config))
    _pack_package(folder)


def _shipped(sweep: Sweep, base_dir: Path) -> Iterator[Path]:
    for key, path in relative_files(leaves(sweep.base_config), base_dir).items():
        if not path.resolve().is_relative_to(base_dir.resolve()):
            raise BadInputError(
                f"{key}: {path} lies outside {base_dir}, from which the sweep is submitted.",
                "Submit from a folder above it, or name a path of the cluster.",
            )
        yield from sorted(file for file in path.rglob("*") if file.is_file()) or [path]


def _check_size(files: list[Path], base_dir: Path) -> None:
    largest = max(files, key=lambda file: file.stat().st_size, default=None)
    total_mib = sum(file.stat().st_size for file in files) / 2**20
    if largest is not None and total_mib > MAX_MIB:
        raise BadInputError(
            f"The files that the sweep names by relative paths have {total_mib:.0f} MiB; the "
            f"largest is {largest.relative_to(base_dir)}.",
            f"At most {MAX_MIB} MiB travel with a sweep: put models and data where every node of "
            "the cluster finds them, and name their absolute paths.",
        )


_METADATA_FILES = {"METADATA": ("METADATA", "PKG-INFO"), "entry_points.txt": ("entry_points.txt",)}


def _pack_package(folder: Path) -> None:
    source = Path(__file__).parent
    shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    installed = distribution(DISTRIBUTION)
    name = DISTRIBUTION.replace("-", "_")
    metadata = folder / f"{name}-{version(DISTRIBUTION)}.dist-info"
    metadata.mkdir()
    # An installation from a checkout may be found by its egg-info, where METADATA is PKG-INFO.
    for file, names in _METADATA_FILES.items():
        text = next(filter(None, map(installed.read_text, names)), None)
        assert text is not None, f"{DISTRIBUTION} is installed without {file}"
        (metadata / file).write_text(text, encoding="utf-8")
