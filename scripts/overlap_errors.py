"""How far are the planner's times from measured ones? The summary of an overlap landscape.

Reads what scripts/overlap_landscape.py wrote and writes one small JSON file: the machine with its
calibration and versions, for each quantity the median of |predicted / measured - 1| over the
points, the fastest plan of each micro-batch, and each point's own numbers in seconds. Communication
is the union of a rank's transfers without waiting for later ranks, compute the union of its
operators or kernels, both in the profiled mini-batch; the step is the median of those that were
timed.

    python scripts/overlap_errors.py landscape.jsonl --out landscapes/overlap/gloo_2_ranks.json
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from autotune.landscape import json_text

QUANTITIES = ("communication_s", "compute_s", "step_s")
DIGITS = 4


def summary(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary of a landscape's lines; the newest line of a machine counts."""
    machines = [line for line in lines if "point" not in line]
    points = [_point(line) for line in lines if "point" in line]
    errors = {
        name: [abs(each["predicted"][name] / each["measured"][name] - 1) for each in points]
        for name in QUANTITIES
    }
    return {
        **machines[-1],
        "num_points": len(points),
        "median_error_ratio": {name: _rounded(median(errors[name])) for name in QUANTITIES},
        "fastest": [
            min(
                (point for point in points if point["micro_batch"] == micro_batch),
                key=lambda point: float(point["measured"]["step_s"]),
            )
            for micro_batch in sorted({point["micro_batch"] for point in points})
        ],
        "points": points,
    }


def _point(line: Mapping[str, Any]) -> dict[str, Any]:
    profiled, predicted = line["profiled"], line["predicted"]
    measured = {
        "communication_s": profiled["comm_ratio"] * profiled["step_s"],
        "compute_s": profiled["compute_s"],
        "step_s": line["step_s"],
    }
    return {
        **line["point"],
        "units": line["units"],
        "measured": {name: _rounded(measured[name]) for name in QUANTITIES},
        "predicted": {name: _rounded(predicted[name]) for name in QUANTITIES},
        "exposed_comm_ratio": _rounded(profiled["exposed_comm_ratio"]),
        "predicted_exposed_ratio": _rounded(predicted["exposed_s"] / predicted["step_s"]),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("landscape", type=Path, help="what overlap_landscape.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    lines = options.landscape.read_text(encoding="utf-8").splitlines()
    content = summary([json.loads(line) for line in lines])
    options.out.write_text(json_text(content, rows="points"), encoding="utf-8")
    for name, error in content["median_error_ratio"].items():
        print(f"{name}: median error {100 * error:.1f} % over {content['num_points']} points")
    for point in content["fastest"]:
        print(f"fastest at micro-batch {point['micro_batch']}: {json.dumps(point)}")


if __name__ == "__main__":
    main()
