"""``autotune logs``: what a submitted sweep, or one of its trials, has printed.

Runs where the user is; reads from the cluster's dashboard. The module's head imports nothing heavy,
so that ``--help`` answers at once.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator

from autotune.commands.arguments import add_submitted
from autotune.errors import BadInputError, ExitCode

SUMMARY = "what a submitted sweep, or one of its trials, has printed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_submitted(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the sweep ends")
    parser.add_argument("--trial", type=int, metavar="NUMBER", help="the log of verl in this trial")


def run(options: argparse.Namespace) -> ExitCode:
    """Print the log."""
    from autotune.cluster import SweepJobs, id_of
    from autotune.store import LOG_FOLDER

    jobs = SweepJobs(options.address)
    attempt = jobs.last_attempt(id_of(options.sweep))
    if options.trial is not None:
        published = jobs.published(attempt.sweep_id)
        logs = [path for path in published.files() if path.parts[0] == LOG_FOLDER]
        wanted = f"trial_{options.trial:04d}.log"
        found = [path for path in logs if path.name == wanted]
        if not found:
            names = ", ".join(path.stem for path in logs) or "none yet"
            raise BadInputError(
                f"There is no log of trial {options.trial}.",
                f"Logs there: {names}; a trial that ran in a live job is in the log of the trial "
                "that started the job.",
            )
        for part in published.read(found[0]):
            sys.stdout.write(part.decode(errors="replace"))
        return ExitCode.DONE
    if options.follow:
        asyncio.run(_follow(jobs.follow_log(attempt)))
    else:
        print(jobs.log(attempt), end="")
    return ExitCode.DONE


async def _follow(lines: AsyncIterator[str]) -> None:
    async for text in lines:
        print(text, end="", flush=True)
