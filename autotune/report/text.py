"""How single facts of a sweep read: values with their units, knobs that changed, one line a trial.

Runs in the driver. Pure functions from records to text. Ratios are printed as percentages, times in
seconds or minutes, and what was not measured as such, never as 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from autotune.knobs import KnobValue
from autotune.metrics import STEP_KEYS, WHOLE_STEP, describe
from autotune.objective import Constraint, StepRecord, TrialRecord, TrialState, best_feasible
from autotune.settings import ResourcesConfig
from autotune.verification import Estimate

NOT_MEASURED = "n/a"
NEAR_ONE = 0.02
"""Ratios that are closer to 1 than this get a third digit behind the point."""
UPDATE_ONLY = "update-only: rollout replayed"
"""What every report says of trials under ``trial.fidelity: update``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutline:
    """What a reader of a sweep's progress must know about the sweep."""

    name: str
    objective: str
    """Metric that is optimised."""
    constraints: Sequence[Constraint]
    baseline: Mapping[str, KnobValue]
    """The base job's own setting."""
    num_trials: int
    steps_per_trial: int
    """Warm-up, measured and profiled steps together."""
    max_concurrent: int
    fidelity: str
    """The sweep file's ``trial.fidelity``."""


def fidelity_note(fidelity: str) -> str:
    """Return what must stand beside a trial's numbers; empty for whole steps."""
    return UPDATE_ONLY if fidelity == "update" else ""


def changed_knobs(setting: Mapping[str, KnobValue], baseline: Mapping[str, KnobValue]) -> str:
    """Return the knobs whose value differs from the baseline's, in words."""
    changes = [
        f"{name}={knob_text(value)}"
        for name, value in setting.items()
        if name not in baseline or value != baseline[name]
    ]
    return ", ".join(changes) if changes else "baseline"


def outcome(record: TrialRecord) -> str:
    """Return how a trial ended: ``feasible``, ``infeasible``, or the state of one that failed."""
    if record.state is not TrialState.COMPLETE:
        return record.state.value
    return "feasible" if record.feasible else "infeasible"


def is_failed(record: TrialRecord) -> bool:
    """Say whether a trial broke or was lost; one that the search stopped early did not."""
    return record.state not in (TrialState.COMPLETE, TrialState.STOPPED)


def format_value(metric: str, value: float | None) -> str:
    """Return a metric's value as a person reads it: unit, few digits, ratios in percent."""
    return NOT_MEASURED if value is None else f"{_digits(metric, value)} {unit_text(metric)}"


def range_text(metric: str, low: float, high: float) -> str:
    """Return the ends of an interval of a metric's value: 5 to 7 %."""
    return f"{_digits(metric, low)} to {_digits(metric, high)} {unit_text(metric)}"


def estimate_text(metric: str, measured: Estimate | None) -> str:
    """Return a metric's value with its interval: 6 % (5 to 7)."""
    if measured is None:
        return NOT_MEASURED
    low, high = _digits(metric, measured.low), _digits(metric, measured.high)
    return f"{format_value(metric, measured.value)} ({low} to {high})"


def unit_text(metric: str) -> str:
    """Return what a metric's printed values are counted in."""
    unit = describe(metric).unit
    return "%" if unit == "ratio" else unit


def ratio_text(value: float) -> str:
    """Return how many times better something is, with the digits that tell it from 1."""
    return f"{value:.3f}" if 0 < abs(value - 1) < NEAR_ONE else f"{value:.2f}"


def interval_text(gain: Estimate) -> str:
    """Return a gain with its interval: 1.50 (1.40 to 1.60)."""
    return f"{ratio_text(gain.value)} ({ratio_text(gain.low)} to {ratio_text(gain.high)})"


def pairs_text(num_pairs: int) -> str:
    """Return what a verified gain was measured with."""
    return f"{plural(num_pairs, 'pair')} ({2 * num_pairs} cold jobs), interleaved"


def format_duration(seconds: float) -> str:
    """Return a duration with the two units that matter."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def device_word(device: str) -> str:
    """Return what a rank holds, as hours are counted: GPU, or rank where there is none."""
    return "GPU" if device == "gpu" else "rank"


def resources_text(resources: ResourcesConfig) -> str:
    """Return a trial's hardware: 1 node × 2 CPU ranks."""
    ranks = plural(resources.ranks_per_node, f"{resources.device.upper()} rank")
    return f"{plural(resources.nodes, 'node')} × {ranks}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 trial, 2 trials."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def joined(words: Sequence[str]) -> str:
    """Return a list in words: a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def format_number(value: float) -> str:
    """Return a number with three digits, more only in front of the decimal point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _digits(metric: str, value: float) -> str:
    """Return a metric's value without its unit."""
    unit = describe(metric).unit
    if unit == "ratio":
        return f"{100 * value:.3g}"
    if unit == "nats":
        return f"{value:.1e}" if value else "0"
    return format_number(value)


def trial_line(record: TrialRecord, records: Sequence[TrialRecord], outline: SweepOutline) -> str:
    """Return how one trial ended, on one line."""
    knobs = changed_knobs(record.setting, outline.baseline)
    if record.state is TrialState.STOPPED:
        return f"trial {record.number} {record.cause} [{knobs}]"
    if record.state is not TrialState.COMPLETE:
        return f"trial {record.number} failed ({record.state.value}): {record.cause} [{knobs}]"
    mark = " (best so far)" if record is best_feasible(records, outline.objective) else ""
    value = format_value(outline.objective, record.value(outline.objective))
    limits = [
        f"{constraint.metric} {against_limit(record, constraint)}"
        for constraint in outline.constraints
    ]
    numbers = ", ".join([value + mark, *limits])
    return f"trial {record.number} {outcome(record)}: {numbers} [{knobs}]"


def step_line(step: StepRecord, outline: SweepOutline) -> str:
    """Return what one step took, on one line."""
    parts = [f"trial {step.number} step {step.step} of {outline.steps_per_trial}"]
    parts += [text for text in step_values(step) if text != NOT_MEASURED]
    return f"{', '.join(parts)} ({step.kind.value})"


def step_values(step: StepRecord) -> list[str]:
    """Return a step's time and speed; where its rollout was replayed, those of what ran."""
    is_replayed = step.metrics.get(STEP_KEYS["step_s"]) is None
    names = WHOLE_STEP if is_replayed else WHOLE_STEP.values()
    found = {name: step.metrics.get(STEP_KEYS[name]) for name in names}
    return [
        format_value(name, value if isinstance(value, float | int) else None)
        for name, value in reversed(found.items())
    ]


def against_limit(record: TrialRecord, constraint: Constraint) -> str:
    """Return a trial's value of a constraint with the limit, and whether it is broken."""
    limit = format_value(constraint.metric, constraint.max)
    violation = record.violations.get(constraint.metric)
    broken = ", broken" if violation is not None and violation > 0 else ""
    value = format_value(constraint.metric, record.metrics.get(constraint.metric))
    return f"{value} (max {limit}{broken})"


def duration_s(record: TrialRecord) -> float:
    """Return how long a trial took, start-up included."""
    started = datetime.fromisoformat(record.started_at)
    return (datetime.fromisoformat(record.ended_at) - started).total_seconds()


def moment_text(timestamp: str) -> str:
    """Return a record's point in time as a person reads it: 2026-01-31 09:05 UTC."""
    moment = datetime.fromisoformat(timestamp).astimezone(timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def knob_text(value: KnobValue | None) -> str:
    """Return a knob's value as a YAML file holds it."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)
