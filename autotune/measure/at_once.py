"""Do jobs that run at once slow one another down? The same settings alone and beside others.

Runs in whatever process reports. Pure functions over numbers. What a setting says is the ratio of
its means beside others and alone; settings are weighed by how often each was measured both ways,
and the spread of one job is pooled over all of them (:func:`autotune.measure.stats.pooled_spread`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.measure.stats import CAUTIOUS, pooled_spread

Group = tuple[Sequence[float], Sequence[float]]
"""One setting's positive values: alone, and beside others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """How a value beside others compares with the value alone."""

    ratio: float
    """Beside others / alone."""
    low: float
    """Two standard errors below it."""
    high: float
    num_alone: int
    """Values that were compared, over all settings."""
    num_beside: int


def disturbance(groups: Sequence[Group]) -> Disturbance | None:
    """Return how jobs beside others compare with the same settings' jobs alone.

    Args:
        groups: Settings; one that was not measured both ways says nothing about the ratio.

    Returns:
        None where no setting was measured both ways.
    """
    both = [(alone, beside) for alone, beside in groups if alone and beside]
    if not both:
        return None
    weights = [1 / (1 / len(alone) + 1 / len(beside)) for alone, beside in both]
    logs = [math.log(fmean(beside) / fmean(alone)) for alone, beside in both]
    mean = math.fsum(w * value for w, value in zip(weights, logs, strict=True)) / sum(weights)
    spread = pooled_spread([values for group in groups for values in group])
    reach = CAUTIOUS * spread / math.sqrt(sum(weights))
    return Disturbance(
        ratio=math.exp(mean),
        low=math.exp(mean - reach),
        high=math.exp(mean + reach),
        num_alone=sum(len(alone) for alone, _ in both),
        num_beside=sum(len(beside) for _, beside in both),
    )
