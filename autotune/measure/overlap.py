"""How much of a training step is communication that compute does not hide?

Runs in the trainer process of a trial, on what each worker's profiler saw (`kineto.py` makes the
traces). Pure functions over intervals: half-open, in microseconds, as arrays of rows (start, end).
Results are ratios of the step's wall time; `metrics.py` defines them.

A collective ends on no rank before its last rank arrives. What a rank spends before that is waiting
(load imbalance), what it spends after is communication; the i-th collective of one kind in one
process group is taken for the same collective on each rank. Not here: reading profiler events.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

US_PER_S = 1e6

Intervals = NDArray[np.float64]
_Key = tuple[str, "Kind"]


class Kind(str, Enum):
    """What a collective does."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective on one rank: from when the rank joins it to when it is done there."""

    kind: Kind
    start_us: float
    end_us: float
    # Process group, spelled alike on all ranks of the group.
    group: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """What one rank's profiler saw of one step; small, and can be pickled.

    `compute_us` is merged: rows (start, end), sorted, that do not touch. All times are on the
    rank's own clock; `clock_offset_us` is what to add to reach the clock the ranks share.
    """

    rank: int
    window_us: tuple[float, float]
    collectives: tuple[Collective, ...]
    compute_us: tuple[tuple[float, float], ...]
    # What stopping the profiler and reading its events cost.
    overhead_s: float = 0.0
    clock_offset_us: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankTimes:
    """Lengths in seconds: transfers, waits and compute of one rank."""

    transfer_s: float
    exposed_transfer_s: float
    exposed_wait_s: float
    compute_s: float


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
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return the communication metrics of one profiled step, and why the absent ones are.

    Where the ranks of a group disagree on how many collectives of a kind there were, those are not
    split: they count in full as communication, an upper bound, and `exposed_wait_ratio` is absent.

    Args:
        traces: One of each rank of the trial.
        step_s: Wall time of the step, above 0.
        weight_sync_s: Time in which the step only handed weights to the rollout; never hidden.
    """
    names = (
        "exposed_comm_ratio",
        "exposed_wait_ratio",
        "comm_ratio",
        "comm_overlap_ratio",
        "comm_to_compute_ratio",
    )
    if not any(trace.collectives or trace.compute_us for trace in traces):
        reason = "the profiler recorded no events" if traces else "no step was profiled"
        return dict.fromkeys(names), dict.fromkeys(names, reason)
    arrivals, unmatched = _arrivals(traces)
    ranks = [_rank_times(trace, arrivals) for trace in traces]
    values: dict[str, float | None] = {
        "exposed_comm_ratio": max(r.exposed_transfer_s + weight_sync_s for r in ranks) / step_s,
        "exposed_wait_ratio": max(r.exposed_wait_s for r in ranks) / step_s,
        "comm_ratio": max(r.transfer_s + weight_sync_s for r in ranks) / step_s,
        "comm_overlap_ratio": min(
            (1 - r.exposed_transfer_s / r.transfer_s for r in ranks if r.transfer_s > 0),
            default=None,
        ),
        "comm_to_compute_ratio": max(
            (r.transfer_s / r.compute_s for r in ranks if r.compute_s > 0), default=None
        ),
    }
    reasons: dict[str, str] = {}
    if unmatched:
        values["exposed_wait_ratio"] = None
        reasons["exposed_wait_ratio"] = "; ".join(unmatched)
    if values["comm_overlap_ratio"] is None:
        reasons["comm_overlap_ratio"] = "there was no communication"
    if values["comm_to_compute_ratio"] is None:
        reasons["comm_to_compute_ratio"] = "there was no compute"
    return values, reasons


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
    """Group a rank's collectives by process group and kind, in the order they start."""
    found: dict[_Key, list[Collective]] = {}
    for collective in sorted(trace.collectives, key=lambda c: c.start_us):
        found.setdefault((collective.group, collective.kind), []).append(collective)
    return found


def _arrivals(traces: Sequence[RankTrace]) -> tuple[dict[_Key, list[float]], list[str]]:
    """Return when the last rank joins each collective, and which could not be matched.

    Times are on the shared clock. Keys that could not be matched are left out.
    """
    starts: dict[_Key, list[list[float]]] = {}
    for trace in traces:
        for key, collectives in _by_key(trace).items():
            offset = trace.clock_offset_us
            starts.setdefault(key, []).append([c.start_us + offset for c in collectives])
    arrivals: dict[_Key, list[float]] = {}
    unmatched: list[str] = []
    for (group, kind), ranks in starts.items():
        counts = sorted({len(rank) for rank in ranks})
        if len(counts) == 1:
            arrivals[group, kind] = [max(times) for times in zip(*ranks, strict=True)]
        else:
            unmatched.append(
                f"ranks of group '{group}' recorded different numbers of {kind.value}: "
                f"{counts[0]} to {counts[-1]}"
            )
    return arrivals, unmatched


def _rank_times(trace: RankTrace, arrivals: Mapping[_Key, Sequence[float]]) -> _RankTimes:
    """Split one rank's collectives into wait and transfer, and take away what compute hides."""
    waits: list[tuple[float, float]] = []
    transfers: list[tuple[float, float]] = []
    for key, collectives in _by_key(trace).items():
        joined = arrivals.get(key)
        for index, collective in enumerate(collectives):
            split = collective.start_us
            if joined is not None:
                split = min(joined[index] - trace.clock_offset_us, collective.end_us)
            waits.append((collective.start_us, split))
            transfers.append((split, collective.end_us))
    transfer = merge(transfers)
    compute = merge(trace.compute_us)
    exposed_wait = subtract(subtract(merge(waits), compute), transfer)
    return _RankTimes(
        transfer_s=length(transfer) / US_PER_S,
        exposed_transfer_s=length(subtract(transfer, compute)) / US_PER_S,
        exposed_wait_s=length(exposed_wait) / US_PER_S,
        compute_s=length(compute) / US_PER_S,
    )
