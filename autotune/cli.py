"""The command ``autotune``: parse, wire, print, exit code.

Runs in the driver. Heavy packages are imported by the commands that need them, so that ``--help``
answers at once.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from autotune.commands import calibrate, check, compare, list, report, show, sweep
from autotune.errors import AutotuneError, BadInputError, ExitCode

COMMANDS = {
    "sweep": sweep,
    "check": check,
    "calibrate": calibrate,
    "list": list,
    "report": report,
    "show": show,
    "compare": compare,
}
"""Command -> its module, which has ``SUMMARY``, ``add_arguments(parser)`` and ``run(options)``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("autotune: interrupted; run the same command again to go on.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BadInputError as error:
        print(f"autotune: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except AutotuneError as error:
        print(f"autotune: {error}", file=sys.stderr)
        return ExitCode.FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotune", description="Find the fastest feasible settings of a verl PPO job."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name, help=module.SUMMARY, description=f"{module.SUMMARY.capitalize()}."
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
