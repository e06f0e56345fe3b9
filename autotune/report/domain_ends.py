"""Where the winner stands at an end of what a knob was allowed, in words.

Runs in whatever process reports. Pure functions from records to text. There the sweep cannot know
whether the optimum lies further out; where the knob itself ends, nothing lies further out.
"""

import dataclasses

from autotune.domain import make_domain
from autotune.objective import TrialRecord
from autotune.report.reading import SweepData
from autotune.report.text import joined, knob_text


def domain_end_lines(data: SweepData, winner: TrialRecord | None) -> list[str]:
    """Return a line for each end of a domain at which the winner stands.

    Knobs that do not act in the winner's setting are left out, and numbers that no domain can
    exceed.
    """
    ends: dict[str, list[str]] = {}
    for name, domain_config in data.config.knobs.items():
        if winner is None or name not in winner.params:
            continue
        domain = make_domain(name, **dataclasses.asdict(domain_config))
        if not domain.is_numeric or domain.size == 1:
            continue
        value, (low, high) = winner.params[name], domain.bounds()
        if value == high and high != domain.knob.high:
            ends.setdefault("largest", []).append(f"{name} = {knob_text(value)}")
        elif value == low and low != domain.knob.low:
            ends.setdefault("smallest", []).append(f"{name} = {knob_text(value)}")
    return [_line(side, knobs) for side, knobs in ends.items()]


def _line(side: str, knobs: list[str]) -> str:
    verbs = "is the {} that was" if len(knobs) == 1 else "are the {} that were"
    return f"{joined(knobs)} {verbs.format(side)} allowed: a wider domain may hold more."
