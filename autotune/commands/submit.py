"""``autotune submit``: start a sweep on a Ray cluster and return at once.

Runs where the user is. The module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse

from autotune.commands.arguments import add_dashboard, add_python, add_sweep_file
from autotune.commands.check import describe
from autotune.errors import ExitCode

SUMMARY = "start a sweep on a Ray cluster and return at once"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    add_dashboard(parser)
    add_python(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Submit the sweep unless the cluster has it already."""
    return start(options, resume=False)


def start(options: argparse.Namespace, *, resume: bool) -> ExitCode:
    """Submit a sweep, or go on with one that has ended, and say how to follow it."""
    from autotune.cluster import SweepJobs
    from autotune.config import load_sweep

    sweep = load_sweep(options.file, options.overrides, is_elsewhere=True)
    print(describe(sweep), flush=True)
    jobs = SweepJobs(options.address)
    attempt, is_new = jobs.submit(sweep, python=options.python, resume=resume)
    if is_new:
        print(f"Submitted as {attempt.submission_id}.")
    else:
        print(f"This sweep was submitted before, as {attempt.submission_id}: {attempt.describe()}.")
        if attempt.is_over:
            print(f"  go on     autotune resume {options.file} --address {options.address}")
    for word, command in (("status", "status"), ("log", "logs -f"), ("results", "fetch")):
        print(f"  {word:<9} autotune {command} {attempt.sweep_id} --address {options.address}")
    return ExitCode.DONE
