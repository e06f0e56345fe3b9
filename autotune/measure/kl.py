"""How consistent log-probabilities are: between two phases of a step, two ranks, two trials.

Runs in the driver, in trial actors and in the trainer process of a trial. Pure functions over
nats. k(r,t) is the mean over rank r's response tokens, in the first mini-batch of measured step t,
of (old_log_prob - log_prob), taken before the policy moves. In exact arithmetic every k(r,t) is 0;
what is left is what the settings do to the numbers.
"""

import math
from collections.abc import Sequence


def kl_std(values: Sequence[float]) -> float:
    """Return the standard deviation of k(r,t) over all ranks and steps, denominator n.

    Raises:
        ValueError: Fewer than two values: one value has no scatter.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} value(s) of k(r,t) have no scatter")
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def kl_bias(values: Sequence[float]) -> float:
    """Return the absolute value of the mean of k(r,t) over all ranks and steps.

    Raises:
        ValueError: No values.
    """
    if not values:
        raise ValueError("no values of k(r,t)")
    return abs(math.fsum(values) / len(values))


def kl_from_start(start: Sequence[float], after: Sequence[float]) -> float:
    """Return the KL of a policy that was updated to the one that it was, as one number per token
    tells it: the mean of exp(d) - d - 1, d = start - after (Schulman, 2020: k3).

    Args:
        start: Log-probability of each token before the updates.
        after: The same tokens' after them.

    Raises:
        ValueError: No tokens.
    """
    if not start:
        raise ValueError("no tokens")
    distances = [first - last for first, last in zip(start, after, strict=True)]
    return math.fsum(math.expm1(d) - d for d in distances) / len(distances)


def rank_divergence(scores: Sequence[Sequence[float]]) -> float:
    """Return the largest difference between two ranks in the log-probability of one token.

    Args:
        scores: For each rank, at least two, the log-probabilities of the same tokens.

    Raises:
        ValueError: Fewer than two ranks.
    """
    if len(scores) < 2:
        raise ValueError(f"{len(scores)} rank(s) cannot differ")
    return max(max(token) - min(token) for token in zip(*scores, strict=True))
