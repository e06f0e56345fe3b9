"""How sure a comparison of cold jobs is, when it is looked at more than once.

Runs in the driver. Pure functions over numbers. The unit of evidence is a job, not a step: the
steps of one job share its start-up state (where its memory lies, how its servers batch), so that
they agree with each other more than with the next job's, and an interval over steps would be too
narrow. A job therefore counts once, with the median over its measured steps.

Looking after every job and stopping at the first good result finds a difference between equal
settings far more often than the interval says. So the looks are fixed before the first job, and
each may spend only a part of the error probability: the O'Brien-Fleming-like spending function of
Lan and DeMets (Biometrika 70, 1983). The parts add up to the whole, so that by the union bound the
intervals of all looks hold together with the stated confidence, whatever made the comparison stop
(repeated confidence intervals: Jennison and Turnbull, JRSS B 51, 1989).
"""

import math
from collections.abc import Sequence

MIN_PAIRS = 3
"""Fewer pairs are no planned look: with one degree of freedom an interval is 13 standard errors."""

_LAST_EARLY_LOOK = 2 / 3
"""Share of all pairs after which an early look would save too little for what it spends."""


def planned_looks(max_pairs: int) -> tuple[int, ...]:
    """Return after how many pairs a comparison is looked at: 3, 6, 12, ... and at its end.

    Raises:
        ValueError: Too few pairs for one look.
    """
    if max_pairs < MIN_PAIRS:
        raise ValueError(f"{max_pairs} pairs, at least {MIN_PAIRS} are needed")
    looks = []
    pairs = MIN_PAIRS
    while pairs <= _LAST_EARLY_LOOK * max_pairs:
        looks.append(pairs)
        pairs *= 2
    return (*looks, max_pairs)


def spent_error(fraction: float, error: float) -> float:
    """Return how much of an error probability is spent once a share of all pairs has been seen.

    Args:
        fraction: Pairs seen / pairs at the end, above 0 and at most 1.
        error: Two-sided error probability of the whole comparison.
    """
    from scipy.special import ndtr, ndtri

    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction}, it must be above 0 and at most 1")
    return float(2 * ndtr(ndtri(error / 2) / math.sqrt(fraction)))


def error_of_look(pairs: int, *, before: int, max_pairs: int, error: float, is_last: bool) -> float:
    """Return the two-sided error probability that one look may use.

    Args:
        pairs: Pairs seen now.
        before: Pairs seen at the look before; 0 at the first one.
        max_pairs: Pairs at the planned end.
        error: Error probability of the whole comparison.
        is_last: Whether no other look follows, for then all that is left may be used.
    """
    used = spent_error(before / max_pairs, error) if before else 0.0
    allowed = error if is_last else spent_error(pairs / max_pairs, error)
    return allowed - used


def t_interval(values: Sequence[float], error: float) -> tuple[float, float, float]:
    """Return the mean of independent values with the ends of its interval (Student, 1908).

    Args:
        values: At least two, all finite.
        error: Two-sided error probability, above 0 and below 1.

    Raises:
        ValueError: Fewer than two values, or one that is not finite.
    """
    from scipy.special import stdtrit

    count = len(values)
    if count < 2:
        raise ValueError(f"{count} values, at least 2 are needed")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"not all values are finite: {list(values)}")
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = -float(stdtrit(count - 1, error / 2)) * math.sqrt(variance / count)
    return mean, mean - half, mean + half
