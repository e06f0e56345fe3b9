"""``autotune verify``: measure the best settings of a sweep, or a production file, against the base
job again.

Runs in the driver. The module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.commands.arguments import add_address
from autotune.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from autotune.config import Sweep
    from autotune.store import SweepStore
    from autotune.verify import Candidate

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
    from autotune.report.page import HTML_FILE, renew_report
    from autotune.report.summary import next_text
    from autotune.report.verify_text import verification_text
    from autotune.store import VERSIONS_FILE
    from autotune.sweep import calibrate_sweep, with_calibration, with_this_run
    from autotune.tuning import cluster
    from autotune.verify import Verifier, attempt_of

    console = Console()
    file = options.target if options.target.is_file() else None
    sweep, store, candidates = _of_sweep(options) if file is None else _of_file(options, file)
    with store.locked(), cluster(sweep, options.address), cleared(store.folder):
        store.write(VERSIONS_FILE, with_this_run(store.folder / VERSIONS_FILE))
        sweep = with_calibration(sweep, calibrate_sweep(sweep, store, console))
        attempt = attempt_of(sweep, store, candidates, again=options.again)
        verifier = Verifier(
            sweep, store, candidates, console=console, attempt=attempt, file=file
        )
        found = verifier.run()
    if found is None:
        print("Interrupted; run the command without --again to go on.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    print(verification_text(found, sweep.config.resources.device))
    print(f"Records: {store.folder}")
    if file is None:
        data, answer = renew_report(store.folder)
        print(f"Report: {data.folder / HTML_FILE}")
        if line := next_text(answer, data):
            print(line)
    return ExitCode.DONE if found.winner is not None else ExitCode.FAILED


def _of_file(
    options: argparse.Namespace, file: Path
) -> "tuple[Sweep, SweepStore, list[Candidate]]":
    """Return the sweep with the base job, a store of its own, and the file's setting."""
    from autotune.config import load_sweep
    from autotune.report.reading import is_sweep
    from autotune.report.text import plural
    from autotune.store import SweepStore
    from autotune.sweep import store_of
    from autotune.verify import file_candidate

    if options.base is None:
        raise BadInputError(
            f"{file} is a file; --base is missing.",
            "Name the sweep file whose base job it is to be held against.",
        )
    sweep = load_sweep(options.base, options.overrides)
    candidate, others = file_candidate(sweep, file)
    if others:
        print(
            f"{file} differs from the base job in {plural(len(others), 'other key')} "
            f"({', '.join(others[:5])}{', ...' if len(others) > 5 else ''}): there, both run "
            "with the base job's values."
        )
    folder = store_of(sweep).folder
    folder = folder.with_name(f"{folder.name}_verify")
    if is_sweep(folder):
        raise BadInputError(f"{folder} is a sweep of its own.", "Add output_dir=FOLDER.")
    return sweep, SweepStore(folder), [candidate]


def _of_sweep(options: argparse.Namespace) -> "tuple[Sweep, SweepStore, list[Candidate]]":
    """Return a sweep, its store and its best settings."""
    from autotune.config import load_sweep
    from autotune.report.reading import read_sweep
    from autotune.store import CONFIG_FILE, SweepStore
    from autotune.verify import best_candidates

    data = read_sweep(options.target)
    sweep = load_sweep(data.folder / CONFIG_FILE, options.overrides)
    candidates = best_candidates(sweep, data.trials)
    if not candidates:
        raise BadInputError(
            f"{options.target}: no feasible trial is better than the base job's own settings.",
            "There is nothing to verify.",
        )
    return sweep, SweepStore(data.folder), candidates
