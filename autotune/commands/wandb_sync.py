"""``autotune wandb-sync``: write and send to wandb what a sweep has not written or sent yet.

Runs in the shell's own process. Doing it again changes nothing. The module's head imports nothing
heavy, so that ``--help`` answers at once.
"""

import argparse
import sys
from pathlib import Path

from autotune.commands.arguments import add_sweep_folder
from autotune.errors import ExitCode

SUMMARY = "write and send to wandb what is missing of a sweep"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_folder(parser)
    parser.add_argument(
        "--offline", action="store_true", help="write the runs, but send nothing to a server"
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Write the missing runs, then send all that were not sent."""
    from autotune.report.reading import read_sweep
    from autotune.report.wandb_writer import sync, write_missing
    from autotune.store import WANDB_FOLDER

    folder = Path(options.folder).resolve()
    config = read_sweep(folder).config.wandb
    num_written = write_missing(folder, with_report=True)
    print(f"{num_written} runs written to {folder / WANDB_FOLDER}.")
    problem = "" if options.offline else sync(folder, config, timeout_s=None)
    if problem:
        print(f"autotune: {problem}", file=sys.stderr)
        return ExitCode.FAILED
    return ExitCode.DONE
