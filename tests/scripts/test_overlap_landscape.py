"""The runner of overlap plans, on two gloo ranks: what it writes, that its traces say the same
twice, and that it goes on.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

LAST = ("0_0", "0_1", "1_0", "1_1")
"""Resharding and no-sync in the names of the traces' folders."""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


def run(out: Path, *layers_per_unit: str) -> list[dict[str, Any]]:
    command = [sys.executable, "scripts/overlap_landscape.py", "--out", str(out)]
    command += ["--device", "cpu", "--shape", "tiny", "--sequences", "2", "--sequence-tokens", "16"]
    command += ["--micro-batches", "1", "--depths", "0", "--steps", "1"]
    command += ["--layers-per-unit", *layers_per_unit, "--traces", str(out.parent / "traces")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_PLATFORM": "cpu"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_points_are_measured_once_with_their_predictions(tmp_path: Path) -> None:
    out = tmp_path / "landscape.jsonl"
    machine, *points = run(out, "4")
    # one micro-batch, one size, one depth; resharding and no-sync on and off
    assert machine["calibration"]["world_size"] == 2 and len(points) == 4
    for point in points:
        assert point["units"] == 2 and point["step_s"] > 0
        assert point["predicted"]["communication_s"] > 0
        assert point["profiled"]["comm_ratio"] > 0
    folders = sorted((tmp_path / "traces").iterdir())
    assert [folder.name for folder in folders] == [f"1_4_0_{last}" for last in LAST]
    command = [sys.executable, "tests/measure/chrome_trace.py", *map(str, folders)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=ROOT, env=environment).returncode == 0

    again = run(out, "4", "8")
    assert again[:5] == [machine, *points]
    added = [line["point"]["layers_per_unit"] for line in again[5:] if "point" in line]
    assert added == [8, 8, 8, 8]
