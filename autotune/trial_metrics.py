"""From the steps of one trial to its metrics, and what of them is relative to the baseline.

Runs in trial actors (:func:`summarise`) and in the driver (:func:`against_baseline`). Pure
functions over records: no Ray, no Optuna, no disk. Imports its siblings ``objective`` and
``measure``.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from autotune.measure.gradients import cosine_deviation
from autotune.measure.kl import kl_bias, kl_std
from autotune.measure.stats import bootstrap_interval, median
from autotune.metrics import (
    COMMUNICATION,
    DETAILS,
    GRAD_SKETCH,
    GRAD_SKETCH_AGAIN,
    KL_PER_RANK,
    MEMORY,
    METRICS,
    PHASES,
    PROBE_KL_AGAIN,
    PROFILED_STEP,
    STEP_KEYS,
    STEP_PREFIX,
    phase_metric,
)
from autotune.objective import (
    BASELINE,
    Constraint,
    StepKind,
    StepRecord,
    TrialRecord,
    TrialState,
    evaluate,
    first_not_finite,
)

Reduction = Callable[[Sequence[float]], float]

BOOTSTRAP_SEED = 0
"""Of the intervals: equal steps give equal intervals."""

ALL_STEPS = tuple(StepKind)
TIMED = (StepKind.MEASURED,)
PROFILED = (StepKind.PROFILED,)
NOT_PROFILED = (StepKind.WARMUP, StepKind.MEASURED)
"""Steps whose memory counts: the profiler's buffers are not the setting's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMetrics:
    """What the steps of one trial come to; the fields are those of a :class:`TrialRecord`."""

    metrics: dict[str, float | None]
    absent: dict[str, str]
    intervals: dict[str, list[float]]
    grad_sketch: list[float] | None


def summarise(
    steps: Sequence[StepRecord], *, startup_s: float | None, gpu_seconds: float
) -> TrialMetrics:
    """Reduce the steps of one trial to the metrics of the catalogue.

    Args:
        steps: Steps of one trial; of several attempts only the last one counts. Warm-up steps count
            for memory alone, profiled ones for communication alone.
        startup_s: From the start of the job's process to its first step; None if it got none.
        gpu_seconds: Ranks held x wall time of the whole trial.

    Returns:
        Every metric of METRICS, and those of DETAILS that the trial has; a reason for each that is
        None. What needs the baseline's record is None until :func:`against_baseline`.
    """
    last = max((step.attempt for step in steps), default=0)
    own = _Summary([step for step in steps if step.attempt == last])
    own.add_timed()
    own.add_learning()
    own.add_kl_consistency()
    own.add_probe()
    own.add_communication()
    own.add_memory()
    own.set("startup_s", startup_s, "the job did not reach its first step")
    own.set("gpu_seconds", gpu_seconds, "")
    assert own.metrics.keys() >= METRICS.keys(), METRICS.keys() - own.metrics.keys()
    return TrialMetrics(
        metrics=own.metrics,
        absent=own.absent,
        intervals=own.intervals,
        grad_sketch=own.grad_sketch(),
    )


def against_baseline(
    record: TrialRecord, baseline: TrialRecord | None, constraints: Sequence[Constraint]
) -> TrialRecord:
    """Return a trial's record with what is measured relative to the baseline.

    The driver calls it on a record that has just come in, before it is kept: the baseline's numbers
    are in the driver's records, and no trial has to be told them. The baseline itself keeps its
    noise floors.

    Args:
        record: As the trial reported it.
        baseline: The baseline's record; None while it has not finished.
        constraints: The sweep's, evaluated anew.
    """
    if record.number == BASELINE or record.state is not TrialState.COMPLETE:
        return record
    metrics, absent = dict(record.metrics), dict(record.absent)
    for name, (value, reason) in _relative(record, baseline).items():
        if name in metrics:
            metrics[name] = value
            absent.pop(name, None)
            if value is None:
                absent[name] = reason
    violations, satisfied = evaluate(metrics, constraints)
    return dataclasses.replace(
        record, metrics=metrics, absent=absent, violations=violations, feasible=satisfied
    )


def _relative(
    record: TrialRecord, baseline: TrialRecord | None
) -> dict[str, tuple[float | None, str]]:
    """Return each metric that compares with the baseline: its value, or why there is none."""
    deviation = drift = None
    reason = drift_reason = "the baseline has not finished"
    if baseline is not None:
        reason = record.absent.get("grad_cosine", "") or "the baseline has no sketch"
        drift_reason = record.absent.get("probe_kl", "") or "the baseline has no probe_kl"
        if record.grad_sketch is not None and baseline.grad_sketch is not None:
            deviation = cosine_deviation(record.grad_sketch, baseline.grad_sketch)
            reason = "a gradient is 0"
        own, first = record.metrics.get("probe_kl"), baseline.metrics.get("probe_kl")
        if own is not None and first is not None:
            drift = abs(own - first)
    cosine = None if deviation is None else 1 - deviation
    return {
        "kl_drift": (drift, drift_reason),
        "grad_cosine": (cosine, reason),
        "grad_deviation": (deviation, reason),
    }


class _Summary:
    """Metrics of one trial under construction, each a number or None with a reason."""

    def __init__(self, steps: Sequence[StepRecord]) -> None:
        self._steps = steps
        self.metrics: dict[str, float | None] = {}
        self.absent: dict[str, str] = {}
        self.intervals: dict[str, list[float]] = {}

    def set(self, name: str, value: float | None, reason: str) -> None:
        """Store a number, or None with a reason."""
        self.metrics[name] = value
        if value is None:
            self.absent[name] = reason

    def reduce(
        self, name: str, key: str, reduction: Reduction, kinds: Collection[StepKind]
    ) -> None:
        """Store the reduction of a step's number, or numbers, over the steps of some kinds."""
        values, reason = self._collect(key, kinds)
        self.set(name, reduction(values) if values else None, reason)

    def add_timed(self) -> None:
        for name, key in STEP_KEYS.items():
            self._add_repeated(name, key)
        for phase in PHASES:
            if self._reported(f"timing_s/{phase}"):
                self._add_repeated(phase_metric(phase, "s"), f"timing_s/{phase}")
        self._add_repeated("mfu_ratio", "perf/mfu/actor")
        if self.metrics["mfu_ratio"] == 0:
            self.set("mfu_ratio", None, "verl knows no peak FLOP/s of this device")
            del self.intervals["mfu_ratio"]

    def add_learning(self) -> None:
        self.reduce("reward_mean", "critic/score/mean", _mean, TIMED)
        in_loss = self._reported("actor/kl_loss")
        key = "actor/kl_loss" if in_loss else "actor/reward_kl_penalty"
        self.reduce("kl_to_reference", key, median, TIMED)
        if self._of(TIMED) and not self._reported(key):
            self.set("kl_to_reference", None, "the job has no reference policy")

    def add_kl_consistency(self) -> None:
        values, reason = self._collect(KL_PER_RANK, TIMED)
        self.set("kl_bias", kl_bias(values) if values else None, reason)
        if len(values) == 1:
            reason = "one rank and one measured step have no scatter"
        self.set("kl_std", kl_std(values) if len(values) > 1 else None, reason)

    def add_probe(self) -> None:
        """Add what the probe measured; of what compares with the baseline, the noise floor."""
        for name in ("rank_divergence", "probe_kl"):
            self.reduce(name, STEP_PREFIX + name, max, ALL_STEPS)
        again, reason = self._collect(PROBE_KL_AGAIN, ALL_STEPS)
        own = self.metrics["probe_kl"]
        self.set("kl_drift", abs(own - again[0]) if again and own is not None else None, reason)
        sketch, other = self.grad_sketch(), self._collect(GRAD_SKETCH_AGAIN, ALL_STEPS)[0]
        deviation = cosine_deviation(sketch, other) if sketch and other else None
        reason = "a gradient is 0" if sketch else self._collect(GRAD_SKETCH, ALL_STEPS)[1]
        self.set("grad_cosine", None if deviation is None else 1 - deviation, reason)
        self.set("grad_deviation", deviation, reason)

    def add_communication(self) -> None:
        for name in (*COMMUNICATION, "profiler_s"):
            self.reduce(name, STEP_PREFIX + name, median, PROFILED)
        for name in DETAILS:
            if not name.endswith(MEMORY) and self._has(STEP_PREFIX + name):
                self.reduce(name, STEP_PREFIX + name, median, PROFILED)
        recorded, reason = self._collect(PROFILED_STEP, PROFILED)
        step_s = self.metrics["step_s"]
        slowdown = median(recorded) / step_s - 1 if recorded and step_s else None
        untimed = self.absent.get("step_s", "")
        self.set("profiler_slowdown_ratio", slowdown, reason if step_s else untimed)

    def add_memory(self) -> None:
        for name in ("peak_memory_ratio", *MEMORY, "alloc_retries"):
            self.reduce(name, STEP_PREFIX + name, max, NOT_PROFILED)
        for name in DETAILS:
            if name.endswith(MEMORY) and self._has(STEP_PREFIX + name):
                self.reduce(name, STEP_PREFIX + name, max, NOT_PROFILED)

    def grad_sketch(self) -> list[float] | None:
        """Return the sketch of the probe's gradient, if the probe was run."""
        return self._collect(GRAD_SKETCH, ALL_STEPS)[0] or None

    def _add_repeated(self, name: str, key: str) -> None:
        """Store the median over measured steps and its interval."""
        self.reduce(name, key, median, TIMED)
        values, _ = self._collect(key, TIMED)
        if values:
            self.intervals[name] = list(bootstrap_interval(values, seed=BOOTSTRAP_SEED))

    def _of(self, kinds: Collection[StepKind]) -> list[StepRecord]:
        return [step for step in self._steps if step.kind in kinds]

    def _reported(self, key: str) -> bool:
        return any(key in step.metrics for step in self._of(TIMED))

    def _has(self, key: str) -> bool:
        return any(key in step.metrics for step in self._steps)

    def _collect(self, key: str, kinds: Collection[StepKind]) -> tuple[list[float], str]:
        """Return the values of some steps; none, with the reason, if one of them is not finite."""
        steps = self._of(kinds)
        values: list[float] = []
        for step in steps:
            value = step.metrics.get(key)
            broken = first_not_finite(value)
            if broken is not None:
                return [], f"step {step.step}: not a finite number ({broken})"
            if value is None and key in step.absent:
                return [], f"step {step.step}: {step.absent[key]}"
            values += value if isinstance(value, list) else [] if value is None else [value]
        is_all = len(kinds) == len(ALL_STEPS)
        what = "step" if is_all else " or ".join(kind.value for kind in kinds) + " step"
        return values, f"no {what} reported {key}" if steps else f"no {what} finished"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
