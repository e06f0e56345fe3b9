"""When did each phase of a step run in this worker, and how much memory did it take at most?

Runs in verl's worker processes. verl's actor, reference and critic of one rank share a process, and
with it one allocator and one clock: there is one METER for all of them. A phase is an outermost
call of a worker's method; bytes are of the rank's own device (of the process, without one).
"""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from verl.plugin.platform import get_platform

NS_PER_US = 1e3

PhaseName = str | Callable[..., str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseOfRank:
    """One phase on one rank."""

    span_us: tuple[float, float]
    """Start and end of the phase's first run, since the epoch on the rank's own clock."""
    allocated_bytes: int
    """Peak of live tensors, over all runs of the phase."""
    reserved_bytes: int
    """Peak of what the allocator held, over all runs of the phase."""


class PhaseMeter:
    """Watches the phases of one step of one process."""

    def __init__(self) -> None:
        self.phases: dict[str, PhaseOfRank] = {}
        self.allocated_bytes = self.reserved_bytes = 0
        self._retries_before: int | None = None
        self._is_inside = False

    def begin_step(self) -> None:
        """Forget the last step."""
        get_platform().device_module.reset_peak_memory_stats()
        self.phases = {}
        self.allocated_bytes = self.reserved_bytes = 0
        self._retries_before = _alloc_retries()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure one run of a phase; inside another phase, do nothing."""
        if self._is_inside:
            yield
            return
        self.note_peaks()
        get_platform().device_module.reset_peak_memory_stats()
        self._is_inside = True
        start_us = time.time_ns() / NS_PER_US
        try:
            yield
        finally:
            self._is_inside = False
            self._end_phase(name, (start_us, time.time_ns() / NS_PER_US))

    def note_peaks(self) -> None:
        """Take the peaks since they were last reset into those of the step."""
        device = get_platform().device_module
        self.allocated_bytes = max(self.allocated_bytes, device.max_memory_allocated())
        self.reserved_bytes = max(self.reserved_bytes, device.max_memory_reserved())

    def alloc_retries(self) -> int | None:
        """Return how often the allocator had to free its cache in this step; None without one."""
        now = _alloc_retries()
        return None if now is None or self._retries_before is None else now - self._retries_before

    def _end_phase(self, name: str, span_us: tuple[float, float]) -> None:
        device, before = get_platform().device_module, self.phases.get(name)
        self.phases[name] = PhaseOfRank(
            span_us=before.span_us if before else span_us,
            allocated_bytes=max(
                device.max_memory_allocated(), before.allocated_bytes if before else 0
            ),
            reserved_bytes=max(
                device.max_memory_reserved(), before.reserved_bytes if before else 0
            ),
        )
        self.note_peaks()


METER = PhaseMeter()
"""The meter of this process."""


def in_phase(name: PhaseName, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a worker's method that is measured as a phase; what verl registered stays with it.

    Args:
        name: verl's name of the phase, or a function of the call's arguments that returns it.
        method: The method of verl's class; it may be a coroutine.
    """

    def name_of(*arguments: Any, **keywords: Any) -> str:
        return name if isinstance(name, str) else name(*arguments, **keywords)

    @wraps(method)
    def measured(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with METER.phase(name_of(*arguments, **keywords)):
            return method(self, *arguments, **keywords)

    @wraps(method)
    async def awaited(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with METER.phase(name_of(*arguments, **keywords)):
            return await method(self, *arguments, **keywords)

    return awaited if inspect.iscoroutinefunction(method) else measured


def _alloc_retries() -> int | None:
    if get_platform().device_name == "cpu":
        return None
    return int(get_platform().device_module.memory_stats().get("num_alloc_retries", 0))
