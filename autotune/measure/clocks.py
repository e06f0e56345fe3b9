"""How far apart are the clocks of two ranks?

Runs in verl's workers: all ranks measure together, once for each job. Times are nanoseconds since
the epoch, offsets microseconds.
"""

import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

NS_PER_US = 1e3

_NUM_CLOCK_READINGS = 9
# Differs between hosts, and between two starts of one; containers of a host share it and its clock.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockReadings:
    """One rank's clock when it left each of several barriers."""

    # Two ranks with the same text read the same clock.
    clock: str
    readings_ns: tuple[int, ...]


def measure_clock_offset_us() -> float:
    """Return what to add to this rank's clock to reach rank 0's; all ranks call it together."""
    readings_ns: list[int] = []
    for _ in range(_NUM_CLOCK_READINGS):
        dist.barrier()
        readings_ns.append(time.time_ns())
    clock = _BOOT_ID.read_text() if _BOOT_ID.exists() else platform.node()
    own = ClockReadings(clock=clock, readings_ns=tuple(readings_ns))
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    return clock_offset_us(own, ranks[0])


def clock_offset_us(own: ClockReadings, first: ClockReadings) -> float:
    """Return what to add to one rank's clock to reach another's.

    Ranks leave a barrier at nearly the same moment: the median over the barriers of how far their
    clocks differ there. Ranks that read one clock have no offset, and no noise of one.
    """
    if own.clock == first.clock:
        return 0.0
    pairs = zip(first.readings_ns, own.readings_ns, strict=True)
    return statistics.median(theirs - ours for theirs, ours in pairs) / NS_PER_US
