"""``autotune manifest``: the sweep as a RayJob for KubeRay, on standard output.

Runs where the user is; speaks with no cluster. The module's head imports nothing heavy, so that
``--help`` answers at once.
"""

import argparse
from pathlib import Path

from autotune.commands.arguments import add_sweep_file
from autotune.errors import ExitCode

SUMMARY = "print the sweep as a RayJob for KubeRay"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    parser.add_argument("--image", required=True, help="image of head and workers, see docker/")
    parser.add_argument(
        "--volume-claim", help="PersistentVolumeClaim that keeps the records, mounted by all pods"
    )
    parser.add_argument("--secret", help="Secret whose entries become variables of all pods")
    parser.add_argument(
        "--memory-gib", type=int, default=64, help="memory of a pod (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Print the manifest."""
    from autotune.config import load_sweep
    from autotune.kubernetes import ManifestSettings, manifest

    sweep = load_sweep(options.file, options.overrides, is_elsewhere=True)
    settings = ManifestSettings(
        image=options.image,
        volume_claim=options.volume_claim,
        secret=options.secret,
        memory_gib=options.memory_gib,
    )
    print(manifest(sweep, Path.cwd(), settings), end="")
    return ExitCode.DONE
