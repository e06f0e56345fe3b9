"""Which trials ran one setting, in words.

Runs in whatever process reports. Pure functions from records to text. A search repeats its best
settings to know their spread; a reader who takes each trial for a setting would take the luckiest
repetition for the winner.
"""

from collections.abc import Sequence

from autotune.knobs import KnobValue
from autotune.objective import TrialRecord
from autotune.report.answer import Answer
from autotune.report.text import format_number, joined, plural


def count_text(trials: Sequence[TrialRecord]) -> str:
    """Return how many trials ran how many settings."""
    return f"{plural(len(trials), 'trial')}, {settings_text(trials)}"


def settings_text(trials: Sequence[TrialRecord]) -> str:
    """Return how many settings ran."""
    return plural(len(_by_setting(trials)), "setting")


def has_repeats(trials: Sequence[TrialRecord]) -> bool:
    """Say whether any setting ran in more than one trial."""
    return len(_by_setting(trials)) < len(trials)


def repeat_marks(trials: Sequence[TrialRecord]) -> dict[int, str]:
    """Return trial -> what it repeats or is repeated by; trials of a setting of their own are not
    in it."""
    marks: dict[int, str] = {}
    for first, *later in _by_setting(trials):
        if later:
            marks[first.number] = f"repeated by {joined([str(r.number) for r in later])}"
            marks.update({record.number: f"repeats trial {first.number}" for record in later})
    return marks


def repetitions_line(answer: Answer) -> str:
    """Return which trials measured the winner's setting and what each found; empty for one."""
    winner, trials = answer.winner, answer.repetitions
    if winner is None or len(trials) < 2:
        return ""
    values = [value for record in trials if (value := record.value(answer.objective)) is not None]
    numbers = joined([str(record.number) for record in trials])
    found = joined([format_number(value) for value in values])
    own = winner.value(answer.objective)
    is_extreme = own in (min(values), max(values)) and len(values) == 2
    which = "the cautious one" if is_extreme else "the one in the middle"
    return (
        f"Trials {numbers} are one setting, measured {len(trials)} times ({found}); "
        f"the winner's record is {which}."
    )


def _by_setting(trials: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Return the trials of each setting by number, in whatever way they ended."""
    found: dict[tuple[tuple[str, KnobValue], ...], list[TrialRecord]] = {}
    for record in sorted(trials, key=lambda record: record.number):
        found.setdefault(tuple(sorted(record.setting.items())), []).append(record)
    return list(found.values())
