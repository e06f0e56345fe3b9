"""The command ``autotune``: parse, wire, print, exit code.

Runs in the driver. Heavy packages are imported by the commands that need them, so that ``--help``
answers at once.
"""

import argparse
import errno
import logging
import sys
from collections.abc import Sequence

from autotune.commands import (
    calibrate,
    check,
    compare,
    doctor,
    export,
    fetch,
    list,
    logs,
    manifest,
    plan,
    replay,
    report,
    resume,
    show,
    status,
    stop,
    submit,
    sweep,
    verify,
    wandb_sync,
)
from autotune.errors import AutotuneError, BadInputError, ExitCode

COMMANDS = {
    "sweep": sweep,
    "check": check,
    "calibrate": calibrate,
    "verify": verify,
    "export": export,
    "list": list,
    "report": report,
    "replay": replay,
    "show": show,
    "compare": compare,
    "plan": plan,
    "doctor": doctor,
    "submit": submit,
    "status": status,
    "logs": logs,
    "stop": stop,
    "resume": resume,
    "fetch": fetch,
    "manifest": manifest,
    "wandb-sync": wandb_sync,
}
"""Command -> its module, which has ``SUMMARY``, ``add_arguments(parser)`` and ``run(options)``."""

_OF_FILE_SYSTEM = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
)
"""Errors that the machine's disks and their permissions make, not this package."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    options = parse(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("autotune: interrupted; run the same command again to go on.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BadInputError as error:
        _complain(error)
        return ExitCode.BAD_INPUT
    except AutotuneError as error:
        _complain(error)
        return ExitCode.FAILED
    except OSError as error:
        if error.errno not in _OF_FILE_SYSTEM:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        _complain(f"{where}{error.strerror}.")
        return ExitCode.FAILED


def _complain(problem: object) -> None:
    """Print what went wrong in one line: a value that it repeats may have several."""
    print(f"autotune: {' '.join(str(problem).splitlines())}", file=sys.stderr)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command's options; settings (``key=value``) may stand on both sides of options.

    argparse takes those positional arguments in one run only and leaves the others over.
    """
    parser = _parser()
    options, left = parser.parse_known_args(arguments)
    strangers = [text for text in left if text.startswith("-") or "=" not in text]
    if left and (strangers or not hasattr(options, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(strangers or left)}")
    if left:
        options.overrides += left
    return options


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
