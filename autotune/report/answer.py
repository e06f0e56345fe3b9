"""The answer of a sweep: what won, by how much, what bound it, what to change, what it cost.

Runs in whatever process reports. Pure functions from :class:`~autotune.report.reading.SweepData` to
:class:`Answer`, which the terminal, the HTML page, wandb and ``--json`` all show: they never
compute anything about the sweep themselves.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from autotune.knobs import KnobValue
from autotune.metrics import METRICS
from autotune.objective import (
    Constraint,
    TrialRecord,
    TrialState,
    best_feasible,
    is_better,
    least_infeasible,
    pareto_front,
)
from autotune.report.gain import Gain, gain, is_baseline, sweep_gain, verified_result
from autotune.report.reading import SweepData
from autotune.report.text import duration_s, outcome
from autotune.store import BEST_FILE
from autotune.verification import ConstraintCheck


class Verdict(str, Enum):
    """What may be said about the winner."""

    PROVEN = "proven"
    """Measured again against the baseline, interleaved in fresh jobs, and faster."""
    NOT_PROVEN = "not_proven"
    """Measured again, and the interval leaves open whether it is faster."""
    WORSE = "worse"
    """Measured again, and not as good as the baseline."""
    NOT_VERIFIED = "not_verified"
    """The best feasible trial of the sweep, not measured again."""
    BASELINE_IS_BEST = "baseline_is_best"
    """No feasible trial beats the base job's own settings."""
    NOTHING_FEASIBLE = "nothing_feasible"
    """No finished trial keeps all constraints."""
    NOTHING_FINISHED = "nothing_finished"
    """No trial has ended yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """One constraint at the shown trial."""

    metric: str
    max: float
    value: float | None
    """The shown trial's value; None when not measured."""
    reason: str
    """Why ``value`` is None; empty otherwise."""
    low: float | None
    """Lower end of the value's interval over cold jobs; None unless verified."""
    high: float | None
    num_jobs: int | None
    """Cold jobs of a verification behind ``value``; None: it is of the sweep's own job."""
    baseline: float | None
    """The baseline's own value: the noise floor of consistency metrics."""
    headroom_ratio: float | None
    """(max - value) / max; below 0: broken."""
    num_refused: int
    """Trials that break this limit: those better than the winner; without a winner, all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A knob that the winner sets otherwise than the base job."""

    knob: str
    was: KnobValue | None
    now: KnobValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What trials of one outcome cost."""

    outcome: str
    """``feasible``, ``infeasible``, or the state of a trial that failed."""
    num_trials: int
    gpu_hours: float
    """GPUs (without an accelerator: ranks) held x wall time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a sweep found, as far as it has come."""

    sweep: str
    verdict: Verdict
    objective: str
    unit: str
    fidelity: str
    """``full``, or ``update``: the trials replayed one rollout and ran only what trains."""
    num_trials: int
    """Trials of the budget."""
    num_finished: int
    """Trials that count: those lost through no fault of their setting do not."""
    is_running: bool
    trade_off: str | None
    """Metric of a second objective; None: there is one objective."""
    front: tuple[TrialRecord, ...]
    """The Pareto front of two objectives, best in the first one first; empty for one objective."""
    winner: TrialRecord | None
    """The trial that stands for the best feasible setting; one of the baseline's own setting where
    nothing beats it."""
    repetitions: tuple[TrialRecord, ...]
    """Completed trials of the shown setting, by number."""
    baseline: TrialRecord | None
    closest: TrialRecord | None
    """Without a winner: the trial that misses the constraints by least."""
    gain: Gain | None
    """None without a winner other than the baseline, or without a measured baseline."""
    sweep_gain: Gain | None
    """The same in the sweep's own jobs, where ``gain`` is a verification's; else ``gain``."""
    limits: tuple[LimitStatus, ...]
    """The constraints at the winner, or at the closest trial."""
    binding: str | None
    """Metric of the constraint that refused most trials, see ``LimitStatus.num_refused``; None: no
    constraint held back a better setting."""
    changes: tuple[Change, ...]
    overrides: tuple[str, ...]
    """The changes as Hydra overrides of verl's command line."""
    production: str | None
    """The command that runs the winner; None unless ``best.yaml`` holds its setting."""
    exported: int | None
    """The trial whose setting ``best.yaml`` holds; None: there is no such file."""
    costs: tuple[Cost, ...]
    """Of the sweep's trials."""
    proof_gpu_hours: float | None
    """What the verification's jobs cost beside them, those of one without an outcome too; None: no
    job ran."""

    @property
    def shown(self) -> TrialRecord | None:
        """The trial that the answer is about."""
        return self.winner if self.winner is not None else self.closest


def answer(data: SweepData) -> Answer:
    """Return what a sweep has found so far."""
    objective = data.config.objective.metric
    winner = winner_of(data)
    closest = least_infeasible(data.trials) if winner is None else None
    shown = winner if winner is not None else closest
    limits = _limits(data, shown, winner)
    return Answer(
        sweep=data.config.name,
        verdict=_verdict(data, winner),
        objective=objective,
        unit=METRICS[objective].unit,
        fidelity=data.config.trial.fidelity,
        num_trials=data.config.search.num_trials,
        num_finished=sum(record.state.is_setting_fault for record in data.trials),
        is_running=data.is_running,
        trade_off=data.config.objective.trade_off,
        front=_front(data),
        winner=winner,
        repetitions=tuple(record for record in data.trials if _same_setting(record, shown)),
        baseline=data.baseline,
        closest=closest,
        gain=gain(data, winner),
        sweep_gain=sweep_gain(data, winner),
        limits=limits,
        binding=_binding(limits),
        changes=changes(data, winner),
        overrides=tuple(winner.overrides) if winner is not None else (),
        production=production_command(data.folder) if _is_exported(data, winner) else None,
        exported=data.exported,
        costs=costs(data.trials, data.config.resources.num_ranks),
        proof_gpu_hours=_proof_gpu_hours(data),
    )


def _front(data: SweepData) -> tuple[TrialRecord, ...]:
    objective = data.config.objective
    if objective.trade_off is None:
        return ()
    return tuple(pareto_front(data.trials, (objective.metric, objective.trade_off)))


def winner_of(data: SweepData) -> TrialRecord | None:
    """Return the proven trial with the largest gain, else the best feasible one of the sweep."""
    if data.verification is not None and data.verification.winner is not None:
        return data.trial(data.verification.winner)
    return best_feasible(data.trials, data.config.objective.metric)


def production_command(folder: Path) -> str:
    """Return the command that runs the best setting that was exported to a folder."""
    return (
        f"python -m verl.trainer.main_ppo --config-path {shlex.quote(str(folder))} "
        f"--config-name {BEST_FILE.removesuffix('.yaml')}"
    )


def changes(data: SweepData, record: TrialRecord | None) -> tuple[Change, ...]:
    """Return the knobs that a trial sets otherwise than the baseline."""
    if record is None:
        return ()
    was = data.baseline_setting
    return tuple(
        Change(knob=knob, was=was.get(knob), now=value)
        for knob, value in record.setting.items()
        if knob not in was or was[knob] != value
    )


def costs(trials: Sequence[TrialRecord], num_ranks: int) -> tuple[Cost, ...]:
    """Return what the finished trials cost, by outcome, the dearest first."""
    spent: dict[str, list[float]] = {}
    for record in trials:
        spent.setdefault(outcome(record), []).append(gpu_seconds(record, num_ranks))
    found = [
        Cost(outcome=name, num_trials=len(seconds), gpu_hours=sum(seconds) / 3600)
        for name, seconds in spent.items()
    ]
    return tuple(sorted(found, key=lambda cost: -cost.gpu_hours))


def _proof_gpu_hours(data: SweepData) -> float | None:
    spent = [
        gpu_seconds(job.record, data.config.resources.num_ranks) for job in data.verify_jobs
    ]
    return sum(spent) / 3600 if spent else None


def gpu_seconds(record: TrialRecord, num_ranks: int) -> float:
    """Return what a trial cost; of a trial that was lost before it could say, by its clock."""
    measured = record.metrics.get("gpu_seconds")
    return measured if measured is not None else duration_s(record) * num_ranks


def _is_exported(data: SweepData, winner: TrialRecord | None) -> bool:
    """Say whether ``best.yaml`` holds the winner's setting; it may be that of an earlier winner."""
    if winner is None or is_baseline(data, winner):
        return False
    exported = [record for record in data.trials if record.number == data.exported]
    return any(record.setting == winner.setting for record in exported)


def _same_setting(record: TrialRecord, other: TrialRecord | None) -> bool:
    return (
        other is not None
        and record.state is TrialState.COMPLETE
        and record.setting == other.setting
    )


def _verdict(data: SweepData, winner: TrialRecord | None) -> Verdict:
    if winner is None:
        return Verdict.NOTHING_FEASIBLE if data.trials else Verdict.NOTHING_FINISHED
    if is_baseline(data, winner):
        return Verdict.BASELINE_IS_BEST
    verified = verified_result(data, winner)
    return Verdict.NOT_VERIFIED if verified is None else Verdict(verified.decision.value)


def _limits(
    data: SweepData, shown: TrialRecord | None, winner: TrialRecord | None
) -> tuple[LimitStatus, ...]:
    if shown is None or shown.state is not TrialState.COMPLETE:
        return ()
    rivals = _better(data, winner) if winner is not None else data.trials
    verified = verified_result(data, shown)
    checks = {check.metric: check for check in verified.constraints} if verified else {}
    return tuple(
        _limit(
            constraint,
            shown,
            data.baseline,
            checks.get(constraint.metric),
            num_refused=sum(_breaks(record, constraint.metric) for record in rivals),
        )
        for constraint in data.config.constraints
    )


def _limit(
    constraint: Constraint,
    shown: TrialRecord,
    baseline: TrialRecord | None,
    check: ConstraintCheck | None,
    *,
    num_refused: int,
) -> LimitStatus:
    metric = constraint.metric
    measured = check.measured if check is not None else None
    value = measured.value if measured is not None else shown.value(metric)
    floor = check.baseline.value if check is not None and check.baseline is not None else None
    if floor is None and baseline is not None:
        floor = baseline.value(metric)
    return LimitStatus(
        metric=metric,
        max=constraint.max,
        value=value,
        reason=shown.absent.get(metric, "") if value is None else "",
        low=measured.low if measured is not None else None,
        high=measured.high if measured is not None else None,
        num_jobs=measured.num_jobs if measured is not None else None,
        baseline=floor,
        headroom_ratio=None if value is None else 1 - value / constraint.max,
        num_refused=num_refused,
    )


def _better(data: SweepData, winner: TrialRecord) -> list[TrialRecord]:
    """Return the completed trials with a better objective than the winner's."""
    objective = data.config.objective.metric
    best = winner.value(objective)
    assert best is not None
    return [
        record
        for record in data.trials
        if (value := record.value(objective)) is not None and is_better(value, best, objective)
    ]


def _binding(limits: Sequence[LimitStatus]) -> str | None:
    most = max(limits, key=lambda limit: limit.num_refused, default=None)
    return most.metric if most is not None and most.num_refused else None


def _breaks(record: TrialRecord, metric: str) -> bool:
    violation = record.violations.get(metric)
    return violation is not None and violation > 0
