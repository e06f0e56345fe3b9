"""The measurement of jobs beside one another: its order, what it concludes, that it goes on."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "disturbance.py"
QUICKSTART = "search_spaces/quickstart_cpu.yaml"
SPEED = "throughput_tokens_per_s_per_gpu"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def group(*speeds: float) -> dict[str, Any]:
    return {"jobs": [{SPEED: speed, "step_s": 1 / speed} for speed in speeds]}


def test_groups_alternate_so_that_drift_meets_both_kinds(script: dict[str, Any]) -> None:
    assert script["schedule"](3, 4) == [1, 4, 4, 1, 1, 4]


def test_a_group_counts_once_with_its_mean(script: dict[str, Any]) -> None:
    found = script["conclusion"]([group(100.0), group(40.0, 60.0)], SPEED)
    assert found["times_as_fast_as_alone"] == pytest.approx(0.5)
    assert (found["num_alone"], found["num_beside"]) == (1, 1)
    assert "they slow one another down, 0.50 times as fast as alone" in found["text"]


def test_a_time_is_better_when_it_is_shorter(script: dict[str, Any]) -> None:
    found = script["conclusion"]([group(100.0), group(50.0, 50.0)], "step_s")
    assert found["times_as_fast_as_alone"] == pytest.approx(0.5)


def test_one_kind_of_group_says_nothing(script: dict[str, Any]) -> None:
    assert script["conclusion"]([group(100.0)], SPEED) == {
        "text": "Groups so far: 1; one of each kind is needed."
    }


def measure(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    overrides = ("trial.measured_steps=1", "trial.profiled_steps=0")
    return subprocess.run(
        [sys.executable, str(SCRIPT), QUICKSTART, *overrides, "--out", str(out), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_two_real_jobs_at_once_are_compared_with_one_alone(tmp_path: Path) -> None:
    make_assets = [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"]
    subprocess.run(make_assets, cwd=ROOT, check=True)
    out = tmp_path / "beside.json"
    done = measure(out, "--rounds", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())
    assert [len(each["jobs"]) for each in found["groups"]] == [1, 2]
    first, second = found["groups"][1]["jobs"]
    assert first["started_at"] < second["ended_at"] and second["started_at"] < first["ended_at"]
    assert found["conclusion"]["times_as_fast_as_alone"] > 0

    again = measure(out, "--rounds", "1")
    assert again.returncode == 0 and json.loads(out.read_text()) == found
    assert again.stdout.strip() == found["conclusion"]["text"]
