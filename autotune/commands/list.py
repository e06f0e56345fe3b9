"""``autotune list``: the sweeps in a folder, one line each.

Runs in the shell's own process; reads the sweeps' folders only. The module's head imports nothing
heavy, so that ``--help`` answers at once.
"""

import argparse
import json
import sys
from pathlib import Path

from autotune.commands.arguments import add_json
from autotune.errors import AutotuneError, ExitCode

SUMMARY = "list the sweeps in a folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folder", nargs="?", default="sweeps", help="folder that holds sweeps (default: sweeps)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Print one line a sweep; a sweep that cannot be read is named and passed over."""
    from autotune.report.documents import list_document
    from autotune.report.overview import overview
    from autotune.report.reading import find_sweeps, read_sweep
    from autotune.report.terminal import console, list_table

    lines, code = [], ExitCode.DONE
    for folder in find_sweeps(Path(options.folder)):
        try:
            lines.append(overview(read_sweep(folder)))
        except AutotuneError as error:
            print(f"autotune: {folder}: {error}", file=sys.stderr)
            code = ExitCode.FAILED
    if options.json:
        print(json.dumps(list_document(lines), indent=2, allow_nan=False))
    elif lines:
        console().print(list_table(lines))
    else:
        print(f"No sweep in {options.folder}.")
    return code
