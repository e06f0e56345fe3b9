"""``autotune doctor``: can this sweep run on this cluster, and what is in its way?

Runs in the driver; takes less than a minute and reserves nothing. The module's head imports nothing
heavy, so that ``--help`` answers at once.
"""

import argparse
from typing import TYPE_CHECKING

from autotune.commands.arguments import add_address, add_sweep_file
from autotune.errors import ExitCode

if TYPE_CHECKING:
    from autotune.doctor.findings import Finding

SUMMARY = "say whether this sweep can run on this cluster, and what is in its way"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    add_address(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Examine the cluster and print one line for each finding."""
    from autotune.config import load_sweep
    from autotune.doctor.examination import examine
    from autotune.doctor.findings import Level, findings

    sweep = load_sweep(options.file, options.overrides, is_elsewhere=True)
    found = findings(sweep, examine(sweep, options.address))
    for finding in found:
        print(line_of(finding))
    num_errors = sum(finding.level is Level.ERROR for finding in found)
    num_warnings = sum(finding.level is Level.WARNING for finding in found)
    print(f"{num_errors} errors, {num_warnings} warnings.")
    return ExitCode.FAILED if num_errors else ExitCode.DONE


def line_of(finding: "Finding") -> str:
    """Return a finding as one line: level, check, what was found, the mend."""
    end = f" -> {finding.mend}" if finding.mend else ""
    return f"{finding.level.value:<8} {finding.check:<10} {finding.text}{end}"
