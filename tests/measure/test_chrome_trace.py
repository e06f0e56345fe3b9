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
from autotune.measure.kineto import StepProfiler

NUMS_RANKS = (2, 4)
NUM_LAYERS, WIDTH, NUM_ROWS = 4, 512, 256
LATE_S = 0.05


def data(num_ranks: int) -> Path:
    return Path(__file__).parents[1] / "data" / f"chrome_gloo_{num_ranks}_ranks"


@pytest.mark.parametrize("num_ranks", NUMS_RANKS)
def test_a_second_implementation_finds_the_same_exposed_share(num_ranks: int) -> None:
    first, second = chrome_trace.compare(data(num_ranks))
    assert first == pytest.approx(second, abs=chrome_trace.WITHIN)
    # Neither nothing nor everything is exposed: the agreement says something.
    assert 0.02 < second < 0.9


def test_kernels_of_nccl_are_collectives_and_all_others_compute(tmp_path: Path) -> None:
    # Rank 0 gathers from 0 to 60 us, but rank 1 joins at 20 us. Rank 0 computes from 30 to 40 us
    # and copies from 40 to 50 us: 10 us of the transfer are hidden there, none on rank 1.
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    write_rank(tmp_path, 0, [(gather, 0, 60), ("gemm", 30, 10), ("Memcpy DtoD", 40, 10)])
    write_rank(tmp_path, 1, [(gather, 20, 40), ("gemm", 0, 20)])
    ranks = [chrome_trace.read(tmp_path / f"rank_{rank}.chrome.json.gz") for rank in (0, 1)]
    found = chrome_trace.exposed_comm_ratio(ranks, [(0.0, 100.0)] * 2, 100.0)
    assert found == pytest.approx(0.4)
    assert chrome_trace.exposed_comm_ratio(ranks[:1], [(0.0, 100.0)], 100.0) == pytest.approx(0.5)


def write_rank(folder: Path, rank: int, kernels: list[tuple[str, float, float]]) -> None:
    """Write a Chrome trace of (name, start, duration) in microseconds."""
    events = [
        {
            "ph": "X",
            "cat": "gpu_memcpy" if name.startswith("Memcpy") else "kernel",
            "name": name,
            "tid": 7,
            "ts": start,
            "dur": duration,
        }
        for name, start, duration in kernels
    ]
    text = json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0})
    (folder / f"rank_{rank}.chrome.json.gz").write_bytes(gzip.compress(text.encode()))


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
