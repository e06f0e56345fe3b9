"""Where the time of a step goes, and what the winner saved of it.

Runs in whatever process reports. Pure functions from records to seconds and text.
"""

from collections.abc import Mapping

from autotune.metrics import PHASES
from autotune.objective import TrialRecord
from autotune.report.answer import Answer
from autotune.report.text import format_number, joined

SHOWN_RATIO = 0.02
"""Phases that changed by less than this share of the baseline's step are not named."""


def whole_metric(answer: Answer) -> str:
    """Return the metric that the phases add up to."""
    return "update_only_s" if answer.fidelity == "update" else "step_s"


def phase_seconds(record: TrialRecord, whole: str) -> dict[str, float]:
    """Return phase -> seconds of one step (medians), and ``other``, what verl times in no phase."""
    parts = {name: record.value(f"phase_{name}_s") or 0.0 for name in PHASES}
    total = record.value(whole) or 0.0
    return {**parts, "other": max(0.0, total - sum(parts.values()))}


def saved_line(answer: Answer) -> str:
    """Return how many seconds a step the shown trial saves in which phase, largest first.

    Empty without two measured trials to compare.
    """
    whole = whole_metric(answer)
    before, after = (
        record.value(whole) if record is not None else None
        for record in (answer.baseline, answer.shown)
    )
    if before is None or after is None or answer.baseline is None or answer.shown is None:
        return ""
    if answer.shown.number == answer.baseline.number:
        return ""
    was, now = (phase_seconds(record, whole) for record in (answer.baseline, answer.shown))
    change = {name: was[name] - now[name] for name in was}
    least = SHOWN_RATIO * before
    total = before - after
    sentence = (
        f"A step takes {format_number(after)} s instead of {format_number(before)} s: "
        f"{format_number(abs(total))} s {'less' if total >= 0 else 'more'}."
    )
    saved = _listed({name: seconds for name, seconds in change.items() if seconds >= least})
    lost = _listed({name: -seconds for name, seconds in change.items() if -seconds >= least})
    return " ".join(
        [
            sentence,
            *([f"Saved: {saved}."] if saved else []),
            *([f"Slower: {lost}."] if lost else []),
        ]
    )


def _listed(seconds: Mapping[str, float]) -> str:
    ordered = sorted(seconds.items(), key=lambda entry: -entry[1])
    words = [f"{name} {format_number(value)} s" for name, value in ordered]
    return joined(words) if words else ""
