"""``autotune compare``: two trials side by side, of one sweep or of two.

Runs in the shell's own process; reads the sweeps' folders only. The module's head imports nothing
heavy, so that ``--help`` answers at once.
"""

import argparse
import json

from autotune.commands.arguments import add_json
from autotune.errors import ExitCode

SUMMARY = "compare two sweeps (their winners) or two trials"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    for name in ("a", "b"):
        parser.add_argument(name, help="a sweep's folder, or FOLDER:TRIAL")
    add_json(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Print the comparison."""
    from autotune.report.compare import compare
    from autotune.report.documents import comparison_document
    from autotune.report.terminal import comparison_page, console

    comparison = compare(options.a, options.b)
    if options.json:
        print(json.dumps(comparison_document(comparison), indent=2, allow_nan=False))
    else:
        console().print(comparison_page(comparison))
    return ExitCode.DONE
