"""``autotune check``: validate a sweep file and describe its search space.

Runs in the driver; starts nothing. The module's head imports nothing heavy, so that ``--help``
answers at once.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.commands.arguments import add_sweep_file
from autotune.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from autotune.config import Sweep

SUMMARY = "validate a sweep file and describe its search space"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Load the sweep and print what it searches."""
    from autotune.config import load_sweep

    sweep = load_sweep(options.file, options.overrides)
    check_here(sweep)
    print(describe(sweep))
    return ExitCode.DONE


def check_here(sweep: "Sweep") -> None:
    """Check what a sweep that runs on this machine needs around it: where its records go, and the
    sweeps that it shall learn from.

    Raises:
        BadInputError: With the key.
    """
    _check_output_dir(Path(sweep.config.output_dir).absolute() / sweep.config.name)
    if sweep.config.search.warm_start:
        # Ray Tune comes with it.
        from autotune.sweep import copy_uri_of, store_of
        from autotune.warm_start import check_folders

        folder = store_of(sweep).folder
        check_folders(sweep.config.search.warm_start, folder, copy_uri_of(sweep))


def _check_output_dir(folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise BadInputError(
            f"output_dir: {folder} cannot be made: {there} is a file.", "Name a folder."
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInputError(
            f"output_dir: {folder} cannot be written: you may not write to {there}.",
            "Name a folder of yours, or see to its permissions.",
        )


def describe(sweep: "Sweep") -> str:
    """Say how large the space is, what verl's rules exclude from it, and what was not checked."""
    from autotune.report.text import fidelity_note
    from autotune.verl_bridge.overrides import leaves
    from autotune.verl_bridge.paths import hub_names

    summary = sweep.summary
    total = "continuous" if summary.num_points is None else f"{summary.num_points} settings"
    lines = [f"Sweep {sweep.config.name}: {total}, {summary.num_valid} valid."]
    note = fidelity_note(sweep.config.trial.fidelity)
    lines += [f"Trials are {note}; the verification runs whole steps."] if note else []
    for rule, count in summary.excluded.items():
        lines.append(f"  {count} excluded by {rule}: {summary.examples[rule]}")
    for key, name in hub_names(leaves(sweep.base_config), Path.cwd()).items():
        lines.append(
            f"  {key}: there is no folder '{name}' here; it is taken for a model's name on the "
            "Hugging Face hub, which was not looked at."
        )
    return "\n".join(lines)
