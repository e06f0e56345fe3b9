"""The command ``autotune``: parse, wire, print, exit code.

Runs in the driver. Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. Heavy packages are
imported by the commands that need them, so that ``--help`` answers at once.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.errors import AutotuneError, BadInputError

if TYPE_CHECKING:
    from autotune.config import Sweep

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("autotune: interrupted; run the same command again to go on.", file=sys.stderr)
        return INTERRUPTED
    except BadInputError as error:
        print(f"autotune: {error}", file=sys.stderr)
        return BAD_INPUT
    except AutotuneError as error:
        print(f"autotune: {error}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="autotune", description="Find the fastest feasible settings of a verl PPO job."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sweep = commands.add_parser(
        "sweep",
        help="run a sweep, or go on with an interrupted one",
        description="Run a sweep file on a Ray cluster. Running it again goes on where it stopped.",
    )
    sweep.add_argument("file", help="the sweep file (YAML)")
    sweep.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings that win over the file's"
    )
    sweep.add_argument("--address", help="Ray cluster to use; without it a local one is started")
    sweep.set_defaults(run=_sweep)
    check = commands.add_parser("check", help="validate a sweep file and describe its search space")
    check.add_argument("file", help="the sweep file (YAML)")
    check.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    check.set_defaults(run=_check)
    return parser


def _check(options: argparse.Namespace) -> int:
    from autotune.config import load_sweep

    print(_describe(load_sweep(options.file, options.overrides)))
    return DONE


def _describe(sweep: "Sweep") -> str:
    summary = sweep.summary
    total = "continuous" if summary.num_points is None else f"{summary.num_points} settings"
    lines = [f"Sweep {sweep.config.name}: {total}, {summary.num_valid} valid."]
    for rule, count in summary.excluded.items():
        lines.append(f"  {count} excluded by {rule}: {summary.examples[rule]}")
    return "\n".join(lines)


def _sweep(options: argparse.Namespace) -> int:
    from rich.console import Console

    from autotune.config import load_sweep
    from autotune.report.summary import summary_text
    from autotune.sweep import BEST_FILE, outline_of, run_sweep, store_of

    sweep = load_sweep(options.file, options.overrides)
    print(_describe(sweep), flush=True)
    result = run_sweep(sweep, address=options.address, console=Console())
    print(summary_text(result.records, outline_of(sweep)))
    folder = store_of(sweep).folder
    print(f"Records: {folder}")
    if result.failure:
        print(f"autotune: {result.failure}", file=sys.stderr)
        return FAILED
    if not result.is_complete:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return INTERRUPTED
    if result.best is not None:
        print(
            f"Production: python -m verl.trainer.main_ppo --config-path {folder} "
            f"--config-name {BEST_FILE.removesuffix('.yaml')}"
        )
    return DONE


if __name__ == "__main__":
    sys.exit(main())
