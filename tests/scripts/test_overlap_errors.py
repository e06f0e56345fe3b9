"""The summary of an overlap landscape, of two points worked out by hand."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "overlap_errors.py"


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    found: dict[str, Any] = runpy.run_path(str(SCRIPT))["summary"](
        [
            {"device": "old"},
            {"device": "CPU", "ranks": 2},
            # communication 0.5 x 2 s, predicted 0.9 s; compute 1 s, predicted 1.5 s
            line(layers=1, communication_s=0.9, compute_s=1.5, step_s=2.2, measured_step_s=2.0),
            line(layers=4, communication_s=0.7, compute_s=1.1, step_s=1.6, measured_step_s=1.6),
        ]
    )
    return found


def line(*, layers: int, measured_step_s: float, **predicted: float) -> dict[str, Any]:
    return {
        "point": {"micro_batch": 4, "layers_per_unit": layers},
        "units": 2,
        "step_s": measured_step_s,
        "profiled": {
            "step_s": 2.0,
            "compute_s": 1.0,
            "comm_ratio": 0.5,
            "exposed_comm_ratio": 0.25,
        },
        "predicted": {**predicted, "exposed_s": 0.4},
    }


def test_errors_are_medians_over_the_points(summary: dict[str, Any]) -> None:
    assert summary["median_error_ratio"] == pytest.approx(
        {"communication_s": 0.2, "compute_s": 0.3, "step_s": 0.05}
    )


def test_the_newest_machine_and_the_fastest_plan_are_named(summary: dict[str, Any]) -> None:
    assert (summary["device"], summary["num_points"]) == ("CPU", 2)
    assert [point["layers_per_unit"] for point in summary["fastest"]] == [4]


def test_a_points_shares_stand_side_by_side(summary: dict[str, Any]) -> None:
    point = summary["points"][1]
    assert (point["exposed_comm_ratio"], point["predicted_exposed_ratio"]) == (0.25, 0.25)
