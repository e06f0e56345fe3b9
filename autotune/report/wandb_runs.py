"""What goes into wandb: one run a trial, one for the sweep, as plain content.

Runs in the process that writes to wandb, see :mod:`autotune.report.wandb_writer`. Pure functions
from the sweep's data; no wandb. Run ids follow from the sweep and the trial, so that a run that is
written again, or a sweep that goes on, makes no second one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.objective import StepRecord, TrialRecord
from autotune.report.answer import Answer
from autotune.report.documents import plain, report_document
from autotune.report.reading import SweepData
from autotune.report.text import changed_knobs, duration_s, fidelity_note, is_failed, outcome
from autotune.verification import Verification

Table = tuple[list[str], list[list[Any]]]
"""Columns and rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContent:
    """One wandb run, ready to be written."""

    key: str
    """``trial-0007`` or ``report``; the run's id is the sweep's followed by it."""
    name: str
    job_type: str
    tags: tuple[str, ...]
    config: Mapping[str, Any]
    history: tuple[tuple[int, Mapping[str, Any]], ...]
    """Step -> its numbers."""
    summary: Mapping[str, Any]
    tables: Mapping[str, Table] = field(default_factory=dict)
    failed: bool = False


def trial_run(data: SweepData, record: TrialRecord) -> RunContent:
    """Return a finished trial: knobs as config, metrics of each step, its own as summary."""
    return RunContent(
        key=f"trial-{record.number:04d}",
        name=f"trial {record.number}" + (" (baseline)" if record.number == 0 else ""),
        job_type="trial",
        tags=(outcome(record), *_fidelity_tag(data)),
        config={
            **record.setting,
            "trial": record.number,
            "sweep": data.config.name,
            "fidelity": _fidelity(data),
            "overrides": list(record.overrides),
            "knobs_that_act": sorted(record.params),
        },
        history=tuple((step.step, step_numbers(step)) for step in data.last_attempt(record.number)),
        summary={
            "state": record.state.value,
            "outcome": outcome(record),
            "feasible": record.feasible,
            "cause": record.cause,
            "retries": record.retries,
            "started_at": record.started_at,
            "ended_at": record.ended_at,
            "duration_s": duration_s(record),
            "changed_knobs": changed_knobs(record.setting, data.baseline_setting),
            **{name: value for name, value in record.metrics.items() if value is not None},
            **{f"absent/{name}": reason for name, reason in record.absent.items()},
            **{
                f"violation/{name}": value
                for name, value in record.violations.items()
                if value is not None
            },
        },
        failed=is_failed(record),
    )


def step_numbers(step: StepRecord) -> dict[str, Any]:
    """Return a step's metrics; a list becomes one number a rank, what was not measured is left
    out."""
    numbers: dict[str, Any] = {"step_kind": step.kind.value}
    for name, value in step.metrics.items():
        if isinstance(value, list):
            numbers |= {f"{name}/rank_{rank}": number for rank, number in enumerate(value)}
        elif value is not None:
            numbers[name] = value
    return numbers


def report_run(data: SweepData, answer: Answer) -> RunContent:
    """Return the sweep's own run: the answer as summary, all trials as a table."""
    document = report_document(answer, data)
    return RunContent(
        key="report",
        name=f"report: {data.config.name}",
        job_type="report",
        tags=(answer.verdict.value, *_fidelity_tag(data)),
        config={
            "sweep": data.config.name,
            "fidelity": _fidelity(data),
            "sweep_file": plain(data.config),
            "versions": dict(data.versions),
            "calibration": document["calibration"],
        },
        history=(),
        summary={
            name: document[name]
            for name in ("verdict", "winner", "closest", "num_finished", "num_trials", "binding")
        }
        | {"production": answer.production or "", "overrides": list(answer.overrides)}
        | {f"gain/{name}": value for name, value in (document["gain"] or {}).items()}
        | _sides(answer)
        | {f"gpu_hours/{cost.outcome}": cost.gpu_hours for cost in answer.costs},
        tables={
            "trials": trials_table(data, answer),
            "constraints": limits_table(answer),
            **({"proof": proof_table(data.verification)} if data.verification else {}),
        },
    )


def _fidelity(data: SweepData) -> str:
    return fidelity_note(data.config.trial.fidelity) or "full"


def _fidelity_tag(data: SweepData) -> tuple[str, ...]:
    note = fidelity_note(data.config.trial.fidelity)
    return (note,) if note else ()


def trials_table(data: SweepData, answer: Answer) -> Table:
    """Return every finished trial as a row."""
    metrics = [answer.objective, *(c.metric for c in data.config.constraints)]
    metrics.append("update_only_s" if data.config.trial.replays_rollout else "step_s")
    metrics = list(dict.fromkeys([*metrics, "startup_s", "gpu_seconds"]))
    knobs = sorted({knob for record in data.trials for knob in record.setting})
    rows = [
        [
            record.number,
            outcome(record),
            *(record.metrics.get(metric) for metric in metrics),
            *(str(record.setting.get(knob, "")) for knob in knobs),
            record.cause,
        ]
        for record in data.trials
    ]
    return ["trial", "outcome", *metrics, *knobs, "cause"], rows


def limits_table(answer: Answer) -> Table:
    """Return every constraint at the shown trial as a row."""
    columns = ["constraint", "max", "value", "low", "high", "headroom_ratio", "baseline"]
    columns += ["num_refused", "reason"]
    rows = [
        [limit.metric, limit.max, limit.value, limit.low, limit.high, limit.headroom_ratio]
        + [limit.baseline, limit.num_refused, limit.reason]
        for limit in answer.limits
    ]
    return columns, rows


def proof_table(found: Verification) -> Table:
    """Return every verified setting as a row."""
    columns = ["trial", "decision", "gain_ratio", "low", "high", "num_pairs", "num_jobs", "reason"]
    rows: list[list[Any]] = []
    for candidate in found.candidates:
        gain = candidate.gain_ratio
        numbers = [None] * 4 if gain is None else [gain.value, gain.low, gain.high, gain.num_jobs]
        rows.append(
            [candidate.number, candidate.decision.value, *numbers]
            + [candidate.num_jobs, candidate.reason]
        )
    return columns, rows


def _sides(answer: Answer) -> dict[str, Any]:
    """Return the measured numbers of the baseline and of the shown trial."""
    sides = {"baseline": answer.baseline, "winner": answer.winner, "closest": answer.closest}
    return {
        f"{side}/{name}": value
        for side, record in sides.items()
        if record is not None
        for name, value in record.metrics.items()
        if value is not None
    }
