"""Which collectives and which compute did the PyTorch profiler see on this rank?

Runs in verl's workers, around one step. Reads the profiler's events in memory (nanoseconds since
the epoch) and returns a `RankTrace` (microseconds); no trace file. `communication.py` makes ratios.

On GPUs: collectives are NCCL kernels, compute is every other kernel. Copies and fills of memory are
neither, as in HolisticTraceAnalysis. On CPUs: collectives are Gloo's events, one from the moment a
rank joins to its end there, on Gloo's own threads. Compute is every operator elsewhere, but those
that enqueue a collective, and but autograd's nodes, whose span holds the waiting of FSDP hooks;
operators inside them count. Process groups and sizes come from torch's flight recorder.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from autotune.measure.clocks import NS_PER_US
from autotune.measure.flight_recorder import (
    Launch,
    kind_of,
    recorded_launches,
    size_of_only_group,
)
from autotune.measure.intervals import Intervals, merge, subtract
from autotune.measure.traces import Collective, Kind, RankTrace

NS_PER_S = 1e9

_NCCL_KERNEL = re.compile(r"nccl\w*?Kernel_([A-Za-z]+)")
_GLOO = "gloo:"
_NOT_KERNELS = ("Memcpy", "Memset")
# Operators that only hand a collective to the process group, once for each collective; and those
# around them, or that wait.
_ENQUEUE = "c10d::"
_WAIT = "_c10d_functional"
# Spans around other operators.
_WRAPPERS = ("autograd::", "torch::autograd::")
_REDUCTIONS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)


class Event(Protocol):
    """What is read of one event of the profiler (a subset of torch's `_KinetoEvent`)."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def correlation_id(self) -> int: ...
    def device_type(self) -> DeviceType: ...
    def is_user_annotation(self) -> bool: ...


class StepProfiler:
    """Record one step of this rank: made after the model, `start` then `stop`, on one thread.

    The flight recorder keeps the last `TORCH_FR_BUFFER_SIZE` collectives (torch's default is 2000;
    read when the process makes its first group). A step with more has no sizes, and no process
    groups unless all groups of this process span all ranks.

    Args:
        rank: This rank's number.
        clock_offset_us: From :func:`measure_clock_offset_us`.
    """

    def __init__(self, rank: int, *, clock_offset_us: float = 0.0) -> None:
        self._rank = rank
        self._clock_offset_us = clock_offset_us
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
        read = device_trace if self._on_gpu else cpu_trace
        trace = read(
            self._rank,
            self._profile.profiler.kineto_results.events(),
            window_us=(self._start_ns / NS_PER_US, end_ns / NS_PER_US),
            launches=recorded_launches(self._start_ns, end_ns, on_gpu=self._on_gpu),
            only_group_size=size_of_only_group(),
        )
        return replace(
            trace,
            clock_offset_us=self._clock_offset_us,
            overhead_s=(time.time_ns() - end_ns) / NS_PER_S,
        )

    def export(self, path: Path) -> None:
        """Write what was recorded as a Chrome trace (JSON), after :meth:`stop`."""
        self._profile.export_chrome_trace(str(path))


def device_trace(
    rank: int,
    events: Iterable[Event],
    *,
    window_us: tuple[float, float],
    launches: Sequence[Launch] = (),
    only_group_size: int | None = None,
) -> RankTrace:
    """Return a rank's NCCL kernels and the merged rest of its kernels.

    Args:
        rank: The rank that recorded.
        events: The profiler's events, in any order.
        window_us: Start and end of the step on the same clock; kept, not applied.
        launches: What the flight recorder saw in the window, in the order it was enqueued.
        only_group_size: Ranks of the only process group there is; None when there are several.
    """
    seen: list[_Seen] = []
    compute: list[tuple[float, float]] = []
    kernels = [event for event in events if event.device_type() != DeviceType.CPU]
    # Kernels get their correlation ids in the order in which they are launched.
    for event in sorted(kernels, key=lambda event: event.correlation_id()):
        name = event.name()
        if event.is_user_annotation() or name.startswith(_NOT_KERNELS):
            continue
        match = _NCCL_KERNEL.match(name)
        if match:
            seen.append(_Seen(event, kind_of(match[1]), kind_of(match[1])))
        else:
            compute.append(_span_us(event))
    # NCCL runs no such kernel in a group of one.
    in_kernels = [launch for launch in launches if launch.group_size > 1]
    collectives = _collectives(seen, in_kernels, only_group_size)
    return _trace(rank, window_us, collectives, merge(compute))


def cpu_trace(
    rank: int,
    events: Iterable[Event],
    *,
    window_us: tuple[float, float],
    launches: Sequence[Launch] = (),
    only_group_size: int | None = None,
) -> RankTrace:
    """Return a rank's Gloo collectives and merged compute; arguments as in `device_trace`."""
    by_role = _by_role(events)
    gloo = sorted(by_role[_Role.COLLECTIVE], key=_start_ns)
    gloo_threads = {event.start_thread_id() for event in gloo}
    compute = merge(
        _span_us(event)
        for event in by_role[_Role.COMPUTE]
        if event.start_thread_id() not in gloo_threads
    )
    idle = merge(_span_us(event) for event in by_role[_Role.ENQUEUE] + by_role[_Role.WAIT])
    named = [kind_of(event.name().removeprefix(_GLOO)) for event in gloo]
    kinds = _gloo_kinds(named, by_role[_Role.ENQUEUE])
    seen = [_Seen(*one) for one in zip(gloo, kinds, named, strict=True)]
    collectives = _collectives(seen, launches, only_group_size)
    return _trace(rank, window_us, collectives, subtract(compute, idle))


class _Role(Enum):
    """What an event of the CPU is to us."""

    COLLECTIVE = auto()
    ENQUEUE = auto()
    WAIT = auto()
    COMPUTE = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class _Seen:
    """A collective that the profiler saw: its event, what it does, what its backend calls it."""

    event: Event
    kind: Kind
    named: Kind


def _by_role(events: Iterable[Event]) -> dict[_Role, list[Event]]:
    """Sort the events of the CPU by what they are.

    A step has about half a million events of a few hundred names, and each question to an event
    costs as much as all other work on it: a name is judged once.
    """
    roles: dict[str, _Role] = {}
    by_role: dict[_Role, list[Event]] = {role: [] for role in _Role}
    for event in events:
        name = event.name()
        role = roles.get(name)
        if role is None:
            role = roles[name] = _role(event)
        by_role[role].append(event)
    return by_role


def _role(event: Event) -> _Role:
    name = event.name()
    if name.startswith(_GLOO):
        return _Role.COLLECTIVE
    if event.is_user_annotation():
        return _Role.NONE
    if name.startswith(_ENQUEUE):
        return _Role.ENQUEUE
    if name.startswith(_WAIT):
        return _Role.WAIT
    return _Role.COMPUTE if "::" in name and not name.startswith(_WRAPPERS) else _Role.NONE


def _gloo_kinds(named: Sequence[Kind], enqueued: Sequence[Event]) -> list[Kind]:
    """Return what Gloo's collectives really do, in their order.

    Gloo runs a reduce-scatter as an all-reduce and names it so. Its events and the operators that
    enqueued them come in the same order; where their numbers agree, the operators tell them apart.
    """
    operators = [kind_of(e.name().removeprefix(_ENQUEUE)) for e in sorted(enqueued, key=_start_ns)]
    reductions = [kind for kind in operators if kind in _REDUCTIONS]
    if len(reductions) != sum(kind in _REDUCTIONS for kind in named):
        return list(named)
    real = iter(reductions)
    return [next(real) if kind in _REDUCTIONS else kind for kind in named]


def _collectives(
    seen: Sequence[_Seen], launches: Sequence[Launch], only_group_size: int | None
) -> list[Collective]:
    """Join what the profiler and the flight recorder saw, both in order.

    A kind of which they saw different numbers stays without sizes.
    """
    num_seen = Counter(one.named for one in seen)
    num_launched = Counter(launch.kind for launch in launches)
    queues = {
        kind: iter([launch for launch in launches if launch.kind is kind])
        for kind in num_seen
        if num_seen[kind] == num_launched[kind]
    }
    return [
        _collective(one, next(queues[one.named]) if one.named in queues else None, only_group_size)
        for one in seen
    ]


def _collective(seen: _Seen, launch: Launch | None, only_group_size: int | None) -> Collective:
    start_us, end_us = _span_us(seen.event)
    only_group = None if only_group_size is None else "all ranks"
    return Collective(
        kind=seen.kind,
        start_us=start_us,
        end_us=end_us,
        group=launch.group if launch else only_group,
        group_size=launch.group_size if launch else only_group_size,
        num_bytes=launch.num_bytes if launch else None,
    )


def _trace(
    rank: int,
    window_us: tuple[float, float],
    collectives: Sequence[Collective],
    compute: Intervals,
) -> RankTrace:
    return RankTrace(
        rank=rank,
        window_us=window_us,
        collectives=tuple(sorted(collectives, key=lambda c: c.start_us)),
        compute_us=tuple((start, end) for start, end in compute.tolist()),
    )


def _span_us(event: Event) -> tuple[float, float]:
    return event.start_ns() / NS_PER_US, event.end_ns() / NS_PER_US


def _start_ns(event: Event) -> int:
    return event.start_ns()
