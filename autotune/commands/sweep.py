"""``autotune sweep``: run a sweep, or go on with an interrupted one.

Runs in the driver. The module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse
import dataclasses
import json
import sys

from autotune.commands.arguments import add_address, add_sweep_file
from autotune.commands.check import check_here, describe
from autotune.errors import ExitCode

SUMMARY = "run a sweep, or go on with an interrupted one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    add_address(parser)
    parser.add_argument(
        "--warm-start",
        action="append",
        default=[],
        metavar="FOLDER",
        help="an earlier sweep to learn from; as search.warm_start",
    )
    parser.add_argument(
        "--publish",
        metavar="NAME",
        help="show the sweep's folder through the cluster's dashboard under this name, "
        "as `autotune submit` does",
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Run what is left of the sweep and print its summary."""
    from rich.console import Console

    from autotune.config import load_sweep
    from autotune.report.answer import answer
    from autotune.report.page import HTML_FILE, write_report
    from autotune.report.reading import read_sweep
    from autotune.report.summary import summary_text
    from autotune.report.verify_text import verification_text
    from autotune.sweep import opened, run_sweep
    from autotune.wandb_process import wandb_process

    overrides = list(options.overrides)
    if options.warm_start:
        overrides.append(f"search.warm_start={json.dumps(options.warm_start)}")
    sweep = load_sweep(options.file, overrides)
    check_here(sweep)
    print(describe(sweep), flush=True)
    with opened(sweep) as store, wandb_process(store.folder, sweep.config.wandb, print):
        folder = store.folder
        result = run_sweep(
            sweep, store, address=options.address, console=Console(), published_as=options.publish
        )
        # This process still holds the lock, but no trial runs any more.
        data = dataclasses.replace(read_sweep(folder), is_running=False)
        found = answer(data)
        write_report(folder / HTML_FILE, data, found)
        print(summary_text(found, data))
        if result.stop_reason:
            print(result.stop_reason)
        print(f"Records: {folder}\nReport: {folder / HTML_FILE}", flush=True)
        if result.verification is not None:
            print(verification_text(result.verification, sweep.config.resources.device))
    if result.failure:
        print(f"autotune: {result.failure}", file=sys.stderr)
        return ExitCode.FAILED
    if not result.is_complete:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.DONE
