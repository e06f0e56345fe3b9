"""``autotune plan``: what a sweep would do and cost, without starting anything.

Runs in the shell's own process; touches no GPU and no cluster. The module's head imports nothing
heavy, so that ``--help`` answers at once.
"""

import argparse

from autotune.commands.arguments import add_sweep_file
from autotune.commands.check import describe
from autotune.errors import ExitCode

SUMMARY = "say what a sweep would do and cost, without starting anything"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    parser.add_argument(
        "--first", type=int, default=5, help="settings to look ahead (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Print the plan."""
    from autotune.config import load_sweep
    from autotune.plan import make_plan, text_of

    sweep = load_sweep(options.file, options.overrides, is_elsewhere=True)
    print(describe(sweep))
    print(text_of(sweep, make_plan(sweep, options.first)))
    return ExitCode.DONE
