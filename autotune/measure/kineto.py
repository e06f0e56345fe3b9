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
_ENQUEUE = ("c10d::", "_c10d_functional::", "_dtensor::")
# Spans around other operators.
_WRAPPERS = ("autograd::", "torch::autograd::")
_KINDS = {
    "allgather": Kind.ALL_GATHER,
    "reducescatter": Kind.REDUCE_SCATTER,
    "allreduce": Kind.ALL_REDUCE,
    "broadcast": Kind.BROADCAST,
}


class Event(Protocol):
    """What is read of one event of the profiler (a subset of torch's `_KinetoEvent`)."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def device_type(self) -> DeviceType: ...
    def is_user_annotation(self) -> bool: ...


class StepProfiler:
    """Record one step of this rank; `start` then `stop`, once, on the same thread."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            # Kernels are enough: operators of the CPU would only cost time and memory.
            activities = [ProfilerActivity.CUDA]
        self._profile: Any = torch.profiler.profile(activities=activities)
        self._start_ns = 0

    def start(self) -> None:
        """Begin to record; ranks meet at a barrier before, so that their steps start together."""
        self._profile.start()
        self._start_ns = time.time_ns()

    def stop(self) -> RankTrace:
        """Wait for the device, end the recording and return what was seen."""
        if torch.cuda.is_available():
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
    read = _read_device(on_device) if on_device else _read_cpu(on_cpu)
    collectives, compute = read
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
    reductions = [
        kind
        for kind in (_enqueued_kind(event.name()) for event in sorted(enqueued, key=_start_ns))
        if kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
    ]
    if len(reductions) != sum(kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) for kind in kinds):
        return kinds
    real = iter(reductions)
    return [
        next(real) if kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) else kind for kind in kinds
    ]


def _enqueued_kind(name: str) -> Kind | None:
    """Return the kind of collective an operator of torch's process groups enqueues, if any."""
    if not name.startswith("c10d::"):
        return None
    return _kind(name.removeprefix("c10d::"))


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
