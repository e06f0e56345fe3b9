"""From what the ranks measured of one step, and of the probe, to the step's metrics.

Runs in the trial's verl process. Pure functions over what each worker returned; times of different
ranks are brought to one clock here. Metrics are named in :mod:`autotune.metrics`. Of verl's own
metrics only times and tokens are looked at, and those that a replayed rollout makes untrue.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.measure.communication import (
    US_PER_S,
    Reasons,
    phase_communication,
    step_communication,
)
from autotune.measure.kl import kl_from_start, rank_divergence
from autotune.measure.traces import RankTrace
from autotune.metrics import (
    COMMUNICATION,
    GRAD_SKETCH,
    GRAD_SKETCH_AGAIN,
    KL_PER_RANK,
    PEAK_MEMORY,
    PROBE_KL_AGAIN,
    PROFILED_STEP,
    STEP_KEYS,
    STEP_PREFIX,
    UPDATE_ONLY_PHASES,
    phase_metric,
)

if TYPE_CHECKING:
    from autotune.verl_bridge.consistency_probe import ProbeOfRank
    from autotune.verl_bridge.worker_phases import PhaseOfRank

BYTES_PER_GIB = 2**30

PROBE_KL = f"{STEP_PREFIX}probe_kl"
RANK_DIVERGENCE = f"{STEP_PREFIX}rank_divergence"

StepValues = dict[str, float | list[float] | None]

_OF_WHOLE_STEPS = ("perf/throughput", "perf/time_per_step", "timing_s/step")
_OF_GENERATION = ("timing_s/gen", "timing_per_token_ms/gen")
_KL_TO_REFERENCE = ("actor/kl_loss", "actor/reward_kl_penalty")
_AGAINST_ROLLOUT = ("training/rollout_probs_diff", "training/rollout_actor_probs", "rollout_corr/")
"""Beginnings of verl's metrics that compare the policy with the rollout that it made."""
_NO_WHOLE_STEP = "update-only: the rollout was replayed, the step is not a whole one"
_OFF_POLICY = "update-only: the rollout was replayed, its tokens are the first policy's"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStep:
    """One step as one rank measured it."""

    k_nats: float | None
    """k(r,t), see ``kl_std``; None without a response token or an update."""
    peak_bytes: int
    """What counts for ``peak_memory_ratio``."""
    device_bytes: int
    """What the device has; without one, the node."""
    node_id: str
    allocated_bytes: int
    reserved_bytes: int
    alloc_retries: int | None
    phases: "Mapping[str, PhaseOfRank]"
    trace: RankTrace | None
    """Of a profiled step."""


def step_metrics(
    ranks: Sequence[RankStep], *, device: str, weight_sync_s: float, why_no_kl: str | None
) -> tuple[StepValues, Reasons]:
    """Return our metrics of one step, and why absent ones are absent.

    Args:
        ranks: All ranks of the trial.
        device: verl's ``trainer.device``.
        weight_sync_s: Time in which the step only handed weights to the rollout.
        why_no_kl: Why k(r,t) means nothing in this job; None where it does.
    """
    metrics: StepValues = {PEAK_MEMORY: _peak_memory_ratio(ranks, device)}
    reasons: Reasons = {}
    k_nats = [rank.k_nats for rank in ranks if rank.k_nats is not None]
    is_known = why_no_kl is None and len(k_nats) == len(ranks)
    metrics[KL_PER_RANK] = k_nats if is_known else None
    if not is_known:
        reasons[KL_PER_RANK] = (
            why_no_kl or "a rank had no response token, or the actor was not updated"
        )
    metrics.update(_memory(ranks))
    retries = [rank.alloc_retries for rank in ranks if rank.alloc_retries is not None]
    metrics[f"{STEP_PREFIX}alloc_retries"] = float(sum(retries)) if retries else None
    if not retries:
        reasons[f"{STEP_PREFIX}alloc_retries"] = "there is no accelerator"
    traces = [rank.trace for rank in ranks if rank.trace is not None]
    if traces:
        _add_communication(ranks, traces, weight_sync_s, metrics, reasons)
    return metrics, reasons


def update_only_metrics(metrics: Mapping[str, float], num_ranks: int) -> StepValues:
    """Return time and speed of the phases that train.

    Args:
        metrics: verl's, of one step.
        num_ranks: Ranks of the job.
    """
    phases = [f"timing_s/{phase}" for phase in UPDATE_ONLY_PHASES]
    time_s = sum(metrics[phase] for phase in phases if phase in metrics)
    speed = metrics["perf/total_num_tokens"] / (time_s * num_ranks)
    return {
        STEP_KEYS["update_only_s"]: time_s,
        STEP_KEYS["update_only_tokens_per_s_per_gpu"]: speed,
    }


def replayed(metrics: Mapping[str, float], step: int) -> tuple[dict[str, float | None], Reasons]:
    """Return verl's metrics of a step whose rollout was replayed, and why absent ones are absent.

    The rollout is that of the first weights, which are the policy's in the first step only. The
    old log-probabilities are of the step's own weights in every step: what compares with them
    (``actor/ppo_kl``, k(r,t)) means what it always means.

    Args:
        metrics: verl's.
        step: 1 is the first.
    """
    untrue = dict.fromkeys((name for name in _OF_WHOLE_STEPS if name in metrics), _NO_WHOLE_STEP)
    if step > 1:
        untrue |= {
            name: _OFF_POLICY
            for name in metrics
            if name in _KL_TO_REFERENCE or name.startswith(_AGAINST_ROLLOUT)
        }
    left = {
        name: None if name in untrue else value
        for name, value in metrics.items()
        if name not in _OF_GENERATION
    }
    return left, untrue


def probe_metrics(ranks: "Sequence[ProbeOfRank | str]") -> tuple[StepValues, Reasons]:
    """Return what the probe before the first step found; a text says why a rank found nothing."""
    names = (PROBE_KL, PROBE_KL_AGAIN, GRAD_SKETCH, GRAD_SKETCH_AGAIN)
    reason = next((rank for rank in ranks if isinstance(rank, str)), None)
    if reason is not None:
        return dict.fromkeys(names), dict.fromkeys(names, reason)
    found = [rank for rank in ranks if not isinstance(rank, str)]
    start = [value for rank in found for value in rank.start]
    return {
        PROBE_KL: kl_from_start(start, [value for rank in found for value in rank.after]),
        PROBE_KL_AGAIN: kl_from_start(start, [v for rank in found for v in rank.after_again]),
        GRAD_SKETCH: found[0].grad_sketch,
        GRAD_SKETCH_AGAIN: found[0].grad_sketch_again,
    }, {}


def divergence_metrics(ranks: Sequence[list[float] | str]) -> tuple[StepValues, Reasons]:
    """Return how far the ranks' scores of the same sequences are apart at the trial's end."""
    reason = next((rank for rank in ranks if isinstance(rank, str)), None)
    if reason is None and len(ranks) == 1:
        reason = "one rank cannot differ from itself"
    if reason is not None:
        return {RANK_DIVERGENCE: None}, {RANK_DIVERGENCE: reason}
    return {RANK_DIVERGENCE: rank_divergence([r for r in ranks if not isinstance(r, str)])}, {}


def _memory(ranks: Sequence[RankStep]) -> StepValues:
    """Return the peaks of each rank, over the step and over each phase."""
    peaks: StepValues = {
        f"{STEP_PREFIX}peak_allocated_gib": _gib(rank.allocated_bytes for rank in ranks),
        f"{STEP_PREFIX}peak_reserved_gib": _gib(rank.reserved_bytes for rank in ranks),
    }
    for phase in _phases_of_all(ranks):
        own = [rank.phases[phase] for rank in ranks]
        prefix = STEP_PREFIX + phase_metric(phase, "")
        peaks[f"{prefix}peak_allocated_gib"] = _gib(one.allocated_bytes for one in own)
        peaks[f"{prefix}peak_reserved_gib"] = _gib(one.reserved_bytes for one in own)
    return peaks


def _add_communication(
    ranks: Sequence[RankStep],
    traces: Sequence[RankTrace],
    weight_sync_s: float,
    metrics: StepValues,
    reasons: Reasons,
) -> None:
    # The step's own timer also holds the profiler's work after the recording.
    recorded_us = max(trace.window_us[1] - trace.window_us[0] for trace in traces)
    step_s = recorded_us / US_PER_S + weight_sync_s
    values, absent = step_communication(traces, step_s=step_s, weight_sync_s=weight_sync_s)
    if any(trace.collectives or trace.compute_us for trace in traces):
        windows = _windows(ranks, traces)
        for phase, (own, own_absent) in phase_communication(traces, windows).items():
            # Kinds of collectives are told apart for the step as a whole.
            values |= {phase_metric(phase, name): own[name] for name in COMMUNICATION}
            absent |= {
                phase_metric(phase, name): why
                for name, why in own_absent.items()
                if name in COMMUNICATION
            }
    metrics.update({STEP_PREFIX + name: value for name, value in values.items()})
    reasons.update({STEP_PREFIX + name: reason for name, reason in absent.items()})
    metrics[PROFILED_STEP] = step_s
    metrics[f"{STEP_PREFIX}profiler_s"] = max(trace.overhead_s for trace in traces)


def _windows(
    ranks: Sequence[RankStep], traces: Sequence[RankTrace]
) -> dict[str, tuple[float, float]]:
    """Return the phases that were recorded whole: from the first rank's start to the last one's
    end, on the clock that the ranks share."""
    offsets = [trace.clock_offset_us for trace in traces]
    recorded_until_us = min(trace.window_us[1] + trace.clock_offset_us for trace in traces)
    windows = {}
    for phase in _phases_of_all(ranks):
        spans = [rank.phases[phase].span_us for rank in ranks]
        start_us = min(span[0] + offset for span, offset in zip(spans, offsets, strict=True))
        end_us = max(span[1] + offset for span, offset in zip(spans, offsets, strict=True))
        if start_us < end_us <= recorded_until_us:
            windows[phase] = (start_us, end_us)
    return windows


def _phases_of_all(ranks: Sequence[RankStep]) -> list[str]:
    return [name for name in ranks[0].phases if all(name in rank.phases for rank in ranks)]


def _gib(num_bytes: Iterable[int]) -> list[float]:
    return [value / BYTES_PER_GIB for value in num_bytes]


def _peak_memory_ratio(ranks: Sequence[RankStep], device: str) -> float:
    """Largest share of a device's memory; on the CPU, of a node's memory by all of its ranks
    together."""
    if device != "cpu":
        return max(rank.peak_bytes / rank.device_bytes for rank in ranks)
    peak_bytes: dict[str, int] = defaultdict(int)
    node_bytes: dict[str, int] = {}
    for rank in ranks:
        peak_bytes[rank.node_id] += rank.peak_bytes
        node_bytes[rank.node_id] = rank.device_bytes
    return max(peak_bytes[node] / node_bytes[node] for node in peak_bytes)
