"""Predictions for eight GPUs: the committed table comes out again, and holds what it must."""

import json
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "landscapes" / "overlap" / "predicted_8xh200_7b.json"
CALIBRATION = ROOT / "tests" / "data" / "calibration_by_hand.json"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "predict_plans.py"))


@pytest.fixture(scope="module")
def table() -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(TABLE.read_text())
    return content


def predict(out: Path, *options: str) -> Mapping[str, Any]:
    command = [sys.executable, "scripts/predict_plans.py", "--out", str(out), *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    content: Mapping[str, Any] = json.loads(out.read_text())
    return content


def test_the_committed_table_is_what_the_script_writes(
    table: Mapping[str, Any], tmp_path: Path
) -> None:
    assert predict(tmp_path / "again.json") == table


def test_measured_points_are_predicted_within_a_fifth(table: Mapping[str, Any]) -> None:
    assert len(table["check"]["points"]) == 7
    assert table["check"]["median_step_error_ratio"] < 0.2


def test_a_7b_update_moves_its_parameters_twice_and_its_gradients_once(
    script: dict[str, Any],
) -> None:
    job = script["job_of"]("7B", sequences=64, sequence_tokens=1536)
    # 7.616 billion parameters in bf16, gradients in fp32
    assert job.message_bytes == pytest.approx(7.6156e9 * (2 * 2 + 4), rel=1e-4)
    assert [layer.name for layer in job.layers][::29] == ["model.embed_tokens", "lm_head"]


def test_a_slow_link_is_exposed_where_a_fast_one_is_hidden(table: Mapping[str, Any]) -> None:
    shares = {
        (row["link"], row["micro_batch"]): row["exposed_ratio"]
        for row in table["plans"]
        if row["bucket_size"] == 0 and row["prefetch_depth"] == 0
    }
    assert shares["NVLink", 16] < 0.05 < shares["host memory", 16]
    assert shares["host memory", 1] > 0.8


def test_eight_ranks_pass_seven_eighths_of_a_message(
    script: dict[str, Any], table: Mapping[str, Any]
) -> None:
    two = table["from"]["NVLink"]["all_gather"]["bandwidth_bytes_per_s"]
    job = script["job_of"]("7B", sequences=64, sequence_tokens=1536)
    comm_s = 64 / 4 * job.message_bytes / (two * (1 / 2) / (7 / 8))
    found = {row["comm_s"] for row in table["plans"] if row["link"] == "NVLink"}
    assert any(value == pytest.approx(comm_s, rel=0.01) for value in found)


def test_a_calibration_takes_the_place_of_the_landscape(tmp_path: Path) -> None:
    content = predict(tmp_path / "own.json", "--calibration", str(CALIBRATION))
    assert list(content["from"]) == ["calibrated"] and content["check"] is None
    assert {row["link"] for row in content["plans"]} == {"calibrated"}
