"""``autotune stop``: end a submitted sweep; what it has measured is kept.

Runs where the user is. The module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse

from autotune.commands.arguments import add_submitted
from autotune.errors import ExitCode

SUMMARY = "end a submitted sweep; what it has measured is kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_submitted(parser)
    parser.add_argument(
        "--now",
        action="store_true",
        help="break off the running trials; without it they end first and are kept",
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Ask the sweep's driver to end."""
    from autotune.cluster import SweepJobs, id_of

    jobs = SweepJobs(options.address)
    attempt = jobs.last_attempt(id_of(options.sweep))
    if attempt.is_over:
        print(f"{attempt.submission_id}: {attempt.describe()}")
        return ExitCode.DONE
    jobs.stop(attempt, now=options.now)
    what = "is being ended" if options.now else "starts no more trials and ends with the last one"
    print(f"{attempt.submission_id} {what}.")
    return ExitCode.DONE
