"""Measures overlap plans with plain FSDP2, predicted times beside measured ones.

Starts one process for each rank on this machine, or joins those that torchrun started. Needs this
package and what it needs; no Ray, no rollout, no data. For every point (micro-batch, layers of a
unit, prefetch depth, resharding, no-sync) a Qwen2-shaped model is wrapped by the plan, as verl's
engines are, and runs mini-batches of random tokens; the last one is profiled and not timed.

    python scripts/overlap_landscape.py --out landscape.jsonl --device cpu --shape small

The file gets one JSON line for the machine (calibration included) and one for each point, appended
when it is measured; points that it holds already are not measured again.
"""

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 8, "heads": 4},
    "small": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "heads": 8},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "heads": 14},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "heads": 12},
}
KEY_VALUE_HEADS = 2
VOCABULARY = {"tiny": 2048, "small": 2048, "0.5b": 151936, "1.5b": 151936}
COLLECTIVE_BUDGET_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Point:
    """One plan."""

    micro_batch: int
    layers_per_unit: int
    prefetch_depth: int
    reshards: bool
    reduces_once: bool


def points(options: argparse.Namespace) -> Iterator[Point]:
    """Return all combinations, micro-batches outermost."""
    for micro, layers, depth, reshards, once in itertools.product(
        options.micro_batches,
        options.layers_per_unit,
        options.depths,
        (True, False),
        (True, False),
    ):
        yield Point(
            micro_batch=micro,
            layers_per_unit=layers,
            prefetch_depth=depth,
            reshards=reshards,
            reduces_once=once,
        )


def measure_point(
    point: Point, options: argparse.Namespace, calibration: Any
) -> dict[str, Any]:
    """Return the measured and the predicted times of one point on this rank's view."""
    from autotune.models.overlap_timeline import predict_update

    model, plan = _model(point, options, calibration)
    num_micro_batches = options.sequences // point.micro_batch
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    tokens = torch.randint(
        VOCABULARY[options.shape],
        (point.micro_batch, options.sequence_tokens),
        device=options.device,
    )

    def update() -> None:
        for index in range(num_micro_batches):
            model.set_requires_gradient_sync(
                not point.reduces_once or index == num_micro_batches - 1
            )
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    times = [_timed(update, options.device) for _ in range(options.warmup + options.steps)]
    step_s = statistics.median(times[options.warmup :])
    result: dict[str, Any] = {
        "point": dataclasses.asdict(point),
        "units": len(plan.units),
        "step_s": step_s,
        "steps_s": times[options.warmup :],
        "tokens_per_s_per_rank": options.sequences * options.sequence_tokens / step_s,
        "peak_bytes": _peak_bytes(options.device),
        "profiled": _profiled(update, _folder_of(point, options.traces)),
    }
    predicted = predict_update(
        plan,
        num_micro_batches=num_micro_batches,
        reduces_once=point.reduces_once,
    )
    assert predicted is not None
    result["predicted"] = dataclasses.asdict(predicted)
    return result


def _model(point: Point, options: argparse.Namespace, calibration: Any) -> tuple[Any, Any]:
    """Build a model and wrap it with this package's own wrapping."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from autotune.models.overlap_plan import Work
    from autotune.models.overlap_settings import OverlapSettings
    from autotune.verl_bridge.overlap import wrap

    shape = dict(SHAPES[options.shape])
    heads = shape.pop("heads")
    config = Qwen2Config(
        vocab_size=VOCABULARY[options.shape],
        num_attention_heads=heads,
        num_key_value_heads=KEY_VALUE_HEADS,
        tie_word_embeddings=True,
        **shape,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    with torch.device(options.device):
        model = Qwen2ForCausalLM(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    bf16 = options.device == "cuda"
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else torch.float32, reduce_dtype=torch.float32
    )
    layer_bytes = sum(each.numel() for each in model.model.layers[0].parameters()) * (
        2 if bf16 else 4
    )
    plan = wrap(
        model,
        {
            "mesh": init_device_mesh(options.device, (dist.get_world_size(),)),
            "mp_policy": policy,
            "reshard_after_forward": point.reshards,
        },
        SimpleNamespace(wrap_policy={}, forward_prefetch=False),
        settings=OverlapSettings(
            bucket_size=point.layers_per_unit * layer_bytes,
            forward_prefetch_depth=point.prefetch_depth,
            backward_prefetch_depth=point.prefetch_depth,
            sequence_tokens=options.sequence_tokens,
            calibration=calibration,
        ),
        work=Work(
            tokens=point.micro_batch * options.sequence_tokens,
            dtype="bfloat16" if bf16 else "float32",
            trains=True,
            recomputes=True,
            reshards=point.reshards,
            on_host=options.device == "cpu",
        ),
    )
    return model, plan


def _timed(update: Any, device: str) -> float:
    dist.barrier()
    _synchronize(device)
    began_s = time.perf_counter()
    update()
    _synchronize(device)
    dist.barrier()
    return time.perf_counter() - began_s


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _peak_bytes(device: str) -> int | None:
    """Return the peak since the process began on a GPU; None on a CPU, which has no such count."""
    if device != "cuda":
        return None
    peak = torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return peak


def _folder_of(point: Point, traces: Path | None) -> Path | None:
    if traces is None:
        return None
    return traces / "_".join(str(int(value)) for value in dataclasses.astuple(point))


def _profiled(update: Any, folder: Path | None) -> dict[str, Any]:
    """Run one update under the profiler; return its communication over all ranks.

    Args:
        update: Runs it.
        folder: Gets each rank's Chrome trace and what was read from it; None: nothing is kept.
    """
    from autotune.measure.clocks import measure_clock_offset_us
    from autotune.measure.communication import step_communication
    from autotune.measure.intervals import length, merge
    from autotune.measure.kineto import StepProfiler

    profiler = StepProfiler(dist.get_rank(), clock_offset_us=measure_clock_offset_us())
    dist.barrier()
    profiler.start()
    update()
    trace = profiler.stop()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export(folder / f"rank_{dist.get_rank()}.chrome.json.gz")
        content = json.dumps(trace.to_dict())
        (folder / f"rank_{dist.get_rank()}.json").write_text(content, encoding="utf-8")
    traces: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(traces, trace)
    step_s = max(each.window_us[1] - each.window_us[0] for each in traces) / 1e6
    values, reasons = step_communication(traces, step_s=step_s, weight_sync_s=0.0)
    compute_us = max(length(merge(each.compute_us)) for each in traces)
    return {"step_s": step_s, "compute_s": compute_us / 1e6, **values, "absent": dict(reasons)}


def _calibration(device: str) -> Any:
    """Measure the constants on this process group."""
    from autotune.measure.probe import RankProbe
    from autotune.models.calibration import Calibration
    from autotune.models.links import fit

    probe = RankProbe(device)
    collectives = {
        name: fit(probe.collective(name, budget_s=COLLECTIVE_BUDGET_S))
        for name in ("all_gather", "reduce_scatter", "all_reduce")
    }
    dtypes = ("bfloat16", "float32") if device == "cuda" else ("float32",)
    return Calibration(
        world_size=dist.get_world_size(),
        **collectives,
        flops_per_s={dtype: probe.flops_per_s(dtype) for dtype in dtypes},
        launch_overhead_s=probe.launch_overhead_s(),
        copy_bytes_per_s=probe.copy_bytes_per_s(),
    )


def run_rank(rank: int, options: argparse.Namespace, meeting: str) -> None:
    """Measure all points that the file lacks; rank 0 writes."""
    if options.device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    dist.init_process_group(
        "nccl" if options.device == "cuda" else "gloo",
        init_method=meeting,
        rank=rank,
        world_size=options.ranks,
    )
    done = _share(_points_in(options.out) if rank == 0 else None)
    calibration = _calibration(options.device)
    if rank == 0:
        _append(options.out, _machine(options, calibration))
    for point in points(options):
        if json.dumps(dataclasses.asdict(point)) in done:
            continue
        result = measure_point(point, options, calibration)
        if rank == 0:
            _append(options.out, result)
            print(_line(result), flush=True)
    dist.destroy_process_group()


def _share(value: Any) -> Any:
    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def _points_in(out: Path) -> set[str]:
    if not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {json.dumps(line["point"]) for line in lines if "point" in line}


def _machine(options: argparse.Namespace, calibration: Any) -> dict[str, Any]:
    from autotune.versions import versions

    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    return {
        "device": device,
        "ranks": options.ranks,
        "shape": options.shape,
        "sequences": options.sequences,
        "sequence_tokens": options.sequence_tokens,
        "command": " ".join(["python", *sys.argv]),
        "versions": dict(versions()),
        "nccl_environment": {
            name: value for name, value in os.environ.items() if name.startswith("NCCL_")
        },
        "calibration": calibration.to_dict(),
    }


def _append(out: Path, record: Mapping[str, Any]) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _line(result: Mapping[str, Any]) -> str:
    point, predicted, profiled = result["point"], result["predicted"], result["profiled"]
    return (
        f"micro {point['micro_batch']:3d}  layers {point['layers_per_unit']:2d}  depth "
        f"{point['prefetch_depth']}  reshard {point['reshards']!s:5}  no-sync "
        f"{point['reduces_once']!s:5}  step {result['step_s']:.3f} s (predicted "
        f"{predicted['step_s']:.3f})  compute {profiled['compute_s']:.3f} "
        f"({predicted['compute_s']:.3f})  exposed {profiled['exposed_comm_ratio']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--ranks", type=int, default=int(os.environ.get("WORLD_SIZE", 2)))
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--sequences", type=int, default=32, help="of a rank and mini-batch")
    parser.add_argument("--sequence-tokens", type=int, default=1024)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--layers-per-unit", type=int, nargs="+", default=[1, 2, 4, 7, 14])
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--traces", type=Path, help="folder for Chrome traces of every point")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), options, "env://")
        return
    import tempfile

    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(
            run_rank, args=(options, f"file://{folder}/meeting"), nprocs=options.ranks
        )


if __name__ == "__main__":
    main()
