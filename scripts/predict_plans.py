"""What do overlap plans gain at another number of GPUs? Predicted from what two of them measured.

Needs no GPU and no Ray. Links and devices come from a calibration (``autotune calibrate`` keeps
it), or from a landscape of plain FSDP2 as in landscapes/overlap/2xh200_fsdp2_1.5b.json: bandwidth
and FLOP/s from each link's largest micro-batch, launches from the quickest one of a device that
idles; its other points are predicted and held against what was measured. A link is taken to move as
much a second whatever the number of ranks. Predicted is an actor's update of the 7B search spaces.

    python scripts/predict_plans.py --out landscapes/overlap/predicted_8xh200_7b.json
"""

import argparse
import itertools
import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autotune.landscape import json_text
from autotune.models.calibration import Calibration, CollectiveCost
from autotune.models.calibration_record import read_record
from autotune.models.links import at_world_size
from autotune.models.model_shape import ModelShape, layers_of
from autotune.models.overlap_plan import Layer, Work, make_plan
from autotune.models.overlap_settings import OverlapSettings
from autotune.models.overlap_timeline import UpdateTimes, predict_update

ROOT = Path(__file__).parents[1]
LANDSCAPE = ROOT / "landscapes" / "overlap" / "2xh200_fsdp2_1.5b.json"
BUCKET_SIZES = (0, 900_000_000, 1_800_000_000, 3_600_000_000)
DEPTHS = (0, 1, 2, 4)
MICRO_BATCHES = (1, 4, 16)
RANKS, SIZE, SEQUENCES, SEQUENCE_TOKENS = 8, "7B", 64, 1536
"""512 prompts of a mini-batch on 8 ranks, each as long as prompt and answer may be together."""
IDLE_RATIO = 0.2
"""A device that idles longer than this waits for launches."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """An update whose times are predicted."""

    root: Layer
    layers: Sequence[Layer]
    sequences: int
    """Of a rank and mini-batch."""
    sequence_tokens: int

    def predict(self, calibration: Calibration, micro_batch: int, **settings: Any) -> UpdateTimes:
        """Return the times of one mini-batch."""
        plan = make_plan(
            self.root,
            self.layers,
            settings=OverlapSettings(calibration=calibration, **settings),
            work=Work(
                tokens=micro_batch * self.sequence_tokens,
                dtype="bfloat16",
                trains=True,
                recomputes=True,
                reshards=True,
            ),
        )
        times = predict_update(
            plan, num_micro_batches=self.sequences // micro_batch, reduces_once=False
        )
        assert times is not None
        return times

    @property
    def message_bytes(self) -> int:
        """Bytes that the collectives of one micro-batch carry."""
        every = [self.root, *self.layers]
        return sum(2 * layer.parameter_bytes + layer.gradient_bytes for layer in every)


def job_of(size: str, *, sequences: int, sequence_tokens: int) -> Job:
    """Return the update of a Qwen2 shape of scripts/make_demo_assets.py, as verl wraps it."""
    demo = runpy.run_path(str(ROOT / "scripts" / "make_demo_assets.py"))["SIZES"][size]
    shape = ModelShape(
        hidden_size=demo.hidden_size,
        intermediate_size=demo.intermediate_size,
        num_layers=demo.num_layers,
        num_heads=demo.num_heads,
        num_key_value_heads=demo.num_key_value_heads,
        head_size=demo.hidden_size // demo.num_heads,
        vocabulary_size=demo.vocabulary,
        is_tied=demo.tied,
        has_head_norms=False,
    )
    # Parameters travel in bfloat16, gradients in float32.
    root, layers = layers_of(
        shape,
        parameter_bytes=2,
        gradient_bytes=4,
        sequence_tokens=sequence_tokens,
        has_head=True,
    )
    return Job(root=root, layers=layers, sequences=sequences, sequence_tokens=sequence_tokens)


def calibration_of(
    job: Job, ranks: int, point: Mapping[str, Any], launch_overhead_s: float
) -> Calibration:
    """Return the constants that one link's largest micro-batch, one layer a unit, follows."""
    step_s = _step_s(job, ranks, point)
    every = [job.root, *job.layers]
    # Only layers of a stack are recomputed.
    flops_per_token = sum(
        layer.forward_flops_per_token * (2 if layer.stack else 1) + layer.backward_flops_per_token
        for layer in every
    )
    busy_s = (1 - point["exposed_comm_ratio"] - point["idle_ratio"]) * step_s
    sent = job.sequences // point["micro_batch"] * job.message_bytes
    bandwidth = sent / (point["comm_ratio"] * step_s)
    cost = CollectiveCost(latency_s=0.0, bandwidth_bytes_per_s=bandwidth)
    tokens = job.sequences * job.sequence_tokens
    return Calibration(
        world_size=ranks,
        all_gather=cost,
        reduce_scatter=cost,
        all_reduce=cost,
        flops_per_s={"bfloat16": flops_per_token * tokens / busy_s},
        launch_overhead_s=launch_overhead_s,
        # Not read by any prediction.
        copy_bytes_per_s=bandwidth,
    )


def launch_overhead_s(job: Job, ranks: int, point: Mapping[str, Any]) -> float:
    """Return the host's time for a kernel from a point at which launching takes longest."""
    # Forward, its recomputation and two kernels of backward for each.
    num_kernels = sum(
        layer.num_kernels * (4 if layer.stack else 3) for layer in (job.root, *job.layers)
    )
    return _micro_batch_s(job, ranks, point) / num_kernels


def _micro_batch_s(job: Job, ranks: int, point: Mapping[str, Any]) -> float:
    return _step_s(job, ranks, point) * int(point["micro_batch"]) / job.sequences


def _step_s(job: Job, ranks: int, point: Mapping[str, Any]) -> float:
    return float(job.sequences * job.sequence_tokens * ranks / point["tokens_per_s"])


def from_landscape(path: Path) -> tuple[dict[str, Calibration], dict[str, Any]]:
    """Return each link's calibration, and how well it predicts the points in between."""
    content = json.loads(path.read_text(encoding="utf-8"))
    points = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
    points = [point for point in points if point["layers_per_unit"] == 1]
    job = job_of(
        content["size"],
        sequences=content["sequences_of_a_rank"],
        sequence_tokens=content["sequence_tokens"],
    )
    ranks = content["ranks"]
    idle = [point for point in points if point["idle_ratio"] > IDLE_RATIO]
    quickest = min(idle, key=lambda point: _micro_batch_s(job, ranks, point))
    largest = {point["link"]: point for point in points}
    launch_s = launch_overhead_s(job, ranks, quickest)
    links = {
        link: calibration_of(job, ranks, point, launch_s) for link, point in largest.items()
    }
    checks = [
        _check(job, ranks, links[point["link"]], point)
        for point in points
        if point not in (quickest, *largest.values())
    ]
    errors = [abs(each["predicted_step_s"] / each["measured_step_s"] - 1) for each in checks]
    return links, {"median_step_error_ratio": _rounded(median(errors)), "points": checks}


def _check(
    job: Job, ranks: int, calibration: Calibration, point: Mapping[str, Any]
) -> dict[str, Any]:
    times = job.predict(calibration, point["micro_batch"])
    return {
        "link": point["link"],
        "micro_batch": point["micro_batch"],
        "measured_step_s": _rounded(_step_s(job, ranks, point)),
        "predicted_step_s": _rounded(times.step_s),
        "measured_exposed_ratio": point["exposed_comm_ratio"],
        "predicted_exposed_ratio": _rounded(times.exposed_s / times.step_s),
    }


def predictions(link: str, calibration: Calibration, ranks: int) -> list[dict[str, Any]]:
    """Return every plan of the table on one link."""
    job = job_of(SIZE, sequences=SEQUENCES, sequence_tokens=SEQUENCE_TOKENS)
    scaled = at_world_size(calibration, ranks)
    rows = []
    for micro_batch, bucket_size, depth in itertools.product(MICRO_BATCHES, BUCKET_SIZES, DEPTHS):
        times = job.predict(
            scaled,
            micro_batch,
            bucket_size=bucket_size,
            forward_prefetch_depth=depth,
            backward_prefetch_depth=depth,
        )
        rows.append(
            {
                "link": link,
                "micro_batch": micro_batch,
                "bucket_size": bucket_size,
                "prefetch_depth": depth,
                "update_s": _rounded(times.step_s),
                "comm_s": _rounded(times.communication_s),
                "exposed_ratio": _rounded(times.exposed_s / times.step_s),
            }
        )
    return rows


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--calibration", type=Path, help="a sweep's calibration.json")
    parser.add_argument("--landscape", type=Path, default=LANDSCAPE, help="where there is none")
    parser.add_argument("--ranks", type=int, default=RANKS, help="GPUs to predict for")
    options = parser.parse_args()
    check = None
    if options.calibration is not None:
        links = {"calibrated": read_record(options.calibration).constants}
    else:
        links, check = from_landscape(options.landscape)
    plans = [
        row for link, each in links.items() for row in predictions(link, each, options.ranks)
    ]
    content = {
        "predicted_for": f"{options.ranks} ranks, Qwen2.5-{SIZE}, {SEQUENCES} sequences of "
        f"{SEQUENCE_TOKENS} tokens a rank and mini-batch, gradient checkpointing, resharding, "
        "gradients reduced after every micro-batch; nothing of it was measured",
        "from": {link: each.to_dict() for link, each in links.items()},
        "check": check,
        "plans": plans,
    }
    options.out.write_text(json_text(content, rows="plans"), encoding="utf-8")
    for _, group in itertools.groupby(plans, key=lambda row: (row["link"], row["micro_batch"])):
        own = list(group)
        best = min(own, key=lambda row: row["update_s"])
        print(
            f"{own[0]['link']}, micro-batch {own[0]['micro_batch']}: as verl wraps "
            f"{own[0]['update_s']:g} s, {100 * own[0]['exposed_ratio']:.0f} % exposed; best "
            f"{best['update_s']:g} s with bucket_size {best['bucket_size']:g}, depth "
            f"{best['prefetch_depth']}"
        )


if __name__ == "__main__":
    main()
