"""From the steps of one trial to its metrics, and from metrics to feasible or not, and how far off.

Runs in the driver and in trial actors. Holds the records that a sweep keeps (:class:`StepRecord`,
:class:`TrialRecord`) and pure functions over them: no Ray, no Optuna, no disk. Imports its sibling
package ``measure``. Step metrics bear verl's own keys; what our workers add begins with
``autotune/``; trial metrics bear the names of :mod:`autotune.metrics`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Protocol

from autotune.knobs import KnobValue
from autotune.measure.kl import kl_bias, kl_std
from autotune.measure.stats import median
from autotune.metrics import KL_PER_RANK, METRICS, PEAK_MEMORY, PHASES, Direction

StepValue = float | list[float] | None
Reduction = Callable[[Sequence[float]], float]

RECORD, STEP_RECORD = "record", "step_record"
"""Keys of a trial's Tune results: the trial's record in the last one, a step's in that of each
step, as ``json.dumps(record.to_dict())``. Tune flattens nested results, hence a text."""

COMMUNICATION = (
    "exposed_comm_ratio",
    "exposed_wait_ratio",
    "comm_ratio",
    "comm_overlap_ratio",
    "comm_to_compute_ratio",
)
"""Metrics of profiled steps; a step holds each, reduced over ranks, behind ``autotune/``."""


class TrialState(str, Enum):
    """How a trial ended."""

    COMPLETE = "complete"
    """All steps ran; feasible or not is decided by the constraints."""
    OUT_OF_MEMORY = "out_of_memory"
    NAN = "nan"
    """The objective, a loss or a gradient norm was not a finite number."""
    HANG = "hang"
    """No step within its time limit; the job was killed."""
    CRASH = "crash"
    """verl raised an error or its process died by itself."""
    INFRASTRUCTURE = "infrastructure"
    """A lost node, a killed actor, a full disk: nobody's setting. Retried, never told to the
    sampler as a failure."""

    @property
    def is_setting_fault(self) -> bool:
        """Whether the outcome is evidence about the setting itself."""
        return self is not TrialState.INFRASTRUCTURE


class StepKind(str, Enum):
    """What a step is used for."""

    WARMUP = "warmup"
    """Discarded."""
    MEASURED = "measured"
    """Timed."""
    PROFILED = "profiled"
    """Run under the profiler for communication, never timed."""


def timestamp() -> str:
    """Return the present time as records hold it: ISO 8601, UTC, whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One PPO step of one trial."""

    number: int
    """The trial's number."""
    attempt: int
    """0 for the first job of the trial, counted up for every job started again."""
    step: int
    """1 for the job's first step."""
    kind: StepKind
    metrics: dict[str, StepValue]
    """verl's metrics under verl's keys, and ours behind ``autotune/``; None has its reason in
    ``absent``."""
    absent: dict[str, str] = field(default_factory=dict)
    """Metric -> why it is None."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; a number that is not finite becomes None with a reason."""
        metrics, absent = _finite(self.metrics, self.absent)
        return {**_as_dict(self), "metrics": metrics, "absent": absent}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "StepRecord":
        """Build the record that :meth:`to_dict` came from."""
        return StepRecord(**{**data, "kind": StepKind(data["kind"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial: what was tried, how it ended, what was measured."""

    number: int
    """0 is the baseline."""
    state: TrialState
    params: dict[str, KnobValue]
    """The knobs that act in this setting."""
    setting: dict[str, KnobValue]
    """All knobs of the sweep, canonical."""
    overrides: list[str]
    """Hydra overrides that turn the base job into this setting."""
    metrics: dict[str, float | None]
    """Metric of the catalogue, or ``phase_<name>_s`` -> value; None has its reason in
    ``absent``."""
    absent: dict[str, str]
    """Metric -> why it is None."""
    violations: dict[str, float | None]
    """Metric of a constraint -> how far it is beyond its limit, see :func:`evaluate`."""
    feasible: bool
    """Complete, and no measured constraint is violated."""
    cause: str
    """Why the trial failed, one line; empty when it completed."""
    started_at: str
    """ISO 8601, UTC."""
    ended_at: str
    """ISO 8601, UTC."""
    retries: int
    """Jobs of this trial that were lost through no fault of the setting."""

    def __post_init__(self) -> None:
        assert not self.feasible or self.state is TrialState.COMPLETE, self

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; a number that is not finite becomes None with a reason."""
        metrics, absent = _finite(self.metrics, self.absent)
        violations, _ = _finite(self.violations, {})
        return {
            **_as_dict(self),
            "metrics": metrics,
            "absent": absent,
            "violations": violations,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "TrialRecord":
        """Build the record that :meth:`to_dict` came from."""
        return TrialRecord(**{**data, "state": TrialState(data["state"])})

    def value(self, metric: str) -> float | None:
        """Return a metric of a completed trial; None for a failed one or when not measured."""
        return self.metrics.get(metric) if self.state is TrialState.COMPLETE else None


class Constraint(Protocol):
    """A limit of the sweep file, see :class:`autotune.settings.ConstraintConfig`."""

    metric: str
    max: float


def summarise(
    steps: Sequence[StepRecord], *, startup_s: float | None, gpu_seconds: float
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Reduce the steps of one trial to the metrics of the catalogue.

    Args:
        steps: Steps of one trial; of several attempts only the last one counts. Warm-up steps count
            for memory alone, profiled ones for memory and communication.
        startup_s: From the start of the job's process to its first step; None if it got none.
        gpu_seconds: Ranks held x wall time of the whole trial.

    Returns:
        Every metric of the catalogue and every phase that ran, and a reason for each that is None.
    """
    last = max((step.attempt for step in steps), default=0)
    summary = _Summary([step for step in steps if step.attempt == last])
    summary.add_timed()
    summary.add_learning()
    summary.add_kl_consistency()
    summary.add_communication()
    summary.reduce("peak_memory_ratio", PEAK_MEMORY, max, None)
    summary.set("startup_s", startup_s, "the job did not reach its first step")
    summary.set("gpu_seconds", gpu_seconds, "")
    assert summary.metrics.keys() >= METRICS.keys()
    return summary.metrics, summary.absent


def evaluate(
    metrics: Mapping[str, float | None], constraints: Sequence[Constraint]
) -> tuple[dict[str, float | None], bool]:
    """Hold metrics against the constraints.

    Returns:
        Constraint metric -> (value - max) / max, above 0 when the limit is broken, or None when the
        metric was not measured; and whether no measured constraint is broken. Only a trial that
        completed can be feasible: the caller knows.
    """
    violations = {
        constraint.metric: _violation(metrics.get(constraint.metric), constraint.max)
        for constraint in constraints
    }
    return violations, total_violation(violations) == 0


def total_violation(violations: Mapping[str, float | None]) -> float:
    """Return the sum of the violations above 0; what was not measured adds nothing."""
    return math.fsum(value for value in violations.values() if value is not None and value > 0)


def is_maximised(metric: str) -> bool:
    """Say whether more of a metric is better."""
    assert METRICS[metric].better is not Direction.NEITHER, metric
    return METRICS[metric].better is Direction.HIGHER


def is_better(a: float, b: float, metric: str) -> bool:
    """Say whether ``a`` is strictly better than ``b`` in a metric."""
    return a > b if is_maximised(metric) else a < b


def best_feasible(records: Sequence[TrialRecord], metric: str) -> TrialRecord | None:
    """Return the feasible record with the best value of a metric, the earlier of two equal ones."""
    best: TrialRecord | None = None
    for record in sorted(records, key=lambda record: record.number):
        value = record.value(metric)
        if not record.feasible or value is None:
            continue
        incumbent = best.value(metric) if best is not None else None
        if incumbent is None or is_better(value, incumbent, metric):
            best = record
    return best


def least_infeasible(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the infeasible record with the smallest sum of violations, failed trials last.

    Trials that were lost through no fault of their setting say nothing and are left out.
    """
    infeasible = [
        record for record in records if record.state.is_setting_fault and not record.feasible
    ]
    return min(infeasible, key=_infeasibility, default=None)


def _infeasibility(record: TrialRecord) -> tuple[bool, float, int]:
    failed = record.state is not TrialState.COMPLETE
    return failed, total_violation(record.violations), record.number


def _violation(value: float | None, limit: float) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return (value - limit) / limit


def _as_dict(record: StepRecord | TrialRecord) -> dict[str, Any]:
    """Return the fields of a record, enums as their values."""
    values = {entry.name: getattr(record, entry.name) for entry in dataclasses.fields(record)}
    return {name: v.value if isinstance(v, Enum) else v for name, v in values.items()}


def _finite(
    metrics: Mapping[str, StepValue], absent: Mapping[str, str]
) -> tuple[dict[str, StepValue], dict[str, str]]:
    """Replace what is not finite by None with a reason."""
    finite: dict[str, StepValue] = {}
    reasons = dict(absent)
    for name, value in metrics.items():
        broken = _first_not_finite(value)
        finite[name] = value if broken is None else None
        if broken is not None:
            reasons[name] = f"not a finite number ({broken})"
    return finite, reasons


def _first_not_finite(value: StepValue) -> float | None:
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    return next((number for number in numbers if not math.isfinite(number)), None)


class _Summary:
    """Metrics of one trial under construction, each a number or None with a reason."""

    def __init__(self, steps: Sequence[StepRecord]) -> None:
        self._steps = steps
        self.metrics: dict[str, float | None] = {}
        self.absent: dict[str, str] = {}

    def set(self, name: str, value: float | None, reason: str) -> None:
        """Store a number, or None with a reason."""
        self.metrics[name] = value
        if value is None:
            self.absent[name] = reason

    def reduce(self, name: str, key: str, reduction: Reduction, kind: StepKind | None) -> None:
        """Store the reduction of one number a step, over the steps of a kind or over all."""
        values, reason = self._collect(key, kind)
        self.set(name, reduction(values) if values else None, reason)

    def add_timed(self) -> None:
        measured = StepKind.MEASURED
        self.reduce("throughput_tokens_per_s_per_gpu", "perf/throughput", median, measured)
        self.reduce("step_s", "timing_s/step", median, measured)
        for phase in PHASES:
            if self._reported(f"timing_s/{phase}"):
                self.reduce(f"phase_{phase}_s", f"timing_s/{phase}", median, measured)
        self.reduce("mfu_ratio", "perf/mfu/actor", median, measured)
        if self.metrics["mfu_ratio"] == 0:
            self.set("mfu_ratio", None, "verl knows no peak FLOP/s of this device")

    def add_learning(self) -> None:
        measured = StepKind.MEASURED
        self.reduce("reward_mean", "critic/score/mean", _mean, measured)
        in_loss = self._reported("actor/kl_loss")
        key = "actor/kl_loss" if in_loss else "actor/reward_kl_penalty"
        self.reduce("kl_to_reference", key, median, measured)
        if self._of(measured) and not self._reported(key):
            self.set("kl_to_reference", None, "the job has no reference policy")

    def add_kl_consistency(self) -> None:
        values, reason = self._collect(KL_PER_RANK, StepKind.MEASURED)
        self.set("kl_bias", kl_bias(values) if values else None, reason)
        if len(values) == 1:
            reason = "one rank and one measured step have no scatter"
        self.set("kl_std", kl_std(values) if len(values) > 1 else None, reason)

    def add_communication(self) -> None:
        for name in COMMUNICATION:
            self.reduce(name, f"autotune/{name}", median, StepKind.PROFILED)

    def _of(self, kind: StepKind | None) -> list[StepRecord]:
        return [step for step in self._steps if kind in (None, step.kind)]

    def _reported(self, key: str) -> bool:
        return any(key in step.metrics for step in self._of(StepKind.MEASURED))

    def _collect(self, key: str, kind: StepKind | None) -> tuple[list[float], str]:
        """Return the values of some steps; none, with the reason, if one of them is not finite."""
        steps = self._of(kind)
        values: list[float] = []
        for step in steps:
            value = step.metrics.get(key)
            broken = _first_not_finite(value)
            if broken is not None:
                return [], f"step {step.step}: not a finite number ({broken})"
            if value is None and key in step.absent:
                return [], f"step {step.step}: {step.absent[key]}"
            values += value if isinstance(value, list) else [] if value is None else [value]
        what = f"{kind.value} step" if kind is not None else "step"
        return values, f"no {what} reported {key}" if steps else f"no {what} finished"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
