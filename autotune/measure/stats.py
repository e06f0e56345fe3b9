"""Robust summaries of a few repeated measurements.

Runs in the driver and in trial actors. Pure functions over numbers; units are the caller's. Values
must be finite: what could not be measured is left out by the caller, with a reason.
"""

import math
from collections.abc import Sequence

import numpy as np

CAUTIOUS = 2.0
"""Standard errors from a mean to its cautious end: a one-sided bound of 98 % (normal
distribution)."""

_USUAL_SPREAD, _USUAL_WORTH = 0.04, 2
"""Relative standard deviation of a repeated trial before any was repeated, and the degrees of
freedom that this belief is worth: two repetitions alone say little."""


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle ones.

    Raises:
        ValueError: No values, or one that is not finite.
    """
    _check(values)
    return float(np.median(values))


def pooled_spread(
    groups: Sequence[Sequence[float]],
    *,
    usual: float = _USUAL_SPREAD,
    worth: float = _USUAL_WORTH,
) -> float:
    """Return the relative standard deviation of one repetition, pooled over groups of repetitions.

    Each group's deviations are divided by its own mean; few degrees of freedom are filled up with
    the usual spread of repeated jobs, so that two equal numbers do not promise a spread of 0.

    Args:
        groups: Repetitions of one thing each; groups of one, or with a mean of 0, say nothing.
        usual: What is believed before any repetition.
        worth: The degrees of freedom that this belief is worth.
    """
    squares, freedom = worth * usual**2, worth
    for group in groups:
        mean = math.fsum(group) / len(group) if group else 0.0
        if len(group) > 1 and mean:
            squares += math.fsum((value / mean - 1) ** 2 for value in group)
            freedom += len(group) - 1
    return math.sqrt(squares / freedom)


def bootstrap_interval(
    values: Sequence[float],
    *,
    seed: int,
    confidence: float = 0.95,
    num_resamples: int = 2000,
) -> tuple[float, float]:
    """Return a percentile bootstrap interval of the median (Efron, 1979).

    Args:
        values: Independent repetitions; with one value the interval is that value twice.
        seed: Seed of the resampling; equal arguments give equal intervals.
        confidence: Probability mass of the interval, above 0 and below 1.
        num_resamples: Resamples drawn with replacement.

    Raises:
        ValueError: No values, one that is not finite, or a confidence outside (0, 1).
    """
    _check(values)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, it must be above 0 and below 1")
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(values), size=(num_resamples, len(values)))
    resampled = np.asarray(values, dtype=float)[chosen]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.median(resampled, axis=1), [tail, 1 - tail])
    return float(low), float(high)


def _check(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("no values")
    broken = [value for value in values if not math.isfinite(value)]
    if broken:
        raise ValueError(f"value {broken[0]} is not finite")
