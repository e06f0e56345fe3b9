"""How consistent the log-probabilities of two phases of one PPO step are.

Runs in the driver and in trial actors. Pure functions over k(r,t), in nats: the mean over rank r's
response tokens, in the first mini-batch of measured step t, of (old_log_prob - log_prob), taken
before the policy moves. In exact arithmetic every k(r,t) is 0; what is left is what the settings
do to the numbers.
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
