"""``autotune show``: one trial in full: settings, metrics, steps, cause, the end of its log.

Runs in the shell's own process; reads the sweep's folder only. The module's head imports nothing
heavy, so that ``--help`` answers at once.
"""

import argparse
import json

from autotune.commands.arguments import add_json, add_sweep_folder
from autotune.errors import ExitCode

SUMMARY = "show one trial: settings, metrics, steps, cause, end of its log"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_folder(parser)
    parser.add_argument("trial", type=int, help="the trial's number; 0 is the baseline")
    parser.add_argument(
        "--log-lines", type=int, default=20, metavar="N", help="lines of its log (default: 20)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Print the trial."""
    from autotune.report.documents import trial_document
    from autotune.report.overview import view_trial
    from autotune.report.reading import read_sweep
    from autotune.report.terminal import console, trial_page

    view = view_trial(
        read_sweep(options.folder), options.trial, log_lines=max(0, options.log_lines)
    )
    if options.json:
        print(json.dumps(trial_document(view), indent=2, allow_nan=False))
    else:
        console().print(trial_page(view))
    return ExitCode.DONE
