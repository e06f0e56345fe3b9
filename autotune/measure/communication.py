"""How much of a training step is communication that compute does not hide?

Runs in the trainer process of a trial, on what each worker's profiler saw (`kineto.py` makes the
traces, `arrivals.py` splits their collectives). Pure functions over intervals in microseconds.
Results are seconds, or ratios of the step's wall time; `metrics.py` defines them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.measure.arrivals import RankParts, clipped, split_at_arrivals
from autotune.measure.intervals import length, merge, subtract
from autotune.measure.traces import Kind, RankTrace
from autotune.metrics import COMMUNICATION

US_PER_S = 1e6
BYTES_PER_GB = 1e9

Values = dict[str, float | None]
Reasons = dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _RankTimes:
    """Lengths in seconds: transfers, waits, compute and idle time of one rank."""

    transfer_s: float
    exposed_transfer_s: float
    exposed_wait_s: float
    compute_s: float
    idle_s: float
    kinds_s: dict[Kind, float]


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
        return dict.fromkeys(COMMUNICATION), dict.fromkeys(COMMUNICATION, reason)
    ranks, unmatched = split_at_arrivals(traces)
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
    ranks, unmatched = split_at_arrivals(traces)
    return {
        name: _values(
            [clipped(rank, window_us) for rank in ranks],
            unmatched,
            step_s=(window_us[1] - window_us[0]) / US_PER_S,
            weight_sync_s=0.0,
        )
        for name, window_us in phases.items()
    }


def _values(
    ranks: Sequence[RankParts], unmatched: Sequence[str], *, step_s: float, weight_sync_s: float
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
    kind: Kind, ranks: Sequence[RankParts], values: Values, reasons: Reasons
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


def _rank_times(rank: RankParts) -> _RankTimes:
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
