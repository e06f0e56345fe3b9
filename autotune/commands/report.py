"""``autotune report``: what a sweep found, as text, as JSON and as one HTML file.

Runs in the shell's own process; reads the sweep's folder only, also while the sweep runs. The
module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse
import json

from autotune.commands.arguments import add_json, add_sweep_folder
from autotune.errors import ExitCode

SUMMARY = "say what a sweep found: winner, gain, constraints, costs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_folder(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Print the answer."""
    from autotune.report.answer import answer
    from autotune.report.documents import report_document
    from autotune.report.reading import read_sweep
    from autotune.report.summary import summary_text

    data = read_sweep(options.folder)
    found = answer(data)
    if options.json:
        print(json.dumps(report_document(found, data), indent=2, allow_nan=False))
    else:
        print(summary_text(found, data))
    return ExitCode.DONE
