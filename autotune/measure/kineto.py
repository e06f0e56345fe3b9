"""Which collectives and which compute did the PyTorch profiler see on this rank?

Runs in verl's workers, around one step. Reads the profiler's events in memory (nanoseconds since
the epoch) and returns a `RankTrace` (microseconds); no trace file. Ratios are made in `overlap.py`.

On GPUs: collectives are NCCL kernels, compute is every other kernel. Copies and fills of memory are
neither, as in HolisticTraceAnalysis. NCCL's kernels do not name their process group: all are one.
On CPUs: collectives are Gloo's events, one from the moment a rank joins to its end there, on Gloo's
own threads. Compute is every operator elsewhere, but those that enqueue or await a collective, and
but autograd's nodes, whose span holds the waiting of FSDP hooks; operators inside them count.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from autotune.measure.overlap import Collective, Intervals, Kind, RankTrace, merge, subtract

NS_PER_US = 1e3
NS_PER_S = 1e9

_NCCL_KERNEL = re.compile(r"nccl\w*?Kernel_([A-Za-z]+)")
_GLOO = "gloo:"
_NOT_KERNELS = ("Memcpy", "Memset")
# Operators that only hand a collective to the process group, or wait for one.
_ENQUEUE = ("c10d::", "_c10d_functional")
# Spans around other operators.
_WRAPPERS = ("autograd::", "torch::autograd::")
_KINDS = {
    "allgather": Kind.ALL_GATHER,
    "reducescatter": Kind.REDUCE_SCATTER,
    "allreduce": Kind.ALL_REDUCE,
    "broadcast": Kind.BROADCAST,
}
_REDUCTIONS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)


class Event(Protocol):
    """What is read of one event of the profiler (a subset of torch's `_KinetoEvent`)."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def device_type(self) -> DeviceType: ...
    def is_user_annotation(self) -> bool: ...


class StepProfiler:
    """Record one step of this rank: made after the model, `start` then `stop`, on one thread."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        # A GPU's kernels are enough: operators of the CPU would only cost time and memory.
        # A host may have GPUs that this process, which trains on the CPU, has not touched.
        self._on_gpu = torch.cuda.is_initialized()
        activity = ProfilerActivity.CUDA if self._on_gpu else ProfilerActivity.CPU
        self._profile: Any = torch.profiler.profile(activities=[activity])
        self._start_ns = 0

    def start(self) -> None:
        """Begin to record; ranks meet at a barrier before, so that their steps start together."""
        self._profile.start()
        self._start_ns = time.time_ns()

    def stop(self) -> RankTrace:
        """Wait for the device, end the recording and return what was seen."""
        if self._on_gpu:
            torch.cuda.synchronize()
        end_ns = time.time_ns()
        self._profile.stop()
        events = self._profile.profiler.kineto_results.events()
        window_us = (self._start_ns / NS_PER_US, end_ns / NS_PER_US)
        trace = rank_trace(self._rank, events, window_us=window_us)
        return replace(trace, overhead_s=(time.time_ns() - end_ns) / NS_PER_S)


def rank_trace(rank: int, events: Iterable[Event], *, window_us: tuple[float, float]) -> RankTrace:
    """Return a rank's collectives and merged compute.

    Args:
        rank: The rank that recorded.
        events: The profiler's events, in any order.
        window_us: Start and end of the step on the same clock; kept, not applied.
    """
    on_cpu: list[Event] = []
    on_device: list[Event] = []
    for event in events:
        (on_cpu if event.device_type() == DeviceType.CPU else on_device).append(event)
    collectives, compute = _read_device(on_device) if on_device else _read_cpu(on_cpu)
    return RankTrace(
        rank=rank,
        window_us=window_us,
        collectives=tuple(sorted(collectives, key=lambda c: c.start_us)),
        compute_us=tuple((float(start), float(end)) for start, end in compute),
    )


def _read_device(events: Sequence[Event]) -> tuple[list[Collective], Intervals]:
    collectives: list[Collective] = []
    compute: list[tuple[float, float]] = []
    for event in events:
        name = event.name()
        if event.is_user_annotation() or name.startswith(_NOT_KERNELS):
            continue
        match = _NCCL_KERNEL.match(name)
        if match:
            collectives.append(_collective(event, kind=_kind(match[1]), group="nccl"))
        else:
            compute.append(_span_us(event))
    return collectives, merge(compute)


def _read_cpu(events: Sequence[Event]) -> tuple[list[Collective], Intervals]:
    gloo = [event for event in events if event.name().startswith(_GLOO)]
    gloo_threads = {event.start_thread_id() for event in gloo}
    enqueued: list[Event] = []
    compute: list[tuple[float, float]] = []
    for event in events:
        name = event.name()
        if event.is_user_annotation() or event.start_thread_id() in gloo_threads:
            continue
        if name.startswith(_ENQUEUE):
            enqueued.append(event)
        elif "::" in name and not name.startswith(_WRAPPERS):
            compute.append(_span_us(event))
    idle = merge([_span_us(event) for event in enqueued])
    kinds = _gloo_kinds(gloo, enqueued)
    collectives = [
        _collective(event, kind=kind, group="gloo")
        for event, kind in zip(sorted(gloo, key=_start_ns), kinds, strict=True)
    ]
    return collectives, subtract(merge(compute), idle)


def _gloo_kinds(gloo: Sequence[Event], enqueued: Sequence[Event]) -> list[Kind]:
    """Return the kinds of Gloo's events in order of start.

    Gloo runs a reduce-scatter as an all-reduce and names it so. Events and the operators that
    enqueued them come in the same order; where their numbers agree, the operators tell them apart.
    """
    kinds = [_kind(event.name().removeprefix(_GLOO)) for event in sorted(gloo, key=_start_ns)]
    operators = [_kind(e.name().partition("::")[2]) for e in sorted(enqueued, key=_start_ns)]
    reductions = [kind for kind in operators if kind in _REDUCTIONS]
    if len(reductions) != sum(kind in _REDUCTIONS for kind in kinds):
        return kinds
    real = iter(reductions)
    return [next(real) if kind in _REDUCTIONS else kind for kind in kinds]


def _kind(name: str) -> Kind:
    """Return the kind for a spelling such as AllGather, all_gather or _allgather_base_."""
    plain = name.replace("_", "").lower()
    return next((kind for word, kind in _KINDS.items() if plain.startswith(word)), Kind.OTHER)


def _collective(event: Event, *, kind: Kind, group: str) -> Collective:
    start_us, end_us = _span_us(event)
    return Collective(kind=kind, start_us=start_us, end_us=end_us, group=group)


def _span_us(event: Event) -> tuple[float, float]:
    return event.start_ns() / NS_PER_US, event.end_ns() / NS_PER_US


def _start_ns(event: Event) -> int:
    return event.start_ns()
