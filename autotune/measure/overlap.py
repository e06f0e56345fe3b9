"""How much of a training step is communication that compute does not hide?

Runs in the trainer process of a trial, on what each worker's profiler saw (`kineto.py` makes the
traces). Pure functions over intervals: half-open, in microseconds, as arrays of rows (start, end).
Results are seconds, or ratios of the step's wall time; `metrics.py` defines those of the catalogue.

A collective ends on no rank before its last rank arrives. What a rank spends before that is waiting
(load imbalance), what it spends after is communication; the i-th collective of one kind in one
process group is taken for the same collective on each rank. Not here: reading profiler events.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

US_PER_S = 1e6
BYTES_PER_GB = 1e9
# Clocks of two hosts that were aligned at a barrier agree to well below this.
CLOCK_TOLERANCE_US = 1e3

Intervals = NDArray[np.float64]
Values = dict[str, float | None]
Reasons = dict[str, str]

_RATIOS = (
    "exposed_comm_ratio",
    "exposed_wait_ratio",
    "comm_ratio",
    "comm_overlap_ratio",
    "comm_to_compute_ratio",
    "compute_imbalance_ratio",
    "idle_ratio",
)


class Kind(str, Enum):
    """What a collective does."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    OTHER = "other"


_Key = tuple[str, Kind]
# These end on no rank before all ranks have joined; a broadcast's root may leave early.
_MEETINGS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective on one rank: from when the rank joins it to when it is done there."""

    kind: Kind
    start_us: float
    end_us: float
    # Process group: one name on all its ranks, and no other group's; None when not known.
    group: str | None
    # Ranks of the group; None when not known: then those that name it are taken for all of them.
    group_size: int | None = None
    # The whole buffer: gathered output, input before it is scattered, or the tensor; None when not
    # known.
    num_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """What one rank's profiler saw of one step; small, and can be pickled.

    `compute_us` is merged: rows (start, end), sorted, that do not touch. All times are on the
    rank's own clock; `clock_offset_us` is what to add to reach the clock that the ranks share.
    """

    rank: int
    window_us: tuple[float, float]
    collectives: tuple[Collective, ...]
    compute_us: tuple[tuple[float, float], ...]
    # What stopping the profiler and reading its events cost.
    overhead_s: float = 0.0
    clock_offset_us: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "RankTrace":
        """Build the trace that :meth:`to_dict` came from, lists for tuples as JSON has them."""
        fields = dict(data)
        fields["window_us"] = tuple(data["window_us"])
        fields["compute_us"] = tuple((start, end) for start, end in data["compute_us"])
        fields["collectives"] = tuple(
            Collective(**{**entry, "kind": Kind(entry["kind"])}) for entry in data["collectives"]
        )
        return RankTrace(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
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
class _RankParts:
    """One rank's window, collectives and compute on the shared clock."""

    window_us: tuple[float, float]
    parts: tuple[_Part, ...]
    compute: Intervals


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankTimes:
    """Lengths in seconds: transfers, waits, compute and idle time of one rank."""

    transfer_s: float
    exposed_transfer_s: float
    exposed_wait_s: float
    compute_s: float
    idle_s: float
    kinds_s: dict[Kind, float]


def merge(intervals: Iterable[tuple[float, float]] | Intervals) -> Intervals:
    """Return the union as sorted rows that do not touch; empty intervals vanish."""
    rows = intervals if isinstance(intervals, np.ndarray) else list(intervals)
    array = np.asarray(rows, dtype=np.float64).reshape(-1, 2)
    array = array[array[:, 1] > array[:, 0]]
    if len(array) == 0:
        return array
    array = array[np.argsort(array[:, 0], kind="stable")]
    reach = np.maximum.accumulate(array[:, 1])
    first = np.concatenate([[True], array[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([array[first, 0], reach[last]])


def length(merged: Intervals) -> float:
    """Return the summed length of merged intervals, in their own unit."""
    return float(np.sum(merged[:, 1] - merged[:, 0]))


def subtract(merged: Intervals, removed: Intervals) -> Intervals:
    """Return the parts of the first merged set that the second does not cover."""
    return _covered(merged, removed, inside=(True, False))


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Return the parts that both merged sets cover."""
    return _covered(first, second, inside=(True, True))


def step_communication(
    traces: Sequence[RankTrace], *, step_s: float, weight_sync_s: float
) -> tuple[Values, Reasons]:
    """Return the communication of one profiled step, and why absent values are absent.

    Beside the catalogue's metrics: `compute_imbalance_ratio`, largest over mean of the ranks'
    compute unions, minus 1; `idle_ratio`, the largest share of a rank's step in which it neither
    computes nor is in a collective; and for each kind that occurred `comm_<kind>_s`, the union of
    its transfers on the rank that has most, and `comm_<kind>_bus_gb_per_s` (1e9 bytes): bus bytes
    over transfer time, each summed over collectives and ranks, where bus bytes are those of
    nccl-tests (`num_bytes` x (n - 1) / n, twice that for all-reduce, x 1 for broadcast; n ranks).

    Where the ranks of a group cannot be matched, their collectives are not split: they count in
    full as communication, an upper bound, and `exposed_wait_ratio` is absent.

    Args:
        traces: One of each rank of the trial.
        step_s: Wall time of the step, above 0.
        weight_sync_s: Time in which the step only handed weights to the rollout; never hidden.
    """
    if not any(trace.collectives or trace.compute_us for trace in traces):
        reason = "the profiler recorded no events" if traces else "no step was profiled"
        return dict.fromkeys(_RATIOS), dict.fromkeys(_RATIOS, reason)
    ranks, unmatched = _split(traces)
    return _values(ranks, unmatched, step_s=step_s, weight_sync_s=weight_sync_s)


def phase_communication(
    traces: Sequence[RankTrace], phases: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[Values, Reasons]]:
    """Return the numbers of `step_communication` for each phase of a step, without weight sync.

    Args:
        traces: One of each rank of the trial, with events.
        phases: Name -> start and end, in microseconds on the clock that the ranks share. What
            crosses an edge counts on each side with its part; ratios are of the phase's length.
    """
    ranks, unmatched = _split(traces)
    return {
        name: _values(
            [_clipped(rank, window_us) for rank in ranks],
            unmatched,
            step_s=(window_us[1] - window_us[0]) / US_PER_S,
            weight_sync_s=0.0,
        )
        for name, window_us in phases.items()
    }


def _values(
    ranks: Sequence[_RankParts], unmatched: Sequence[str], *, step_s: float, weight_sync_s: float
) -> tuple[Values, Reasons]:
    """Reduce the ranks' times to the step's values."""
    times = [_rank_times(rank) for rank in ranks]
    values: Values = {
        "exposed_comm_ratio": max(t.exposed_transfer_s + weight_sync_s for t in times) / step_s,
        "exposed_wait_ratio": max(t.exposed_wait_s for t in times) / step_s,
        "comm_ratio": max(t.transfer_s + weight_sync_s for t in times) / step_s,
        "comm_overlap_ratio": min(
            (1 - t.exposed_transfer_s / t.transfer_s for t in times if t.transfer_s > 0),
            default=None,
        ),
        "comm_to_compute_ratio": max(
            (t.transfer_s / t.compute_s for t in times if t.compute_s > 0), default=None
        ),
        "compute_imbalance_ratio": _imbalance([t.compute_s for t in times]),
        "idle_ratio": max(t.idle_s for t in times) / step_s,
    }
    reasons: Reasons = {}
    if not all(part.matched for rank in ranks for part in rank.parts):
        values["exposed_wait_ratio"] = None
        reasons["exposed_wait_ratio"] = "; ".join(unmatched)
    if values["comm_overlap_ratio"] is None:
        reasons["comm_overlap_ratio"] = "there was no communication"
    for name in ("comm_to_compute_ratio", "compute_imbalance_ratio"):
        if values[name] is None:
            reasons[name] = "there was no compute"
    for kind in Kind:
        if any(kind in t.kinds_s for t in times):
            values[f"comm_{kind.value}_s"] = max(t.kinds_s.get(kind, 0.0) for t in times)
            _add_bandwidth(kind, ranks, values, reasons)
    return values, reasons


def _imbalance(compute_s: Sequence[float]) -> float | None:
    total_s = sum(compute_s)
    return max(compute_s) * len(compute_s) / total_s - 1 if total_s > 0 else None


def _add_bandwidth(
    kind: Kind, ranks: Sequence[_RankParts], values: Values, reasons: Reasons
) -> None:
    """Add the bus bandwidth of a kind that has one, or why it is absent."""
    if kind is Kind.OTHER:
        return
    name = f"comm_{kind.value}_bus_gb_per_s"
    parts = [part for rank in ranks for part in rank.parts if part.kind is kind]
    known = [part.bus_bytes for part in parts if part.bus_bytes is not None]
    transfer_us = sum(part.end_us - part.split_us for part in parts)
    values[name] = None
    if not all(part.matched for part in parts):
        reasons[name] = "transfers could not be told from waiting"
    elif len(known) < len(parts):
        reasons[name] = "the sizes of the collectives are not known"
    elif transfer_us <= 0:
        reasons[name] = "the transfers took no time"
    else:
        values[name] = sum(known) / BYTES_PER_GB / (transfer_us / US_PER_S)


def _bus_bytes(collective: Collective) -> float | None:
    """Return the bytes that cross each link in the best algorithm, as nccl-tests counts them."""
    size, num_bytes = collective.group_size, collective.num_bytes
    if size is None or num_bytes is None:
        return None
    if collective.kind is Kind.BROADCAST:
        return float(num_bytes)
    passes = 2 if collective.kind is Kind.ALL_REDUCE else 1
    return passes * num_bytes * (size - 1) / size


def _covered(first: Intervals, second: Intervals, *, inside: tuple[bool, bool]) -> Intervals:
    """Return where the first set covers and the second does or does not, as asked."""
    edges = np.unique(np.concatenate([first.ravel(), second.ravel()]))
    if len(edges) < 2:
        return np.empty((0, 2))
    middles = (edges[:-1] + edges[1:]) / 2
    wanted = np.ones(len(middles), dtype=bool)
    for merged, is_inside in zip((first, second), inside, strict=True):
        # An odd number of edges to the left of a point means that it lies in an interval.
        wanted &= (np.searchsorted(merged.ravel(), middles) % 2 == 1) == is_inside
    return merge(np.column_stack([edges[:-1], edges[1:]])[wanted])


def _by_key(trace: RankTrace) -> dict[_Key, list[Collective]]:
    """Group a rank's collectives by process group and kind, in the order they start.

    Those whose group is not known are left out.
    """
    found: dict[_Key, list[Collective]] = {}
    for collective in sorted(trace.collectives, key=lambda c: c.start_us):
        if collective.group is not None:
            found.setdefault((collective.group, collective.kind), []).append(collective)
    return found


def _split(traces: Sequence[RankTrace]) -> tuple[list[_RankParts], list[str]]:
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
) -> _RankParts:
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
    return _RankParts(
        window_us=(start_us + offset, end_us + offset),
        parts=tuple(parts),
        compute=merge(trace.compute_us) + offset,
    )


def _part(collective: Collective, offset_us: float, split_us: float | None) -> _Part:
    """Move a collective to the shared clock; without a split, all of it is transfer."""
    start_us = collective.start_us + offset_us
    return _Part(
        kind=collective.kind,
        start_us=start_us,
        split_us=start_us if split_us is None else split_us,
        end_us=collective.end_us + offset_us,
        bus_bytes=_bus_bytes(collective),
        matched=split_us is not None,
    )


def _clipped(rank: _RankParts, window_us: tuple[float, float]) -> _RankParts:
    """Return what of a rank lies in a window."""
    start_us, end_us = window_us
    parts = tuple(
        _clipped_part(part, window_us)
        for part in rank.parts
        if part.start_us < end_us and part.end_us > start_us
    )
    compute = intersect(rank.compute, merge([window_us]))
    return _RankParts(window_us=window_us, parts=parts, compute=compute)


def _clipped_part(part: _Part, window_us: tuple[float, float]) -> _Part:
    """Return what of a collective lies in a window; its bytes are shared out by transfer time."""
    first, last = window_us
    start_us, split_us, end_us = (
        min(max(time_us, first), last) for time_us in (part.start_us, part.split_us, part.end_us)
    )
    bus_bytes = part.bus_bytes
    if bus_bytes is not None and part.end_us > part.split_us:
        bus_bytes *= (end_us - split_us) / (part.end_us - part.split_us)
    return replace(part, start_us=start_us, split_us=split_us, end_us=end_us, bus_bytes=bus_bytes)


def _rank_times(rank: _RankParts) -> _RankTimes:
    """Measure one rank's transfers and waits, and take away what compute hides."""
    transfer = merge([(part.split_us, part.end_us) for part in rank.parts])
    wait = merge([(part.start_us, part.split_us) for part in rank.parts])
    busy = merge(np.concatenate([transfer, wait, rank.compute]))
    kinds: dict[Kind, list[tuple[float, float]]] = {}
    for part in rank.parts:
        kinds.setdefault(part.kind, []).append((part.split_us, part.end_us))
    return _RankTimes(
        transfer_s=length(transfer) / US_PER_S,
        exposed_transfer_s=length(subtract(transfer, rank.compute)) / US_PER_S,
        exposed_wait_s=length(subtract(subtract(wait, rank.compute), transfer)) / US_PER_S,
        compute_s=length(rank.compute) / US_PER_S,
        idle_s=length(subtract(merge([rank.window_us]), busy)) / US_PER_S,
        kinds_s={kind: length(merge(spans)) / US_PER_S for kind, spans in kinds.items()},
    )
