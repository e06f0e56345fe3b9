"""``autotune check``: validate a sweep file and describe its search space.

Runs in the driver; starts nothing. The module's head imports nothing heavy, so that ``--help``
answers at once.
"""

import argparse
from typing import TYPE_CHECKING

from autotune.commands.arguments import add_sweep_file
from autotune.errors import ExitCode

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
    check_earlier(sweep)
    print(describe(sweep))
    return ExitCode.DONE


def check_earlier(sweep: "Sweep") -> None:
    """Check the sweeps that this one shall learn from.

    Raises:
        BadInputError: A folder that holds none.
    """
    if sweep.config.search.warm_start:
        # Ray Tune comes with it.
        from autotune.sweep import copy_uri_of, store_of
        from autotune.warm_start import check_folders

        folder = store_of(sweep).folder
        check_folders(sweep.config.search.warm_start, folder, copy_uri_of(sweep))


def describe(sweep: "Sweep") -> str:
    """Say how large the space is and what verl's rules exclude from it."""
    summary = sweep.summary
    total = "continuous" if summary.num_points is None else f"{summary.num_points} settings"
    lines = [f"Sweep {sweep.config.name}: {total}, {summary.num_valid} valid."]
    for rule, count in summary.excluded.items():
        lines.append(f"  {count} excluded by {rule}: {summary.examples[rule]}")
    return "\n".join(lines)
