"""What one changed knob did by itself, from two trials of a sweep that differ in nothing else.

Runs in whatever process reports or exports. Pure functions over records. One job stands against one
job: an effect that is no larger than what repetitions or steps scatter is none that was measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.knobs import KnobValue
from autotune.objective import TrialRecord, TrialState, repetitions
from autotune.report.answer import Answer
from autotune.report.gain import step_interval
from autotune.report.reading import SweepData
from autotune.report.text import ratio_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One knob's change, everything else equal."""

    after: TrialRecord
    """The trial with the winner's value of the knob."""
    before: TrialRecord
    """The trial with the baseline's."""
    ratio: float
    """After / before of the objective."""


def effect_of(
    knob: str,
    record: TrialRecord,
    baseline: TrialRecord,
    trials: Sequence[TrialRecord],
    objective: str,
) -> Effect | None:
    """Return what a knob did by itself; None where no two trials say.

    It is looked for at the winner, whose knob is put back alone, then at the baseline, whose knob
    is changed alone.

    Args:
        knob: One that ``record`` sets otherwise than ``baseline``.
        record: The trial whose setting is explained.
        baseline: Trial 0.
        trials: Of the sweep.
        objective: Metric that is compared.
    """
    setting, base = record.setting, baseline.setting
    without = _trial_with({**setting, knob: base[knob]}, trials)
    alone = _trial_with({**base, knob: setting[knob]}, trials)
    for after, before in ((record, without), (alone, baseline)):
        if after is None or before is None:
            continue
        ratio = _ratio(after, before, objective)
        if ratio is not None:
            return Effect(after=after, before=before, ratio=ratio)
    return None


def without_effect(data: SweepData, answer: Answer) -> dict[str, str]:
    """Return changed knob -> why its effect by itself is within noise; other knobs are not in it.

    Noise is what repetitions of one setting differ by at most, and where none ran, or beside it,
    what the measured steps of the two jobs scatter.
    """
    if answer.winner is None or data.baseline is None:
        return {}
    spread = repetition_ratio(data.trials, answer.objective)
    found = {}
    for change in answer.changes:
        if change.was is None:
            continue
        effect = effect_of(
            change.knob, answer.winner, data.baseline, data.trials, answer.objective
        )
        reason = _noise(data, effect, spread, answer.objective) if effect is not None else ""
        if effect is not None and reason:
            found[change.knob] = (
                f"{ratio_text(effect.ratio)} times, trial {effect.after.number} against "
                f"{effect.before.number}; {reason}"
            )
    return found


def repetition_ratio(trials: Sequence[TrialRecord], objective: str) -> float:
    """Return the largest ratio between two trials of one setting; 1 where none ran twice."""
    largest = 1.0
    for repeated in repetitions(trials):
        values = [
            value
            for record in repeated
            if (value := record.value(objective)) is not None and value > 0
        ]
        if values:
            largest = max(largest, max(values) / min(values))
    return largest


def _noise(data: SweepData, effect: Effect, spread: float, objective: str) -> str:
    """Return why an effect is within noise; empty where it is beyond all that is known of noise."""
    if abs(math.log(effect.ratio)) <= math.log(spread):
        return f"one setting differed by {ratio_text(spread)} times"
    interval = step_interval(
        data.last_attempt(effect.after.number),
        data.last_attempt(effect.before.number),
        objective=objective,
    )
    if interval is not None and interval[0] <= 1 <= interval[1]:
        return f"its steps allow {ratio_text(interval[0])} to {ratio_text(interval[1])} times"
    return ""


def _trial_with(
    setting: Mapping[str, KnobValue], trials: Sequence[TrialRecord]
) -> TrialRecord | None:
    complete = [record for record in trials if record.state is TrialState.COMPLETE]
    return next((record for record in complete if record.setting == setting), None)


def _ratio(after: TrialRecord, before: TrialRecord, objective: str) -> float | None:
    first, second = before.value(objective), after.value(objective)
    if first is None or second is None or first <= 0 or second <= 0:
        return None
    return second / first
