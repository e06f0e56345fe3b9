"""``autotune plan``: what a sweep would do and cost, without starting anything.

Runs in the shell's own process; touches no GPU and no cluster. The module's head imports nothing
heavy, so that ``--help`` answers at once.
"""

import argparse
import math

from autotune.commands.arguments import add_sweep_file
from autotune.commands.check import describe
from autotune.errors import BadInputError, ExitCode
from autotune.models.assumed_links import ASSUMED_LINKS

SUMMARY = "say what a sweep would do and cost, without starting anything"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_sweep_file(parser)
    parser.add_argument(
        "--first", type=int, default=5, help="settings to look ahead (default: %(default)s)"
    )
    basis = parser.add_mutually_exclusive_group()
    basis.add_argument(
        "--calibration",
        metavar="FILE",
        help="predict communication from this calibration.json instead of the last one of such "
        "trials",
    )
    basis.add_argument(
        "--link", choices=list(ASSUMED_LINKS), help="predict communication for links of this kind"
    )
    parser.add_argument(
        "--flops-per-s",
        type=float,
        metavar="RATE",
        help="what a large layer reaches on one device, e.g. 4e14, where nothing is measured",
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Print the plan."""
    from autotune.config import load_sweep
    from autotune.plan import make_plan, text_of
    from autotune.plan_forecast import basis_of

    rate = options.flops_per_s
    if rate is not None and (options.calibration is not None or not 0 < rate < math.inf):
        raise BadInputError(
            f"--flops-per-s is {rate:g}"
            + (" beside --calibration." if options.calibration is not None else "."),
            "It is a positive number, and a calibration brings its own.",
        )
    sweep = load_sweep(options.file, options.overrides, is_elsewhere=True)
    print(describe(sweep))
    basis = basis_of(sweep, file=options.calibration, link=options.link, flops_per_s=rate)
    print(text_of(sweep, make_plan(sweep, options.first, basis)))
    return ExitCode.DONE
