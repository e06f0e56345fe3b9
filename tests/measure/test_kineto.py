"""Traces read from hand-made events, and from a real FSDP2 step of two Gloo processes.

Run as a script, it records that step anew: ``python tests/measure/test_kineto.py FILE.json``.
"""

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.autograd import DeviceType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from autotune.measure.clocks import measure_clock_offset_us
from autotune.measure.communication import step_communication
from autotune.measure.flight_recorder import Launch
from autotune.measure.kineto import StepProfiler, cpu_trace, device_trace
from autotune.measure.traces import Kind, RankTrace

NUM_LAYERS = 3
KINDS = ("all_gather", "reduce_scatter", "all_reduce")
WIDTH = 64
# Weight and bias in fp32.
LAYER_BYTES = (WIDTH * WIDTH + WIDTH) * 4
# One norm for each weight and each bias.
NORM_BYTES = 2 * NUM_LAYERS * 4
LATE_S = 0.3


@dataclass
class HandMadeEvent:
    """An event as the profiler gives it; times in nanoseconds."""

    label: str
    span_ns: tuple[int, int]
    device: DeviceType = DeviceType.CUDA
    thread: int = 1
    annotation: bool = False
    correlation: int = 0

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return self.span_ns[0]

    def end_ns(self) -> int:
        return self.span_ns[1]

    def start_thread_id(self) -> int:
        return self.thread

    def correlation_id(self) -> int:
        return self.correlation

    def device_type(self) -> DeviceType:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation


def _cpu(label: str, start: int, end: int, *, thread: int = 1) -> HandMadeEvent:
    annotation = label.startswith("gloo:")
    return HandMadeEvent(label, (start, end), DeviceType.CPU, thread, annotation)


def _kernel(label: str, start: int, end: int, *, correlation: int = 0) -> HandMadeEvent:
    return HandMadeEvent(label, (start, end), correlation=correlation)


def _read_gpu(*events: HandMadeEvent, launches: tuple[Launch, ...] = ()) -> RankTrace:
    return device_trace(0, events, window_us=(0.0, 100.0), launches=launches)


def _read_cpu(*events: HandMadeEvent, launches: tuple[Launch, ...] = ()) -> RankTrace:
    return cpu_trace(0, events, window_us=(0.0, 100.0), launches=launches)


def _launch(kind: Kind, num_bytes: int, *, group: str = "0", group_size: int = 2) -> Launch:
    return Launch(kind=kind, group=group, group_size=group_size, num_bytes=num_bytes)


def test_times_become_microseconds_once() -> None:
    trace = _read_gpu(_kernel("gemm", 2_000, 5_500))
    assert trace.compute_us == ((2.0, 5.5),)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Kind.ALL_GATHER),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)", Kind.REDUCE_SCATTER),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL(...)", Kind.ALL_REDUCE),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", Kind.BROADCAST),
        ("ncclSymkDevKernel_AllGather_LL(...)", Kind.ALL_GATHER),
        ("ncclDevKernel_SendRecv(...)", Kind.OTHER),
    ],
)
def test_nccl_kernels_are_collectives(name: str, kind: Kind) -> None:
    trace = _read_gpu(_kernel(name, 0, 1_000))
    assert [collective.kind for collective in trace.collectives] == [kind]
    assert trace.compute_us == ()


def test_copies_and_annotations_on_the_device_are_neither_compute_nor_collectives() -> None:
    trace = _read_gpu(
        _kernel("Memcpy HtoD (Pinned -> Device)", 0, 1_000),
        _kernel("Memset (Device)", 0, 1_000),
        HandMadeEvent("nccl:_all_gather_base", (0, 1_000), annotation=True),
    )
    assert trace.collectives == () and trace.compute_us == ()


def test_kernels_of_two_streams_are_merged() -> None:
    trace = _read_gpu(_kernel("gemm", 0, 3_000), _kernel("softmax", 2_000, 4_000))
    assert trace.compute_us == ((0.0, 4.0),)


def test_what_the_cpu_does_is_no_compute_of_the_device() -> None:
    trace = _read_gpu(_kernel("gemm", 0, 1_000), _cpu("aten::mm", 5_000, 6_000))
    assert trace.compute_us == ((0.0, 1.0),)


def test_what_enqueues_a_collective_or_wraps_operators_is_no_compute() -> None:
    trace = _read_cpu(
        _cpu("autograd::engine::evaluate_function: AddmmBackward0", 0, 90_000),
        _cpu("AddmmBackward0", 0, 90_000),
        _cpu("aten::mm", 10_000, 20_000),
        _cpu("c10d::_allgather_base_", 30_000, 40_000),
        _cpu("aten::chunk", 31_000, 32_000),
    )
    assert trace.compute_us == ((10.0, 20.0),)


def test_operators_inside_a_gloo_collective_are_part_of_it() -> None:
    trace = _read_cpu(
        _cpu("gloo:all_gather", 0, 10_000, thread=2), _cpu("aten::copy_", 8_000, 9_000, thread=2)
    )
    assert trace.compute_us == ()
    assert [(c.kind, c.start_us, c.end_us) for c in trace.collectives] == [
        (Kind.ALL_GATHER, 0.0, 10.0)
    ]


def test_a_reduce_scatter_that_gloo_calls_all_reduce_is_told_apart() -> None:
    trace = _read_cpu(
        _cpu("c10d::_reduce_scatter_base_", 0, 1_000),
        _cpu("gloo:all_reduce", 500, 2_000, thread=2),
        _cpu("_c10d_functional::all_reduce", 2_900, 4_100),
        _cpu("c10d::allreduce_", 3_000, 4_000),
        _cpu("_c10d_functional::wait_tensor", 4_200, 5_100),
        _cpu("gloo:all_reduce", 3_500, 5_000, thread=2),
    )
    kinds = [collective.kind for collective in trace.collectives]
    assert kinds == [Kind.REDUCE_SCATTER, Kind.ALL_REDUCE]


@pytest.mark.parametrize("correlations", [(1, 2), (2, 1)])
def test_kernels_get_their_sizes_in_the_order_they_were_launched(
    correlations: tuple[int, int],
) -> None:
    name = "ncclDevKernel_AllGather_RING_LL(...)"
    trace = _read_gpu(
        _kernel(name, 0, 1_000, correlation=correlations[0]),
        _kernel(name, 2_000, 3_000, correlation=correlations[1]),
        launches=(_launch(Kind.ALL_GATHER, 10), _launch(Kind.ALL_GATHER, 20, group="1")),
    )
    in_order = {1: (10, "0"), 2: (20, "1")}
    assert [(c.num_bytes, c.group) for c in trace.collectives] == [
        in_order[correlation] for correlation in correlations
    ]


def test_a_group_of_one_launches_no_kernel() -> None:
    trace = _read_gpu(
        _kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 0, 1_000),
        launches=(_launch(Kind.ALL_REDUCE, 4, group_size=1), _launch(Kind.ALL_REDUCE, 8)),
    )
    assert [(c.num_bytes, c.group_size) for c in trace.collectives] == [(8, 2)]


def test_a_kind_seen_more_often_than_launched_has_no_sizes_and_no_group() -> None:
    trace = _read_gpu(
        _kernel("ncclDevKernel_AllGather_RING_LL(...)", 0, 1_000),
        _kernel("ncclDevKernel_AllGather_RING_LL(...)", 2_000, 3_000),
        _kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 4_000, 5_000),
        launches=(_launch(Kind.ALL_GATHER, 10), _launch(Kind.ALL_REDUCE, 4)),
    )
    assert [(c.num_bytes, c.group) for c in trace.collectives] == [
        (None, None),
        (None, None),
        (4, "0"),
    ]


def test_without_launches_the_only_group_is_still_known() -> None:
    events = [_kernel("ncclDevKernel_AllGather_RING_LL(...)", 0, 1_000)]
    trace = device_trace(0, events, window_us=(0.0, 100.0), only_group_size=8)
    assert [(c.group, c.group_size) for c in trace.collectives] == [("all ranks", 8)]


def test_a_reduce_scatter_of_gloo_gets_the_size_of_its_all_reduce() -> None:
    trace = _read_cpu(
        _cpu("c10d::_reduce_scatter_base_", 0, 1_000),
        _cpu("gloo:all_reduce", 500, 2_000, thread=2),
        launches=(_launch(Kind.ALL_REDUCE, 64),),
    )
    assert [(c.kind, c.num_bytes) for c in trace.collectives] == [(Kind.REDUCE_SCATTER, 64)]


def _profile_step(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    inputs = torch.ones(8, WIDTH)
    model(inputs).sum().backward()
    profiler = StepProfiler(rank, clock_offset_us=measure_clock_offset_us())
    dist.barrier()
    profiler.start()
    if rank == 1:
        time.sleep(LATE_S)
    model(inputs).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.save(profiler.stop(), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _record(folder: Path) -> list[RankTrace]:
    multiprocessing.spawn(_profile_step, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[RankTrace]:
    return _record(tmp_path_factory.mktemp("profiled"))


@pytest.mark.slow
def test_the_collectives_of_an_fsdp2_step_are_all_found(traces: list[RankTrace]) -> None:
    # Each layer is gathered in the forward pass, freed, and gathered again in the backward pass.
    for trace in traces:
        kinds = [collective.kind for collective in trace.collectives]
        assert kinds.count(Kind.ALL_GATHER) == 2 * NUM_LAYERS
        assert kinds.count(Kind.REDUCE_SCATTER) == NUM_LAYERS
        # The norms of the gradients.
        assert kinds.count(Kind.ALL_REDUCE) == 1


@pytest.mark.slow
def test_each_collective_of_an_fsdp2_step_has_its_size_and_group(traces: list[RankTrace]) -> None:
    seen = {
        (c.kind, c.num_bytes, c.group, c.group_size) for trace in traces for c in trace.collectives
    }
    assert seen == {
        (Kind.ALL_GATHER, LAYER_BYTES, "0", 2),
        (Kind.REDUCE_SCATTER, LAYER_BYTES, "0", 2),
        (Kind.ALL_REDUCE, NORM_BYTES, "0", 2),
    }


@pytest.mark.slow
def test_ranks_of_one_host_share_a_clock(traces: list[RankTrace]) -> None:
    assert [trace.clock_offset_us for trace in traces] == [0.0, 0.0]


@pytest.mark.slow
def test_all_that_was_seen_lies_in_the_step(traces: list[RankTrace]) -> None:
    for trace in traces:
        start_us, end_us = trace.window_us
        spans = [(c.start_us, c.end_us) for c in trace.collectives] + list(trace.compute_us)
        assert spans and all(start_us <= a <= b <= end_us for a, b in spans)


@pytest.mark.slow
def test_a_late_rank_shows_as_waiting_of_the_other(traces: list[RankTrace]) -> None:
    step_s = max(end - start for start, end in (trace.window_us for trace in traces)) / 1e6
    values, reasons = step_communication(traces, step_s=step_s, weight_sync_s=0.0)
    assert reasons == {}
    wait, communication = values["exposed_wait_ratio"], values["exposed_comm_ratio"]
    assert wait is not None and LATE_S * 0.9 < wait * step_s
    assert communication is not None and 0 < communication * step_s < step_s - LATE_S * 0.9
    bandwidths = [values[f"comm_{kind}_bus_gb_per_s"] for kind in KINDS]
    assert all(bandwidth is not None and bandwidth > 0 for bandwidth in bandwidths)


@pytest.mark.slow
def test_stopping_tells_what_it_cost(traces: list[RankTrace]) -> None:
    assert all(trace.overhead_s > 0 for trace in traces)


def _record_anew(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        traces = _record(Path(folder))
    path.write_text(json.dumps([trace.to_dict() for trace in traces]) + "\n")


if __name__ == "__main__":
    _record_anew(Path(sys.argv[1]))
