"""``autotune verify``: measure the best settings of a sweep, or a production file, against the base
job again.

Runs in the driver. The module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.commands.arguments import add_address
from autotune.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from autotune.config import Sweep
    from autotune.store import SweepStore

SUMMARY = "measure the best settings, or a production file, against the base job in cold jobs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("target", type=Path, help="a sweep's folder, or an exported best.yaml")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings that win over the sweep's"
    )
    parser.add_argument("--base", help="for a file: the sweep file with the base job")
    parser.add_argument(
        "--again", action="store_true", help="start anew although this verification has ended"
    )
    add_address(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Run what is left of the verification and print what it found."""
    from rich.console import Console

    from autotune.leftovers import cleared
    from autotune.report.verify_text import verification_text
    from autotune.sweep import calibrate_sweep, with_calibration
    from autotune.tuning import cluster
    from autotune.verify import Verifier, attempt_of

    console = Console()
    sweep, store, candidates, claim = _what(options)
    with store.locked(), cluster(sweep, options.address), cleared(store.folder):
        sweep = with_calibration(sweep, calibrate_sweep(sweep, store, console))
        attempt = attempt_of(sweep, store, candidates, again=options.again)
        verifier = Verifier(
            sweep, store, candidates, console=console, attempt=attempt, claim=claim
        )
        found = verifier.run()
    if found is None:
        print("Interrupted; run the command without --again to go on.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    print(verification_text(found, sweep.config.resources.device))
    return ExitCode.DONE if found.winner is not None else ExitCode.FAILED


def _what(options: argparse.Namespace) -> "tuple[Sweep, SweepStore, Any, Any]":
    """Return the sweep, its store, the settings to compare, and what a file claims of them."""
    from autotune.config import load_sweep
    from autotune.report.reading import read_sweep
    from autotune.store import CONFIG_FILE, SweepStore
    from autotune.sweep import store_of
    from autotune.verify import best_candidates, claim_of, file_candidate

    target: Path = options.target
    if target.is_file():
        if options.base is None:
            raise BadInputError(
                f"{target} is a file; --base is missing.",
                "Name the sweep file whose base job it is to be held against.",
            )
        sweep = load_sweep(options.base, options.overrides)
        candidate, others = file_candidate(sweep, target)
        if others:
            print(
                f"{target} differs from the base job in {len(others)} other keys "
                f"({', '.join(others[:5])}{', ...' if len(others) > 5 else ''}): there, both run "
                "with the base job's values."
            )
        folder = store_of(sweep).folder
        store = SweepStore(folder.with_name(f"{folder.name}_verify"))
        return sweep, store, [candidate], claim_of(target)
    data = read_sweep(target)
    sweep = load_sweep(data.folder / CONFIG_FILE, options.overrides)
    candidates = best_candidates(sweep, data.trials)
    if not candidates:
        raise BadInputError(
            f"{target}: no feasible trial is better than the base job's own settings.",
            "There is nothing to verify.",
        )
    return sweep, SweepStore(data.folder), candidates, None
