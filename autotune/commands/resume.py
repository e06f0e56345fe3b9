"""``autotune resume``: go on with a submitted sweep that was stopped, failed or lost its cluster.

Runs where the user is. The module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse

from autotune.commands.arguments import add_dashboard, add_python, add_sweep_file
from autotune.commands.submit import start
from autotune.errors import ExitCode

SUMMARY = "go on with a submitted sweep that has ended; its finished trials are kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    add_dashboard(parser)
    add_python(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Submit the sweep's next job; its records decide what is left to do."""
    return start(options, resume=True)
