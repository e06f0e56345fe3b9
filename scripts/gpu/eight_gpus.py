"""Everything that eight GPUs of one host are to show, one part after another.

Runs in the driver, from the checkout; starts a local Ray for each part. A part that is finished is
not run again, one that was interrupted goes on. The folder ``--results`` gets each part's records:
sweeps' folders, ``<part>.json`` and, of sweeps, ``<part>_landscape.json``.

    python scripts/gpu/eight_gpus.py --dry-run    # what it would do; starts nothing
    python scripts/gpu/eight_gpus.py --only sweep

scenarios   trial 0 and the settings that the sweep file tries first: one job on all GPUs
four_beside four jobs at once on two GPUs each, against one alone
two_beside  two jobs at once on four GPUs each, against one alone
overlap     overlap plans of plain FSDP2 on all GPUs, predicted beside measured;
            overlap_errors sums them up
sweep       the scenarios' sweep to its full number of trials, and its verification
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config import Sweep, load_sweep
from autotune.errors import BadInputError, ExitCode
from autotune.landscape import json_text, landscape_of
from autotune.plan import limit_of_cost
from autotune.report.kept import METRICS, kept_record
from autotune.report.reading import read_sweep
from autotune.store import write_atomic
from autotune.sweep import store_of

ROOT = Path(__file__).parents[2]
NUM_GPUS = 8


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing to run."""

    name: str
    command: tuple[str, ...]
    """Behind the Python that runs this."""
    file: str | None = None
    """The sweep file, where there is one; relative to the checkout."""
    overrides: tuple[str, ...] = ()
    at_once: int = 1
    """Trials beside one another."""
    is_sweep: bool = False
    """Whether the part leaves a sweep's folder."""


def parts(options: argparse.Namespace) -> list[Part]:
    """Return all parts in the order in which they run."""
    folder = f"output_dir={options.results}"
    first = (folder, "search.num_trials=6", "verify.enabled=false")
    return [
        _sweep_part("scenarios", options.whole, (*first, *options.overrides)),
        _beside_part("four_beside", options, at_once=4),
        _beside_part("two_beside", options, at_once=2),
        Part(
            name="overlap",
            command=(
                *("scripts/overlap_landscape.py", "--out", f"{options.results}/overlap.jsonl"),
                *("--ranks", str(NUM_GPUS), "--shape", "1.5b", "--micro-batches", "1", "4", "16"),
                *("--layers-per-unit", "1", "4", "--depths", "0", "2", "--steps", "2"),
            ),
        ),
        Part(
            name="overlap_errors",
            command=(
                *("scripts/overlap_errors.py", f"{options.results}/overlap.jsonl"),
                *("--out", f"{options.results}/overlap.json"),
            ),
        ),
        _sweep_part("sweep", options.whole, (folder, *options.overrides)),
    ]


def _sweep_part(name: str, file: str, overrides: tuple[str, ...]) -> Part:
    command = ("-m", "autotune.cli", "sweep", file, *overrides)
    return Part(name=name, command=command, file=file, overrides=overrides, is_sweep=True)


def _beside_part(name: str, options: argparse.Namespace, *, at_once: int) -> Part:
    overrides = (
        f"resources.ranks_per_node={NUM_GPUS // at_once}",
        # Only the base job's own setting runs, and the file's others may not fit so many ranks.
        "search.first=[]",
        *options.overrides,
    )
    return Part(
        name=name,
        command=(
            *("scripts/disturbance.py", options.part, *overrides),
            *("--at-once", str(at_once), "--rounds", "2"),
            *("--out", f"{options.results}/{name}.json"),
        ),
        file=options.part,
        overrides=(*overrides, f"search.max_concurrent={at_once}"),
        at_once=at_once,
    )


def describe(part: Part) -> str:
    """Return what a part would do, in words; its sweep file is loaded and checked.

    Raises:
        BadInputError: The sweep file, or what it tries first, is wrong.
    """
    lines = [f"{part.name}: python {' '.join(part.command)}"]
    if part.file is None:
        return lines[0]
    sweep = load(part)
    resources = sweep.config.resources
    used = part.at_once * resources.num_ranks
    if resources.device == "gpu" and used > NUM_GPUS:
        raise SystemExit(f"{part.name}: {part.at_once} trials need {used} GPUs.")
    if part.is_sweep:
        store = store_of(sweep)
        done = len(store.read_trials()) if store.folder.is_dir() else 0
        cost = limit_of_cost(sweep, done)
        lines.append(
            f"  {done} of {sweep.config.search.num_trials} trials are there; the others take at "
            f"most {cost.wall_hours:.1f} h"
        )
    return "\n".join([*lines, f"  {part.at_once} x {resources.num_ranks} ranks at once"])


def load(part: Part) -> Sweep:
    """Load a part's sweep; its models are below the current folder."""
    assert part.file is not None
    return load_sweep(ROOT / part.file, list(part.overrides), is_elsewhere=True)


def keep(sweep: Sweep, name: str, results: Path) -> None:
    """Write a sweep's small record and its landscape, as far as it has come.

    Args:
        sweep: The sweep; trials beyond its number of trials are another part's.
        name: Of the part.
        results: Where the files go.
    """
    folder = store_of(sweep).folder
    if not folder.is_dir():
        return
    found = read_sweep(folder)
    own = [record for record in found.trials if record.number < sweep.config.search.num_trials]
    data = dataclasses.replace(found, trials=own)
    write_atomic(results / f"{name}.json", json_text(kept_record(data), rows="trials"))
    if data.baseline is not None and data.baseline.state.is_setting_fault:
        config = data.config
        landscape = landscape_of(
            config.name, data.trials, config.objective.metric, config.constraints
        )
        text = json_text(landscape.to_dict(METRICS), rows="rows")
        write_atomic(results / f"{name}_landscape.json", text)


Start = Callable[[Sequence[str]], int]
"""Runs a command to its end and returns its exit code."""


def run_all(chosen: Sequence[Part], results: Path, start: Start) -> dict[str, int]:
    """Run parts to their ends and keep what they found; an interruption ends the last one.

    Returns:
        Part -> exit code, of those that were begun.
    """
    codes: dict[str, int] = {}
    for part in chosen:
        print(f"== {part.name}", flush=True)
        codes[part.name] = start([sys.executable, *part.command])
        if part.is_sweep:
            keep(load(part), part.name, results)
        if codes[part.name] == ExitCode.INTERRUPTED:
            break
    return codes


def _start(command: Sequence[str]) -> int:
    """Run a command; Ctrl-C is the command's own to answer, and is told to the caller."""
    process = subprocess.Popen(command, cwd=ROOT)
    interrupted = False
    while True:
        try:
            code = process.wait()
            return int(ExitCode.INTERRUPTED) if interrupted else code
        except KeyboardInterrupt:
            interrupted = True


def make_models(chosen: Sequence[Part], folder: Path, *, with_weights: bool) -> None:
    """Make the random models that the parts' sweep files name, unless they are there.

    Args:
        chosen: The parts.
        folder: Below which they go.
        with_weights: Whether they are to be run, and not only looked at.
    """
    script = str(ROOT / "scripts" / "make_demo_assets.py")
    files = sorted({part.file for part in chosen if part.file is not None})
    text = "".join((ROOT / file).read_text() for file in files)
    for name in sorted(set(re.findall(r"demo/(tiny|qwen2\.5-[\d.]+b)/", text))):
        size = name.removeprefix("qwen2.5-").replace("b", "B")
        made = [script, "--size", size, "--out", f"demo/{name}"]
        made += [] if with_weights else ["--without-weights"]
        subprocess.run([sys.executable, *made], cwd=folder, check=True, stdout=sys.stderr)


def main() -> int:
    """Run what is left of the chosen parts, or say what that is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every sweep file")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of records")
    parser.add_argument(
        "--only", action="append", metavar="PART", help="run this part; may be repeated"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would run, start nothing")
    parser.add_argument(
        "--whole",
        default="search_spaces/qwen2.5-7b_ppo_8xh200.yaml",
        help="sweep file of the job on all GPUs",
    )
    parser.add_argument(
        "--part",
        default="search_spaces/qwen2.5-1.5b_ppo_2xh200.yaml",
        help="sweep file of the job on some of them",
    )
    options = parser.parse_args()
    options.results = options.results.resolve()
    every = {part.name: part for part in parts(options)}
    unknown = [name for name in options.only or () if name not in every]
    if unknown:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(every)}")
    chosen = [every[name] for name in options.only or every]
    if options.dry_run:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            make_models(chosen, Path(folder), with_weights=False)
            print("\n".join(describe(part) for part in chosen))
        return 0
    os.chdir(ROOT)
    make_models(chosen, ROOT, with_weights=True)
    print("\n".join(describe(part) for part in chosen), flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    codes = run_all(chosen, options.results, _start)
    print(f"Exit codes: {json.dumps(codes)}; records: {options.results}")
    return next((code for code in codes.values() if code), 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInputError as error:
        sys.exit(f"Error: {error}")
