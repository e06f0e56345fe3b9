"""How good are searches in landscapes: ours against others, the same noise and budgets for all.

    python scripts/bench_search.py --seeds 100 --processes 16 --out scripts/bench_search.json
    python scripts/bench_search.py --table scripts/bench_search.json --readme README.md

The table says how fast the setting that each method exports is in truth, relative to the best
feasible one: on the landscapes that ship, and on ``held_out``, where every seed has a simulated
landscape of its own; shares of start-up and repetition were chosen with seeds below 48, nothing
with the later ones. No Ray cluster is started. Each search is appended to a file of lines beside
the output as it ends, so that a run that was interrupted goes on; the figures are of all lines in
that file, and written at the end. How methods play is in ``search_bench/methods.py``.
"""

import argparse
import contextlib
import functools
import importlib.metadata
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from search_bench.figures import GOOD, summary, table, with_figures, write_figures
from search_bench.methods import METHODS, missing_packages
from search_bench.simulated import simulated_landscape

from autotune.landscape import Landscape, read_landscape
from autotune.objective import TrialRecord
from autotune.replay import ratio_to_optimum

ROOT = Path(__file__).resolve().parents[1]
HELD_OUT = "held_out"
LANDSCAPES = (*(path.stem for path in sorted((ROOT / "landscapes").glob("*.json"))), HELD_OUT)
BUDGETS = (10, 20, 40)
REPORT_INTERVAL_S = 15.0


class Search(NamedTuple):
    """One search to run."""

    landscape: str
    method: str
    budget: int
    seed: int


@functools.lru_cache(maxsize=8)
def landscape_of(name: str, seed: int) -> Landscape:
    """Return a landscape that ships, by its file's stem, or a seed's own one."""
    if name == HELD_OUT:
        return simulated_landscape(seed)
    return read_landscape(ROOT / "landscapes" / f"{name}.json")


def measure(search: Search) -> dict[str, Any]:
    """Run one search; return its line."""
    landscape = landscape_of(search.landscape, search.seed if search.landscape == HELD_OUT else 0)
    start = time.process_time()
    records, setting = METHODS[search.method](landscape, search.budget, search.seed)
    return {
        **search._asdict(),
        "ratio": round(ratio_to_optimum(landscape, setting), 5) if setting is not None else 0.0,
        "exported": setting is not None,
        "infeasible": setting is not None and not landscape.is_feasible(setting),
        "failed": sum(record.state.is_failure for record in records),
        "trials": len(records),
        "trials_to_good": _trials_to_good(landscape, records),
        "cpu_s": round(time.process_time() - start, 3),
    }


def _trials_to_good(landscape: Landscape, records: Sequence[TrialRecord]) -> int | None:
    """Return after how many trials a feasible setting near the optimum had been measured."""
    for index, record in enumerate(records):
        if ratio_to_optimum(landscape, record.setting) >= GOOD:
            return index + 1
    return None


def run_all(searches: Sequence[Search], path: Path, num_processes: int) -> list[dict[str, Any]]:
    """Run the searches that a file of lines lacks, and return all of its lines."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {Search(*(line[name] for name in Search._fields)) for line in lines}
    missing = [search for search in searches if search not in done]
    begin, last = time.monotonic(), time.monotonic()
    with path.open("a") as file:
        for count, line in enumerate(_results(missing, num_processes), start=1):
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
            if time.monotonic() - last > REPORT_INTERVAL_S or count == len(missing):
                last = time.monotonic()
                left_s = (last - begin) / count * (len(missing) - count)
                text = f"{count} of {len(missing)} searches, about {left_s:.0f} s left"
                print(text, file=sys.stderr, flush=True)
    return lines


def _results(searches: Sequence[Search], num_processes: int) -> Iterator[dict[str, Any]]:
    """Yield lines as they come; processes stay for many searches, since their imports take time."""
    if num_processes == 1:
        yield from map(measure, searches)
        return
    # A search computes with small matrices: threads of its own would only be in the others' way.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    context = multiprocessing.get_context("spawn")
    left = iter(searches)
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        running: set[Future[dict[str, Any]]] = set()
        while True:
            wanted = 2 * num_processes - len(running)
            running |= {pool.submit(measure, search) for search in islice(left, wanted)}
            if not running:
                return
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()


def _versions() -> dict[str, str]:
    """Return the releases that the methods came from, of packages that are installed."""
    names = ("optuna", "ray", "numpy", "scipy", "botorch", "optuna-integration")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--landscapes", nargs="+", default=list(LANDSCAPES), choices=LANDSCAPES)
    parser.add_argument("--processes", type=int, default=1, help="searches at once (default: 1)")
    parser.add_argument("--out", default="bench_search.json", help="figures, replaced at the end")
    parser.add_argument("--table", help="print the table of a file of figures; run nothing")
    parser.add_argument("--readme", help="with --table: write the figures into this README too")
    options = parser.parse_args()
    if options.table:
        shown = json.loads(Path(options.table).read_text())["rows"]
        print(table(shown))
        if options.readme:
            readme = Path(options.readme)
            readme.write_text(with_figures(readme.read_text(), shown))
        return
    for method in options.methods:
        if missing := missing_packages(method):
            print(f"{method} is left out: {', '.join(missing)} not installed", file=sys.stderr)
    searches = [
        Search(landscape, method, budget, seed)
        for seed in range(options.seeds)
        for landscape in options.landscapes
        for budget in options.budgets
        for method in options.methods
        if not missing_packages(method)
    ]
    path = Path(options.out)
    rows = summary(run_all(searches, path.with_suffix(".jsonl"), options.processes))
    write_figures(path, rows, {"seeds": "0 to one less than each row's", "versions": _versions()})
    print(table(rows))


if __name__ == "__main__":
    main()
