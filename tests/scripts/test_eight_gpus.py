"""The runner for eight GPUs: what it would do, what it keeps, and that it goes on."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.config import load_sweep
from autotune.landscape import read_landscape

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu" / "eight_gpus.py"
PARTS = ["scenarios", "four_beside", "two_beside", "overlap", "overlap_errors", "sweep"]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def call(*arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    results = tmp_path_factory.mktemp("dry") / "results"
    done = call("--dry-run", "--results", str(results))
    assert done.returncode == 0, done.stderr
    assert not results.exists()
    return done.stdout


def test_a_dry_run_names_every_part_with_its_command(dry_run: str) -> None:
    named = [line.partition(": python ")[0] for line in dry_run.splitlines() if ": python" in line]
    assert named == PARTS
    assert "disturbance.py search_spaces/qwen2.5-1.5b_ppo_2xh200.yaml" in dry_run
    assert "overlap_landscape.py" in dry_run and "--ranks 8" in dry_run


def test_every_part_uses_all_eight_gpus(dry_run: str) -> None:
    used = [line.strip() for line in dry_run.splitlines() if line.endswith("ranks at once")]
    assert used == [f"{trials} x {8 // trials} ranks at once" for trials in (1, 4, 2, 1)]


def test_the_sweep_goes_on_where_the_scenarios_end(dry_run: str) -> None:
    assert "0 of 6 trials are there" in dry_run and "0 of 20 trials are there" in dry_run


def test_a_setting_that_is_not_valid_is_refused_before_anything_starts() -> None:
    broken = "search.first=[{ppo_micro_batch_size_per_gpu: 7}]"
    done = call("--dry-run", broken, "--only", "sweep")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: search.first[0]")


def test_a_part_that_is_not_there_is_said() -> None:
    done = call("--only", "sweeps")
    assert done.returncode == 2 and "there is no part sweeps; there are scenarios" in done.stderr


def part(script: dict[str, Any], name: str) -> Any:
    return script["Part"](name=name, command=(name,))


def test_parts_run_in_order_and_a_failure_stops_none(
    script: dict[str, Any], tmp_path: Path
) -> None:
    started: list[str] = []

    def start(command: Sequence[str]) -> int:
        started.append(command[1])
        return {"a": 1, "b": 0, "c": 130, "d": 0}[command[1]]

    codes = script["run_all"]([part(script, name) for name in "abcd"], tmp_path, start)
    assert started == ["a", "b", "c"]
    assert codes == {"a": 1, "b": 0, "c": 130}


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_real_sweep_is_run_kept_and_not_run_again(tmp_path: Path) -> None:
    make_assets = [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"]
    subprocess.run(make_assets, cwd=ROOT, check=True)
    quickstart = "search_spaces/quickstart_cpu.yaml"
    arguments = (
        *("--results", str(tmp_path), "--only", "scenarios", "--whole", quickstart),
        *("search.num_trials=2", "trial.measured_steps=1", "trial.profiled_steps=0"),
        "calibrate=false",
    )
    done = call(*arguments, timeout_s=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = json.loads((tmp_path / "scenarios.json").read_text())
    assert [trial["outcome"] != "" for trial in record["trials"]] == [True, True]
    landscape = read_landscape(tmp_path / "scenarios_landscape.json")
    assert landscape.baseline == load_sweep(ROOT / quickstart, is_elsewhere=True).space.baseline()

    before = (tmp_path / "quickstart_cpu" / "trials.jsonl").read_bytes()
    (tmp_path / "scenarios.json").unlink()
    again = call(*arguments, timeout_s=200)
    assert again.returncode == 0 and "2 of 2 trials are there" in again.stdout
    assert (tmp_path / "quickstart_cpu" / "trials.jsonl").read_bytes() == before
    assert json.loads((tmp_path / "scenarios.json").read_text()) == record
    shutil.rmtree(tmp_path)
