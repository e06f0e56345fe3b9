"""What links and devices are taken to reach where nobody has measured them: named assumptions.

Runs in the driver; pure data. The figures are what such links and devices usually reach, rounded;
they say what to expect, never what was measured. ``autotune calibrate`` measures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.models.calibration import Calibration, CollectiveCost


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedLink:
    """A kind of link."""

    text: str
    bus_bytes_per_s: float
    """What each rank's link moves a second in a ring."""
    latency_s: float
    """Of one collective."""


ASSUMED_LINKS: Mapping[str, AssumedLink] = {
    "nvlink": AssumedLink(text="NVLink", bus_bytes_per_s=200e9, latency_s=30e-6),
    "pcie": AssumedLink(text="PCIe 4", bus_bytes_per_s=20e9, latency_s=30e-6),
    "infiniband_400g": AssumedLink(
        text="InfiniBand 400G, one adapter a GPU", bus_bytes_per_s=40e9, latency_s=60e-6
    ),
    "infiniband_200g": AssumedLink(
        text="InfiniBand 200G, one adapter a GPU", bus_bytes_per_s=20e9, latency_s=60e-6
    ),
    "ethernet": AssumedLink(
        text="Ethernet of 100 Gbit/s a rank", bus_bytes_per_s=10e9, latency_s=150e-6
    ),
    "gloo": AssumedLink(
        text="gloo through the host's memory", bus_bytes_per_s=1e9, latency_s=300e-6
    ),
}
"""Name on the command line -> what is assumed."""

_FLOPS: Mapping[str, Mapping[str, float]] = {
    "gpu": {"bfloat16": 250e12, "float16": 250e12, "float32": 15e12},
    "cpu": {"float32": 50e9},
}
"""Device -> dtype -> FLOP/s of large matrix products: an A100, and one CPU core."""
_DEVICE_TEXTS = {"gpu": "matrix products of an A100", "cpu": "matrix products of one CPU core"}
_LAUNCH_S = {"gpu": 10e-6, "cpu": 5e-6}
_COPY_BYTES_PER_S = {"gpu": 1e12, "cpu": 5e9}


def usual_link(*, device: str, num_nodes: int) -> str:
    """Return the name of the link that is assumed where none is named."""
    if device == "cpu":
        return "gloo"
    return "nvlink" if num_nodes == 1 else "infiniband_200g"


def assumed_calibration(
    link: str, *, device: str, world_size: int, flops_per_s: float | None = None
) -> Calibration:
    """Return constants that nobody has measured.

    Args:
        link: A key of :data:`ASSUMED_LINKS`.
        device: ``gpu`` or ``cpu``.
        world_size: Ranks of a trial, at least 2.
        flops_per_s: What large matrix products reach on one device, in every dtype; None: as
            assumed.
    """
    kind = ASSUMED_LINKS[link]
    # A ring passes (ranks - 1) / ranks of the message over every link, an all-reduce twice that.
    bandwidth = kind.bus_bytes_per_s * world_size / (world_size - 1)
    cost = CollectiveCost(latency_s=kind.latency_s, bandwidth_bytes_per_s=bandwidth)
    return Calibration(
        world_size=world_size,
        all_gather=cost,
        reduce_scatter=cost,
        all_reduce=CollectiveCost(latency_s=kind.latency_s, bandwidth_bytes_per_s=bandwidth / 2),
        flops_per_s={
            dtype: usual if flops_per_s is None else flops_per_s
            for dtype, usual in _FLOPS[device].items()
        },
        launch_overhead_s=_LAUNCH_S[device],
        copy_bytes_per_s=_COPY_BYTES_PER_S[device],
    )


def assumption_text(link: str, *, device: str, flops_per_s: float | None = None) -> str:
    """Return in words what :func:`assumed_calibration` takes for granted."""
    kind = ASSUMED_LINKS[link]
    rates = _FLOPS[device]
    if flops_per_s is not None:
        products = f"{flops_per_s / 1e12:.3g} TFLOP/s"
    else:
        listed = ", ".join(f"{rates[dtype] / 1e12:.3g} TFLOP/s in {dtype}" for dtype in rates)
        products = f"{_DEVICE_TEXTS[device]} ({listed})"
    return (
        f"{kind.text}: {kind.bus_bytes_per_s / 1e9:.3g} GB/s a rank in a ring after "
        f"{kind.latency_s * 1e6:.0f} us; {products}"
    )
