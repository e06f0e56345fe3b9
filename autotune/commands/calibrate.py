"""``autotune calibrate``: measure the links and devices that a sweep's trials will run on.

Runs in the driver. The module's head imports nothing heavy, so that ``--help`` answers at once. A
sweep measures by itself and keeps what it found; this command measures anew, for the next one.
"""

import argparse

from autotune.commands.arguments import add_address, add_sweep_file
from autotune.errors import ExitCode

SUMMARY = "measure the links and devices that a sweep's trials will run on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    add_address(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Measure and print; later sweeps on the same cluster take the result over."""
    from rich.console import Console

    from autotune.calibrate import cache_path, measure
    from autotune.config import load_sweep
    from autotune.report.calibration_text import calibration_text
    from autotune.tuning import cluster

    sweep = load_sweep(options.file, options.overrides)
    with cluster(sweep, options.address):
        record = measure(sweep, Console())
        kept = cache_path(sweep)
    print(calibration_text(record))
    print(f"Kept for the next sweeps on this cluster: {kept}")
    return ExitCode.DONE
