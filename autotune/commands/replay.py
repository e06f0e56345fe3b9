"""``autotune replay``: search in recorded measurements instead of on a cluster.

Runs in the driver. The module's head imports nothing heavy, so that ``--help`` answers at once.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import BadInputError, ExitCode

if TYPE_CHECKING:
    from autotune.landscape import Landscape
    from autotune.replay import Outcome
    from autotune.settings import SearchConfig

SUMMARY = "search in recorded measurements: what would N trials have found?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("landscape", help="a landscape file (JSON), or the folder of a sweep")
    parser.add_argument("--trials", type=int, default=20, help="trials of a search (default: 20)")
    parser.add_argument("--sampler", default="model", help="model, tpe, gp or random")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search and of the noise")
    parser.add_argument(
        "--seeds", type=int, default=1, help="searches, each with its own seed; above 1 without Ray"
    )
    parser.add_argument("--concurrent", type=int, default=1, help="trials at once (default: 1)")
    parser.add_argument("--min-gain", type=float, default=0.0, help="as search.min_gain_ratio")


def run(options: argparse.Namespace) -> ExitCode:
    """Search the landscape once, or once for every seed, and say what was found."""
    import tempfile

    from autotune.replay import run_directly, run_in_tune
    from autotune.settings import check_search

    landscape = load(Path(options.landscape))
    if options.seeds < 1:
        raise BadInputError(f"--seeds is {options.seeds}.", "It must be at least 1.")
    settings = settings_of(options, options.seed)
    check_search(settings)
    print(f"Landscape {landscape.name}: {len(landscape.rows)} settings. {landscape.origin}")
    if options.seeds > 1:
        for seed in range(options.seed, options.seed + options.seeds):
            found = run_directly(landscape, settings_of(options, seed), seed=seed)
            print(f"seed {seed}: {text_of(found, landscape)}", flush=True)
        return ExitCode.DONE
    with tempfile.TemporaryDirectory() as folder:
        found = run_in_tune(landscape, settings, seed=options.seed, folder=Path(folder) / "sweep")
    for record in found.records:
        print(f"  trial {record.number} {record.state.value}: {record.setting}")
    print(text_of(found, landscape))
    return ExitCode.DONE


def load(path: Path) -> "Landscape":
    """Read a landscape file, or the trials of a sweep's folder as one."""
    from autotune.config import load_config
    from autotune.landscape import landscape_of, read_landscape
    from autotune.store import CONFIG_FILE, SweepStore

    if not path.is_dir():
        return read_landscape(path)
    config = load_config(path / CONFIG_FILE)
    records = SweepStore(path).read_trials()
    return landscape_of(config.name, records, config.objective.metric, config.constraints)


def settings_of(options: argparse.Namespace, seed: int) -> "SearchConfig":
    """Return the search section that the arguments stand for."""
    from autotune.settings import SearchConfig

    return SearchConfig(
        sampler=options.sampler,
        num_trials=options.trials,
        max_concurrent=options.concurrent,
        seed=seed,
        num_startup_trials=min(2, options.trials),
        min_gain_ratio=options.min_gain,
    )


def text_of(found: "Outcome", landscape: "Landscape") -> str:
    """Say what one search found."""
    lines = [] if found.stop_reason is None else [found.stop_reason]
    counts = f"{len(found.records)} trials, {found.num_failed} failed"
    if found.best is None:
        return " ".join([*lines, f"{counts}: no feasible setting was found."])
    if not found.is_feasible:
        verdict = "which breaks a constraint in truth"
    else:
        verdict = f"{100 * found.optimum_ratio:.1f} % of the feasible optimum in truth"
    value = found.best.value(landscape.objective)
    knobs = ", ".join(f"{name}={value}" for name, value in found.best.setting.items())
    return " ".join([*lines, f"{counts}: {landscape.objective} {value:.4g}, {verdict} [{knobs}]"])
