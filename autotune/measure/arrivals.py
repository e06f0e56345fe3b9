"""When did the last rank join each collective, and what is therefore waiting, what transfer?

Runs in the trainer process of a trial, on the traces of all ranks. A collective ends on no rank
before its last rank arrives. What a rank spends before that is waiting (load imbalance), what it
spends after is communication; the i-th collective of one kind in one process group is taken for the
same collective on each rank. Results are in microseconds on the clock that the ranks share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.measure.intervals import Intervals, intersect, merge
from autotune.measure.traces import Collective, Kind, RankTrace

# Clocks of two hosts that were aligned at a barrier agree to well below this.
CLOCK_TOLERANCE_US = 1e3

_Key = tuple[str, Kind]
# These end on no rank before all ranks have joined; a broadcast's root may leave early.
_MEETINGS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One collective on one rank, on the shared clock, in two: waiting, then transferring."""

    kind: Kind
    start_us: float
    split_us: float
    end_us: float
    # What crosses each link in the transfer; None when not known.
    bus_bytes: float | None
    # Whether the ranks' arrivals are known; otherwise all of it counts as transfer.
    matched: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RankParts:
    """One rank's window, collectives and compute on the shared clock."""

    window_us: tuple[float, float]
    parts: tuple[Part, ...]
    compute: Intervals


def split_at_arrivals(traces: Sequence[RankTrace]) -> tuple[list[RankParts], list[str]]:
    """Split the ranks' collectives into wait and transfer; say which could not be."""
    of_ranks = [_by_key(trace) for trace in traces]
    joined: dict[_Key, list[float]] = {}
    unmatched: list[str] = []
    num_unknown = sum(c.group is None for trace in traces for c in trace.collectives)
    if num_unknown:
        unmatched.append(f"the process groups of {num_unknown} collectives are not known")
    for key in dict.fromkeys(key for own in of_ranks for key in own):
        members = [
            (own[key], trace.clock_offset_us)
            for trace, own in zip(traces, of_ranks, strict=True)
            if key in own
        ]
        reason = _mismatch(key, members)
        if reason is None:
            starts = [[c.start_us + offset for c in collectives] for collectives, offset in members]
            joined[key] = [max(times) for times in zip(*starts, strict=True)]
        else:
            unmatched.append(reason)
    ranks = [_parts(trace, own, joined) for trace, own in zip(traces, of_ranks, strict=True)]
    return ranks, unmatched


def clipped(rank: RankParts, window_us: tuple[float, float]) -> RankParts:
    """Return what of a rank lies in a window."""
    start_us, end_us = window_us
    parts = tuple(
        _clipped_part(part, window_us)
        for part in rank.parts
        if part.start_us < end_us and part.end_us > start_us
    )
    compute = intersect(rank.compute, merge([window_us]))
    return RankParts(window_us=window_us, parts=parts, compute=compute)


def _by_key(trace: RankTrace) -> dict[_Key, list[Collective]]:
    """Group a rank's collectives by process group and kind, in the order they start.

    Those whose group is not known are left out.
    """
    found: dict[_Key, list[Collective]] = {}
    for collective in sorted(trace.collectives, key=lambda c: c.start_us):
        if collective.group is not None:
            found.setdefault((collective.group, collective.kind), []).append(collective)
    return found


def _mismatch(key: _Key, members: Sequence[tuple[list[Collective], float]]) -> str | None:
    """Say why the ranks' collectives of one group and kind are not the same ones, or None.

    Args:
        key: The group and the kind.
        members: Collectives and clock offset of each rank that recorded any.
    """
    group, kind = key
    size = members[0][0][0].group_size
    if size is not None and size != len(members):
        return f"{len(members)} of the {size} ranks of group '{group}' recorded {kind.value}"
    counts = sorted({len(collectives) for collectives, _ in members})
    if len(counts) > 1:
        return (
            f"ranks of group '{group}' recorded different numbers of {kind.value}: "
            f"{counts[0]} to {counts[-1]}"
        )
    if kind not in _MEETINGS:
        return None
    starts = np.array([[c.start_us + offset for c in own] for own, offset in members])
    ends = np.array([[c.end_us + offset for c in own] for own, offset in members])
    late_us = float(np.max(starts.max(axis=0) - ends.min(axis=0)))
    if late_us > CLOCK_TOLERANCE_US:
        return (
            f"a rank of group '{group}' joined {kind.value} {late_us:.0f} us after another had "
            "left it: their clocks are apart"
        )
    return None


def _parts(
    trace: RankTrace, own: Mapping[_Key, list[Collective]], joined: Mapping[_Key, list[float]]
) -> RankParts:
    """Move a rank's trace to the shared clock, its collectives split where the last rank joins."""
    offset = trace.clock_offset_us
    parts = [
        _part(collective, offset, min(last_us, collective.end_us + offset))
        for key, collectives in own.items()
        if key in joined
        for collective, last_us in zip(collectives, joined[key], strict=True)
    ]
    parts += [
        _part(collective, offset, None)
        for collective in trace.collectives
        if collective.group is None or (collective.group, collective.kind) not in joined
    ]
    start_us, end_us = trace.window_us
    return RankParts(
        window_us=(start_us + offset, end_us + offset),
        parts=tuple(parts),
        compute=merge(trace.compute_us) + offset,
    )


def _part(collective: Collective, offset_us: float, split_us: float | None) -> Part:
    """Move a collective to the shared clock; without a split, all of it is transfer."""
    start_us = collective.start_us + offset_us
    return Part(
        kind=collective.kind,
        start_us=start_us,
        split_us=start_us if split_us is None else split_us,
        end_us=collective.end_us + offset_us,
        bus_bytes=_bus_bytes(collective),
        matched=split_us is not None,
    )


def _clipped_part(part: Part, window_us: tuple[float, float]) -> Part:
    """Return what of a collective lies in a window; its bytes are shared out by transfer time."""
    first, last = window_us
    start_us, split_us, end_us = (
        min(max(time_us, first), last) for time_us in (part.start_us, part.split_us, part.end_us)
    )
    bus_bytes = part.bus_bytes
    if bus_bytes is not None and part.end_us > part.split_us:
        bus_bytes *= (end_us - split_us) / (part.end_us - part.split_us)
    return replace(part, start_us=start_us, split_us=split_us, end_us=end_us, bus_bytes=bus_bytes)


def _bus_bytes(collective: Collective) -> float | None:
    """Return the bytes that cross each link in the best algorithm, as nccl-tests counts them."""
    size, num_bytes = collective.group_size, collective.num_bytes
    if size is None or num_bytes is None:
        return None
    if collective.kind is Kind.BROADCAST:
        return float(num_bytes)
    passes = 2 if collective.kind is Kind.ALL_REDUCE else 1
    return passes * num_bytes * (size - 1) / size
