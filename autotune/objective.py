"""What a sweep keeps of its steps and trials, and from metrics to feasible or not, and how far off.

Runs in the driver and in trial actors. Holds the records (:class:`StepRecord`,
:class:`TrialRecord`) and pure functions over them: no Ray, no Optuna, no disk. Step metrics bear
verl's own keys; what our workers add begins with ``autotune/``; trial metrics bear the names of
:mod:`autotune.metrics`. How steps become a trial's metrics: :mod:`autotune.trial_metrics`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from statistics import fmean
from typing import Any, Protocol

from autotune.knobs import KnobValue
from autotune.measure.stats import CAUTIOUS, pooled_spread
from autotune.metrics import METRICS, Direction

StepValue = float | list[float] | None

RECORD, STEP_RECORD, START = "record", "step_record", "start"
"""Keys of a trial's Tune results: the trial's record in the last one, a step's in that of each
step, as ``json.dumps(record.to_dict())`` (Tune flattens nested results, hence a text), and beside a
step's how its job was started."""

BASELINE = 0
"""Number of the trial with the base job's own settings."""

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
    STOPPED = "stopped"
    """Stopped by the search after some measured steps: clearly worse than the best so far. Its
    metrics are of fewer steps, and it is never feasible."""
    INFRASTRUCTURE = "infrastructure"
    """A lost node, the death of the trial's own actor, a full disk: nobody's setting. Retried,
    never told to the sampler as a failure."""

    @property
    def is_setting_fault(self) -> bool:
        """Whether the outcome is evidence about the setting itself."""
        return self is not TrialState.INFRASTRUCTURE

    @property
    def is_failure(self) -> bool:
        """Whether the setting broke the job."""
        return self.is_setting_fault and self not in (TrialState.COMPLETE, TrialState.STOPPED)


class Start(str, Enum):
    """How the job that a record speaks of came to its first step."""

    COLD = "cold"
    """A fresh job: new processes."""
    ENGINE = "engine"
    """The live job of the trial before it, training engines rebuilt."""
    HOT = "hot"
    """The live job of the trial before it, engines kept: weights, optimizer and settings put
    back."""
    ROLLOUT = "rollout"
    """The live job of the trial before it, rollout servers started again; engines put back or
    rebuilt."""

    @property
    def is_live(self) -> bool:
        """Whether processes of an earlier trial were used again."""
        return self is not Start.COLD


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
class JobOutcome:
    """A job of a trial that is not the one that the trial's record speaks of."""

    start: Start
    state: TrialState
    cause: str
    """Why it ended, one line; empty when it completed."""
    rule: str = ""
    """The recovery rule that had changed its setting; empty when it ran the setting as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A recovery rule of the sweep file that fired: the record is that of a changed setting."""

    rule: str
    """The rule in words, e.g. ``nan: target_kl=0.05``."""
    overrides: list[str]
    """What it added to the trial's overrides; part of ``TrialRecord.overrides``."""
    asked: "TrialRecord"
    """What the setting as it was asked came to: this is what the sampler learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One trial: what was tried, how it ended, what was measured.

    Where a recovery rule fired and its job completed, state, metrics and overrides are those of the
    changed setting; ``params`` and ``setting`` stay what was asked, see :meth:`as_asked`.
    """

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
    """Metric of the catalogue (all of METRICS, and of DETAILS what applies) -> value; None has its
    reason in ``absent``."""
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
    """Jobs of this trial that were started again with the same setting: after a loss that is
    nobody's fault, after the death of a worker, or to confirm a failure in a fresh job."""
    intervals: dict[str, list[float]] = field(default_factory=dict)
    """Metric -> low and high end of its 95 % bootstrap interval over measured steps."""
    grad_sketch: list[float] | None = None
    """Sketch of the probe's gradient, to be compared with the baseline's; None when there is
    none."""
    start: Start = Start.COLD
    """How the job that this record speaks of was started."""
    other_jobs: list[JobOutcome] = field(default_factory=list)
    """The trial's other jobs, in order."""
    recovery: Recovery | None = None
    """The recovery rule that changed the setting; None for a setting as it was asked."""

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
            "other_jobs": [_as_dict(job) for job in self.other_jobs],
            "recovery": None
            if self.recovery is None
            else {**_as_dict(self.recovery), "asked": self.recovery.asked.to_dict()},
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "TrialRecord":
        """Build the record that :meth:`to_dict` came from."""
        parsed = {**data, "state": TrialState(data["state"])}
        if "start" in data:
            parsed["start"] = Start(data["start"])
        parsed["other_jobs"] = [
            JobOutcome(**{**job, "start": Start(job["start"]), "state": TrialState(job["state"])})
            for job in data.get("other_jobs", ())
        ]
        recovery = data.get("recovery")
        if recovery is not None:
            asked = TrialRecord.from_dict(recovery["asked"])
            parsed["recovery"] = Recovery(**{**recovery, "asked": asked})
        return TrialRecord(**parsed)

    def as_asked(self) -> "TrialRecord":
        """Return the record of the setting that the sampler asked for, without what a recovery rule
        changed."""
        return self if self.recovery is None else self.recovery.asked

    def value(self, metric: str) -> float | None:
        """Return a metric of a completed trial; None for a failed one or when not measured."""
        return self.metrics.get(metric) if self.state is TrialState.COMPLETE else None


class Constraint(Protocol):
    """A limit of the sweep file, see :class:`autotune.settings.ConstraintConfig`."""

    metric: str
    max: float


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
    """Return the record that stands for the best feasible setting, measured as often as it was.

    Trials of one setting are repetitions. Once any setting was repeated, the spread of repetitions
    is known, and a setting counts by the pessimistic end of what was measured: its mean objective,
    one standard error worse, where every constraint is still kept two standard errors beyond its
    mean. Settings that were repeated go before those that were not, and these before settings that
    keep a limit by their mean alone, of which the one with most room wins. The winner's record is
    that of its feasible trial in the middle, the worse of two, so that no lucky repetition is
    quoted.
    """
    repeated = _Repeated(records, metric)
    for least, is_strict in ((2, True), (1, True), (1, False)):
        feasible = [
            trials
            for trials in repeated.settings
            if len(trials) >= least and repeated.keeps(trials, is_strict)
        ]
        if feasible:
            rate = repeated.score if is_strict else repeated.room
            scores = [rate(trials) for trials in feasible]
            return repeated.middle(feasible[scores.index(max(scores))])
    return None


def pareto_front(records: Sequence[TrialRecord], metrics: Sequence[str]) -> list[TrialRecord]:
    """Return the feasible settings that no other one beats in every metric, best in the first one
    first; of two equal ones the earlier.

    A setting that was repeated is there once, by its trial in the middle, and only if the mean of
    its trials keeps every constraint.
    """
    repeated = _Repeated(records, metrics[0])
    kept = [
        repeated.middle(trials)
        for trials in repeated.settings
        if repeated.keeps(trials, is_strict=False)
    ]
    points: dict[int, list[float]] = {}
    for record in sorted(kept, key=lambda record: record.number):
        values = [(metric, record.value(metric)) for metric in metrics]
        point = [v if is_maximised(m) else -v for m, v in values if v is not None]
        if len(point) == len(metrics) and point not in points.values():
            points[record.number] = point
    front = [
        record
        for record in kept
        if record.number in points
        and not any(_dominates(point, points[record.number]) for point in points.values())
    ]
    return sorted(front, key=lambda record: points[record.number], reverse=True)


def _dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    return a != b and all(x >= y for x, y in zip(a, b))


def repetitions(records: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Return the completed trials by setting, in the order in which the settings came up."""
    found: dict[Any, list[TrialRecord]] = {}
    for record in sorted(records, key=lambda record: record.number):
        if record.state is TrialState.COMPLETE:
            found.setdefault(tuple(sorted(record.setting.items())), []).append(record)
    return list(found.values())


CONSTRAINT_SPREAD, CONSTRAINT_WORTH = 0.08, 4.0
"""Usual relative spread of a constraint's metric between two trials of one setting, and the degrees
of freedom that this belief is worth. A standard deviation over 80 ranks and steps, as ``kl_std``
is, scatters by 8 % by itself, and two repetitions that agree by luck would let pass what breaks a
limit."""


class _Repeated:
    """Settings with their trials, and what one trial's spread makes of them."""

    def __init__(self, records: Sequence[TrialRecord], metric: str) -> None:
        self._metric = metric
        self._sign = 1.0 if is_maximised(metric) else -1.0
        everything = repetitions(records)
        broken = [record.setting for record in records if record.state.is_failure]
        self.settings = [
            trials
            for trials in everything
            if any(trial.feasible for trial in trials)
            and all(trial.value(metric) is not None for trial in trials)
            and trials[0].setting not in broken
        ]
        self._is_known = any(len(trials) > 1 for trials in everything)
        self._spread = pooled_spread([self._values(trials) for trials in everything])
        names = dict.fromkeys(name for record in records for name in record.violations)
        self._limits = {
            name: pooled_spread(
                [_shares(trials, name) for trials in everything],
                usual=CONSTRAINT_SPREAD,
                worth=CONSTRAINT_WORTH,
            )
            for name in names
        }

    def keeps(self, trials: Sequence[TrialRecord], is_strict: bool) -> bool:
        """Say whether a setting keeps its constraints: by its mean, or clearly."""
        if is_strict:
            return self.room(trials) >= 0
        means = [fmean(shares) for name in self._limits if (shares := _shares(trials, name))]
        return max(means, default=0.0) <= 1

    def room(self, trials: Sequence[TrialRecord]) -> float:
        """Return the share of the tightest limit that the cautious end of a setting leaves."""
        left = 1.0
        for name, spread in self._limits.items():
            if shares := _shares(trials, name):
                error = CAUTIOUS * spread / math.sqrt(len(shares)) if self._is_known else 0.0
                left = min(left, 1 - fmean(shares) * (1 + error))
        return left

    def score(self, trials: Sequence[TrialRecord]) -> float:
        """Return a setting's mean objective, one standard error worse; more is better."""
        mean = self._sign * fmean(self._values(trials))
        error = self._spread / math.sqrt(len(trials)) if self._is_known else 0.0
        return mean - error * abs(mean)

    def middle(self, trials: Sequence[TrialRecord]) -> TrialRecord:
        feasible = [trial for trial in trials if trial.feasible]
        ordered = sorted(feasible, key=lambda trial: self._sign * self._values([trial])[0])
        return ordered[(len(ordered) - 1) // 2]

    def _values(self, trials: Sequence[TrialRecord]) -> list[float]:
        return [value for trial in trials if (value := trial.value(self._metric)) is not None]


def _shares(trials: Sequence[TrialRecord], name: str) -> list[float]:
    """Return a constraint's metric of each trial that measured it, as a share of its limit."""
    return [1 + value for trial in trials if (value := trial.violations.get(name)) is not None]


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


def _as_dict(record: StepRecord | TrialRecord | JobOutcome | Recovery) -> dict[str, Any]:
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
        broken = first_not_finite(value)
        finite[name] = value if broken is None else None
        if broken is not None:
            reasons[name] = f"not a finite number ({broken})"
    return finite, reasons


def first_not_finite(value: StepValue) -> float | None:
    """Return the first number of a step's value that is not finite."""
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    return next((number for number in numbers if not math.isfinite(number)), None)
