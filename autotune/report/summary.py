"""The closing text of a sweep: the winner against the baseline, its constraints, times, failures.

Runs in the driver. Pure functions from records to text. Start-up and step time are stated apart:
the first is paid once a trial, the second is what was tuned.
"""

from collections import Counter
from collections.abc import Sequence

from autotune.measure.stats import median
from autotune.objective import TrialRecord, TrialState, best_feasible, least_infeasible
from autotune.report.text import (
    SweepOutline,
    against_limit,
    changed_knobs,
    format_number,
    format_value,
)


def summary_text(records: Sequence[TrialRecord], outline: SweepOutline) -> str:
    """Return the closing text: the best feasible trial, or the least infeasible one."""
    best = best_feasible(records, outline.objective)
    shown = best if best is not None else least_infeasible(records)
    baseline = next((record for record in records if record.number == 0), None)
    lines = [_counts_line(records, outline)]
    if best is not None:
        lines += _best_lines(best, baseline, outline)
    else:
        lines.append("No trial is feasible.")
    if shown is not None and shown.state is TrialState.COMPLETE:
        lines += _least_infeasible_lines(shown, outline) if best is None else []
        lines += _constraint_lines(shown, outline)
        lines += _time_lines(records, shown, baseline)
    return "\n".join(lines + _failure_lines(records))


def _counts_line(records: Sequence[TrialRecord], outline: SweepOutline) -> str:
    counted = [record for record in records if record.state.is_setting_fault]
    complete = [record for record in counted if record.state is TrialState.COMPLETE]
    num_feasible = sum(record.feasible for record in complete)
    return (
        f"Sweep {outline.name}: {len(counted)} of {outline.num_trials} trials finished: "
        f"{num_feasible} feasible, {len(complete) - num_feasible} infeasible, "
        f"{len(counted) - len(complete)} failed."
    )


def _best_lines(
    best: TrialRecord, baseline: TrialRecord | None, outline: SweepOutline
) -> list[str]:
    value = best.value(outline.objective)
    line = (
        f"Best feasible: trial {best.number}, {outline.objective} "
        f"{format_value(outline.objective, value)}"
    )
    reference = baseline.value(outline.objective) if baseline is not None else None
    if best.number == 0:
        return [f"{line}: the baseline itself."]
    knobs = f"  {changed_knobs(best.setting, outline.baseline)}"
    if value is None or not reference:
        return [f"{line}; the baseline was not measured.", knobs]
    note = "" if baseline is not None and baseline.feasible else ", which is infeasible"
    shown = format_value(outline.objective, reference)
    return [f"{line}, {value / reference:.2f} times the baseline ({shown}{note}).", knobs]


def _least_infeasible_lines(record: TrialRecord, outline: SweepOutline) -> list[str]:
    value = format_value(outline.objective, record.value(outline.objective))
    return [
        f"Least infeasible: trial {record.number}, {outline.objective} {value}.",
        f"  {changed_knobs(record.setting, outline.baseline)}",
    ]


def _constraint_lines(record: TrialRecord, outline: SweepOutline) -> list[str]:
    return [
        f"  {constraint.metric}: {against_limit(record, constraint)}"
        + (f" ({reason})" if (reason := record.absent.get(constraint.metric)) else "")
        for constraint in outline.constraints
    ]


def _time_lines(
    records: Sequence[TrialRecord], shown: TrialRecord, baseline: TrialRecord | None
) -> list[str]:
    """Return start-up and step time apart."""
    startups = [
        value for record in records if (value := record.metrics.get("startup_s")) is not None
    ]
    steps = {record.number: record.metrics.get("step_s") for record in (baseline, shown) if record}
    texts = [
        f"{format_number(value)} s ({'baseline' if number == 0 else f'trial {number}'})"
        for number, value in steps.items()
        if value is not None
    ]
    lines = [f"Start-up: {format_number(median(startups))} s a trial (median)."] if startups else []
    return lines + ([f"Step: {', '.join(texts)}."] if texts else [])


def _failure_lines(records: Sequence[TrialRecord]) -> list[str]:
    failed = [record for record in records if record.state is not TrialState.COMPLETE]
    counts = Counter(record.state for record in failed)
    return [
        f"{state.value}: {count} trial(s), e.g. trial {example.number}: {example.cause}"
        for state, count in counts.items()
        if (example := next(record for record in failed if record.state is state))
    ]
