"""From measured collectives to latency and bandwidth, and to the kind of link they look like.

Runs in the driver. Pure functions over samples and calibrations. What a link is called here says
what it behaves like, not what is plugged in: a ring over several network cards is as fast as all of
them together.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from autotune.models.calibration import DTYPE_BYTES, Calibration, CollectiveCost

_OUTLIER_RATIO = 0.2
"""A sample this far from the fit begins to count less than in least squares."""


class Scenario(Enum):
    """The search spaces' names for how much communication a link lets compute hide."""

    HIGH_THROUGHPUT = "high_throughput"
    BALANCED = "balanced"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class LinkClass:
    """A kind of link and what to expect of it."""

    name: str
    scenario: Scenario
    min_bus_bytes_per_s: float
    """A ring over this link moves at least this much a second."""


WITHIN_A_NODE = (
    LinkClass("NVLink", Scenario.HIGH_THROUGHPUT, 80e9),
    LinkClass("PCIe", Scenario.BALANCED, 18e9),
    LinkClass("host memory (no peer-to-peer access) or PCIe 3", Scenario.STABLE, 0.0),
)
BETWEEN_NODES = (
    LinkClass("InfiniBand 400G and up", Scenario.HIGH_THROUGHPUT, 33e9),
    LinkClass("InfiniBand 200G", Scenario.BALANCED, 15e9),
    LinkClass("Ethernet", Scenario.STABLE, 0.0),
)
WITHOUT_DEVICE = (LinkClass("host memory or Ethernet, through gloo", Scenario.STABLE, 0.0),)
"""What ranks without an accelerator have, within a node and between nodes."""


def fit(samples: Sequence[tuple[int, float]]) -> CollectiveCost:
    """Fit ``latency + bytes / bandwidth`` to (bytes, seconds) of one collective.

    The residual is the logarithm of predicted over measured, so that a microsecond of a small
    message counts as much as its share of a large one's; its loss (soft L1) grows linearly beyond
    20 %, so that one disturbed sample does not bend the line. Both parameters are positive.

    Raises:
        ValueError: Fewer than two sizes, or a time that is not positive.
    """
    from scipy.optimize import least_squares

    sizes, times = (np.array(values, dtype=float) for values in zip(*samples, strict=True))
    if len(set(sizes)) < 2 or not np.all(times > 0):
        raise ValueError(f"a line needs two message sizes and positive times, not {samples}")

    def residuals(parameters: np.ndarray) -> np.ndarray:
        latency_s, s_per_byte = np.exp(parameters)
        return np.log((latency_s + sizes * s_per_byte) / times)

    start = np.log([times.min(), float(np.median(times / sizes))])
    found = least_squares(residuals, start, loss="soft_l1", f_scale=_OUTLIER_RATIO, x_scale="jac")
    latency_s, s_per_byte = np.exp(found.x)
    return CollectiveCost(latency_s=float(latency_s), bandwidth_bytes_per_s=float(1 / s_per_byte))


def fit_error_ratio(cost: CollectiveCost, samples: Sequence[tuple[int, float]]) -> float:
    """Return the median of |predicted / measured - 1| over the samples."""
    return float(np.median([abs(cost.time_s(size) / seconds - 1) for size, seconds in samples]))


def bus_bytes_per_s(calibration: Calibration) -> float | None:
    """Return what each rank's link moves a second in an all-gather; None with a single rank.

    A ring passes (ranks - 1) / ranks of the message over every link: NCCL's "bus bandwidth".
    """
    ranks = calibration.world_size
    if ranks == 1:
        return None
    return calibration.all_gather.bandwidth_bytes_per_s * (ranks - 1) / ranks


def at_world_size(calibration: Calibration, world_size: int) -> Calibration:
    """Return what more or fewer ranks on links of the same kind would reach.

    A ring's links move as much whatever its length, so that a message of n bytes, of which each
    link passes (ranks - 1) / ranks, takes that part of the time; it takes ranks - 1 rounds, each
    with the latency of one. Devices stay as they are.

    Args:
        calibration: Measured with at least two ranks.
        world_size: Ranks to predict for, at least two.
    """
    ranks = calibration.world_size
    if min(ranks, world_size) < 2:
        raise ValueError(f"no link between {ranks} ranks tells of one between {world_size}")
    rounds = (world_size - 1) / (ranks - 1)
    passed = rounds * ranks / world_size

    def scaled(cost: CollectiveCost) -> CollectiveCost:
        return CollectiveCost(
            latency_s=cost.latency_s * rounds,
            bandwidth_bytes_per_s=cost.bandwidth_bytes_per_s / passed,
        )

    return dataclasses.replace(
        calibration,
        world_size=world_size,
        all_gather=scaled(calibration.all_gather),
        reduce_scatter=scaled(calibration.reduce_scatter),
        all_reduce=scaled(calibration.all_reduce),
    )


def link_class(calibration: Calibration, *, num_nodes: int, device: str) -> LinkClass | None:
    """Return the fastest kind of link that the ring's bandwidth reaches; None with a single rank.

    Args:
        calibration: The measured constants.
        num_nodes: Nodes that the ranks are on.
        device: ``gpu`` or ``cpu``.
    """
    bandwidth = bus_bytes_per_s(calibration)
    if bandwidth is None:
        return None
    kinds = WITHOUT_DEVICE if device == "cpu" else WITHIN_A_NODE
    if device != "cpu" and num_nodes > 1:
        kinds = BETWEEN_NODES
    return next(kind for kind in kinds if bandwidth >= kind.min_bus_bytes_per_s)


def hiding_tokens(calibration: Calibration, *, dtype: str) -> int | None:
    """Return the micro-batch tokens from which a layer's forward pass hides its all-gather.

    A layer of P parameters gathers P x (bytes of a number) / bandwidth and computes 2 P x tokens /
    FLOP/s: the size of the layer cancels out. Latency and attention are left out.

    Args:
        calibration: The measured constants.
        dtype: Of parameters and compute; None is returned where it was not measured.
    """
    if dtype not in calibration.flops_per_s or calibration.world_size == 1:
        return None
    gather_s = DTYPE_BYTES[dtype] / calibration.all_gather.bandwidth_bytes_per_s
    return math.ceil(gather_s * calibration.flops_per_s[dtype] / 2)
