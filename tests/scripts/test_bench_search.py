"""The benchmark of searches: its landscapes, its tuners, its figures, and going on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from search_bench.figures import summary, table, with_figures  # noqa: E402
from search_bench.methods import METHODS, missing_packages  # noqa: E402
from search_bench.simulated import simulated_landscape  # noqa: E402

from autotune.landscape import key_of, read_landscape  # noqa: E402
from autotune.objective import TrialState  # noqa: E402
from autotune.replay import ratio_to_optimum  # noqa: E402

MEASURED = "2xh200_ppo_microbatch"
CHEAP = ["random", "deepspeed"]


def bench(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/bench_search.py", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def test_equal_seeds_make_equal_landscapes_and_others_differ() -> None:
    first, again, other = (simulated_landscape(seed) for seed in (1, 1, 2))
    assert first == again
    assert first.baseline.keys() != other.baseline.keys() or first.optimum != other.optimum


@pytest.mark.parametrize("seed", range(5))
def test_a_simulated_landscape_has_settings_to_find_and_settings_that_fail(seed: int) -> None:
    landscape = simulated_landscape(seed)
    states = {row.state for row in landscape.rows}
    assert states == {TrialState.COMPLETE, TrialState.OUT_OF_MEMORY}
    assert landscape.by_key[key_of(landscape.baseline)].state is TrialState.COMPLETE
    assert ratio_to_optimum(landscape, landscape.baseline) < 0.95


@pytest.mark.parametrize("method", [name for name in METHODS if not missing_packages(name)])
def test_every_tuner_begins_with_the_baseline_and_keeps_to_its_budget(method: str) -> None:
    landscape = read_landscape(ROOT / "landscapes" / f"{MEASURED}.json")
    records, setting = METHODS[method](landscape, 5, 0)
    assert records[0].setting == landscape.baseline
    assert 0 < len(records) <= 5
    assert setting in [record.setting for record in records]


def test_figures_are_of_all_seeds_of_a_method() -> None:
    line = {"landscape": "a", "method": "m", "budget": 10, "exported": True, "trials": 10}
    lines = [
        {**line, "ratio": 1.0, "infeasible": False, "failed": 1, "trials_to_good": 4},
        {**line, "ratio": 0.8, "infeasible": False, "failed": 0, "trials_to_good": 6},
        {**line, "ratio": 0.0, "infeasible": True, "failed": 2, "trials_to_good": None},
    ]
    (row,) = summary(lines)
    assert (row["seeds"], row["median"], row["trials_to_good"]) == (3, 0.8, 6)
    assert (row["infeasible_ratio"], row["failed_ratio"]) == (0.3333, 0.1)
    assert "| a | 10 | m | 3 | 0.800 | 0.160 | 33.3 % | 0.0 % | 10.0 % | 6 |" in table([row])


def test_the_readmes_figures_are_those_of_the_committed_file() -> None:
    rows = json.loads((ROOT / "scripts" / "bench_search.json").read_text())["rows"]
    readme = (ROOT / "README.md").read_text()
    assert with_figures(readme, rows) == readme


@pytest.mark.slow
def test_an_interrupted_benchmark_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    few = ["--landscapes", MEASURED, "--budgets", "4", "--methods", *CHEAP]
    bench(out, "--seeds", "1", *few)
    kept = out.with_suffix(".jsonl").read_text()
    bench(out, "--seeds", "2", "--processes", "2", *few)
    lines = out.with_suffix(".jsonl").read_text()
    assert lines.startswith(kept) and len(lines.splitlines()) == 4
    rows = json.loads(out.read_text())["rows"]
    assert {(row["method"], row["seeds"]) for row in rows} == {("random", 2), ("deepspeed", 2)}
