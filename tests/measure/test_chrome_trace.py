"""The exposed share of a recorded step, computed twice and independently.

Steps were recorded on two and on four gloo ranks, by the package and as Chrome traces at the same
time. Run as a script, this file records them anew: ``python tests/measure/test_chrome_trace.py``.
"""

import gzip
import json
import tempfile
import time
from pathlib import Path

import chrome_trace
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from autotune.measure.clocks import measure_clock_offset_us
from autotune.measure.communication import step_communication
from autotune.measure.kineto import StepProfiler
from autotune.measure.traces import RankTrace

NUMS_RANKS = (2, 4)
NUM_LAYERS, WIDTH, NUM_ROWS = 4, 512, 256
LATE_S = 0.05


def data(num_ranks: int) -> Path:
    return Path(__file__).parents[1] / "data" / f"chrome_gloo_{num_ranks}_ranks"


@pytest.mark.parametrize("num_ranks", NUMS_RANKS)
def test_a_second_implementation_finds_the_same_exposed_share(num_ranks: int) -> None:
    traces = [
        RankTrace.from_dict(json.loads((data(num_ranks) / f"rank_{rank}.json").read_text()))
        for rank in range(num_ranks)
    ]
    step_s = max(end - start for start, end in (t.window_us for t in traces)) / 1e6
    values, _ = step_communication(traces, step_s=step_s, weight_sync_s=0.0)
    second = chrome_trace.exposed_comm_ratio(
        [
            chrome_trace.read(data(num_ranks) / f"rank_{rank}.chrome.json.gz")
            for rank in range(num_ranks)
        ],
        [trace.window_us for trace in traces],
        step_s * 1e6,
    )
    assert values["exposed_comm_ratio"] == pytest.approx(second, abs=0.02)
    # Neither nothing nor everything is exposed: the agreement says something.
    overlap = values["comm_overlap_ratio"]
    assert 0.02 < second < 0.9 and overlap is not None and overlap > 0.1


def _record(rank: int, folder: str, num_ranks: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=num_ranks
    )
    mesh = init_device_mesh("cpu", (num_ranks,))
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)]
    model = torch.nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    inputs = torch.ones(NUM_ROWS, WIDTH)
    model(inputs).sum().backward()
    profiler = StepProfiler(rank, clock_offset_us=measure_clock_offset_us())
    dist.barrier()
    profiler.start()
    if rank == 1:
        time.sleep(LATE_S)
    model(inputs).sum().backward()
    # One collective that compute hides: FSDP2 on the CPU waits for its own at once.
    hidden = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    for _ in range(NUM_LAYERS):
        inputs @ torch.ones(WIDTH, 4 * WIDTH)
    hidden.wait()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    trace = profiler.stop()
    chrome = Path(folder, f"chrome_{rank}.json")
    profiler.export(chrome)
    target = data(num_ranks)
    target.mkdir(exist_ok=True)
    (target / f"rank_{rank}.json").write_text(json.dumps(trace.to_dict()) + "\n")
    packed = gzip.compress(chrome.read_bytes(), mtime=0)
    (target / f"rank_{rank}.chrome.json.gz").write_bytes(packed)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in NUMS_RANKS:
        with tempfile.TemporaryDirectory() as meeting:
            multiprocessing.spawn(_record, args=(meeting, ranks), nprocs=ranks)
