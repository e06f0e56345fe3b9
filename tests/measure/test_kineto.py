"""Traces read from hand-made events, and from a real FSDP2 step of two Gloo processes."""

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

from autotune.measure.kineto import StepProfiler, rank_trace
from autotune.measure.overlap import Kind, RankTrace, step_communication

NUM_LAYERS = 3
LATE_S = 0.3


@dataclass
class HandMadeEvent:
    """An event as the profiler gives it; times in nanoseconds."""

    label: str
    span_ns: tuple[int, int]
    device: DeviceType = DeviceType.CUDA
    thread: int = 1
    annotation: bool = False

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return self.span_ns[0]

    def end_ns(self) -> int:
        return self.span_ns[1]

    def start_thread_id(self) -> int:
        return self.thread

    def device_type(self) -> DeviceType:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation


def _cpu(label: str, start: int, end: int, *, thread: int = 1) -> HandMadeEvent:
    annotation = label.startswith("gloo:")
    return HandMadeEvent(label, (start, end), DeviceType.CPU, thread, annotation)


def _read(*events: HandMadeEvent) -> RankTrace:
    return rank_trace(0, events, window_us=(0.0, 100.0))


def test_times_become_microseconds_once() -> None:
    trace = _read(HandMadeEvent("gemm", (2_000, 5_500)))
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
    trace = _read(HandMadeEvent(name, (0, 1_000)))
    assert [collective.kind for collective in trace.collectives] == [kind]
    assert trace.compute_us == ()


def test_copies_and_annotations_on_the_device_are_neither_compute_nor_collectives() -> None:
    trace = _read(
        HandMadeEvent("Memcpy HtoD (Pinned -> Device)", (0, 1_000)),
        HandMadeEvent("Memset (Device)", (0, 1_000)),
        HandMadeEvent("nccl:_all_gather_base", (0, 1_000), annotation=True),
    )
    assert trace.collectives == () and trace.compute_us == ()


def test_kernels_of_two_streams_are_merged() -> None:
    trace = _read(HandMadeEvent("gemm", (0, 3_000)), HandMadeEvent("softmax", (2_000, 4_000)))
    assert trace.compute_us == ((0.0, 4.0),)


def test_operators_of_the_cpu_are_no_compute_where_a_device_has_kernels() -> None:
    trace = _read(HandMadeEvent("gemm", (0, 1_000)), _cpu("aten::mm", 5_000, 6_000))
    assert trace.compute_us == ((0.0, 1.0),)


def test_what_enqueues_a_collective_or_wraps_operators_is_no_compute() -> None:
    trace = _read(
        _cpu("autograd::engine::evaluate_function: AddmmBackward0", 0, 90_000),
        _cpu("AddmmBackward0", 0, 90_000),
        _cpu("aten::mm", 10_000, 20_000),
        _cpu("c10d::_allgather_base_", 30_000, 40_000),
        _cpu("aten::chunk", 31_000, 32_000),
    )
    assert trace.compute_us == ((10.0, 20.0),)


def test_operators_inside_a_gloo_collective_are_part_of_it() -> None:
    trace = _read(
        _cpu("gloo:all_gather", 0, 10_000, thread=2), _cpu("aten::copy_", 8_000, 9_000, thread=2)
    )
    assert trace.compute_us == ()
    assert [(c.kind, c.start_us, c.end_us) for c in trace.collectives] == [
        (Kind.ALL_GATHER, 0.0, 10.0)
    ]


def test_a_reduce_scatter_that_gloo_calls_all_reduce_is_told_apart() -> None:
    trace = _read(
        _cpu("c10d::_reduce_scatter_base_", 0, 1_000),
        _cpu("gloo:all_reduce", 500, 2_000, thread=2),
        _cpu("c10d::allreduce_", 3_000, 4_000),
        _cpu("gloo:all_reduce", 3_500, 5_000, thread=2),
    )
    kinds = [collective.kind for collective in trace.collectives]
    assert kinds == [Kind.REDUCE_SCATTER, Kind.ALL_REDUCE]


def _profile_step(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(NUM_LAYERS)])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    inputs = torch.ones(8, 64)
    model(inputs).sum().backward()
    profiler = StepProfiler(rank)
    dist.barrier()
    profiler.start()
    if rank == 1:
        time.sleep(LATE_S)
    model(inputs).sum().backward()
    torch.save(profiler.stop(), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[RankTrace]:
    folder: Path = tmp_path_factory.mktemp("profiled")
    multiprocessing.spawn(_profile_step, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
def test_the_collectives_of_an_fsdp2_step_are_all_found(traces: list[RankTrace]) -> None:
    # Each layer is gathered in the forward pass, freed, and gathered again in the backward pass.
    for trace in traces:
        kinds = [collective.kind for collective in trace.collectives]
        assert kinds.count(Kind.ALL_GATHER) == 2 * NUM_LAYERS
        assert kinds.count(Kind.REDUCE_SCATTER) == NUM_LAYERS


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


@pytest.mark.slow
def test_stopping_tells_what_it_cost(traces: list[RankTrace]) -> None:
    assert all(0 < trace.overhead_s < 5 for trace in traces)
