"""``autotune export``: write the best setting of a sweep as files for production.

Runs in the driver; starts nothing. The module's head imports nothing heavy, so that ``--help``
answers at once.
"""

import argparse
import sys
from pathlib import Path

from autotune.errors import ExitCode

SUMMARY = "write a sweep's best setting as a verl configuration, overrides and a launch script"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=Path, help="the sweep's folder")
    parser.add_argument("--out", type=Path, help="folder for the files; the sweep's by default")
    parser.add_argument(
        "--trial", type=int, help="number of a trial to export instead, of a Pareto front say"
    )
    parser.add_argument(
        "--allow-unproven",
        action="store_true",
        help="also export a setting that is infeasible or was not proven faster; each file says so",
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Write the files and name them."""
    from autotune.export import export
    from autotune.report.answer import production_command
    from autotune.report.page import renew_report

    out = options.out if options.out is not None else options.folder
    exported = export(
        options.folder, out, allow_unproven=options.allow_unproven, number=options.trial
    )
    if out.resolve() == options.folder.resolve():
        renew_report(options.folder)
    print("\n".join(f"Wrote {path}" for path in exported.files))
    if exported.refused is not None:
        print(f"autotune: {exported.refused}", file=sys.stderr)
        return ExitCode.FAILED
    print(f"Production: {production_command(out.resolve())}")
    return ExitCode.DONE
