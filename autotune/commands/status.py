"""``autotune status``: how submitted sweeps are doing.

Runs where the user is; reads from the cluster's dashboard. The module's head imports nothing heavy,
so that ``--help`` answers at once.
"""

import argparse
import dataclasses

from autotune.commands.arguments import add_dashboard
from autotune.errors import ExitCode, SweepError

SUMMARY = "how submitted sweeps are doing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "sweep", nargs="?", help="the sweep's file or id; without it, all sweeps of the cluster"
    )
    add_dashboard(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Print one sweep's state and results so far, or a line for each sweep."""
    from autotune.cluster import SweepJobs, id_of
    from autotune.fetching import fetched
    from autotune.report.answer import answer
    from autotune.report.reading import read_sweep
    from autotune.report.summary import summary_text

    jobs = SweepJobs(options.address)
    if options.sweep is None:
        latest = {attempt.sweep_id: attempt for attempt in jobs.attempts()}
        for attempt in latest.values():
            print(f"{attempt.submission_id}  {attempt.describe()}")
        if not latest:
            print(f"No sweep was submitted to {options.address}.")
        return ExitCode.DONE
    attempt = jobs.last_attempt(id_of(options.sweep))
    print(f"{attempt.submission_id}: {attempt.describe()}")
    try:
        with fetched(jobs.published(attempt.sweep_id)) as folder:
            # A copy tells neither whether the sweep runs nor where it lies.
            data = dataclasses.replace(read_sweep(folder), is_running=not attempt.is_over)
            found = answer(data)
            print(summary_text(found, data, with_next=False))
            if found.production is not None:
                print(f"best.yaml lies in {attempt.folder}; `autotune fetch` brings it here.")
    except SweepError as error:
        print(f"No results yet: {error}")
    return ExitCode.DONE
