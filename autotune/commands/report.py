"""``autotune report``: what a sweep found, as text, as JSON and as one HTML file.

Runs in the shell's own process; reads the sweep's folder only, also while the sweep runs. The
module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.commands.arguments import add_json, add_sweep_folder
from autotune.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from autotune.report.answer import Answer
    from autotune.report.reading import SweepData

SUMMARY = "say what a sweep found: winner, gain, constraints, costs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_folder(parser)
    add_json(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write the report as one HTML file"
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Print the answer."""
    from autotune.report.answer import answer
    from autotune.report.documents import report_document
    from autotune.report.reading import read_sweep
    from autotune.report.summary import summary_text

    data = read_sweep(options.folder)
    found = answer(data)
    if options.html is not None:
        _write_html(options.html, data, found)
    if options.json:
        print(json.dumps(report_document(found, data), indent=2, allow_nan=False))
    else:
        print(summary_text(found, data))
    return ExitCode.DONE


def _write_html(path: Path, data: "SweepData", found: "Answer") -> None:
    from autotune.report.page import write_report

    try:
        write_report(path, data, found)
    except OSError as error:
        message = f"--html {path}: {error.strerror}."
        raise BadInputError(message, "Name a file in a folder that is there.") from error
    print(f"Report: {path.resolve()}", file=sys.stderr)
