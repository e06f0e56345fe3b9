"""Layers and a calibration whose times are round numbers.

One layer: 100 MB and 1e6 FLOP a token and forward pass. At 1e9 FLOP/s a token takes 1 ms, and its
parameters take 0.1 s at 1 GB/s.
"""

from autotune.models.calibration import Calibration, CollectiveCost
from autotune.models.overlap_plan import Layer, Work

MB = 1_000_000


def calibration(
    *, gather_bytes_per_s: float = 1e9, latency_s: float = 0.0, launch_overhead_s: float = 0.0
) -> Calibration:
    cost = CollectiveCost(latency_s=latency_s, bandwidth_bytes_per_s=gather_bytes_per_s)
    return Calibration(
        world_size=2,
        all_gather=cost,
        reduce_scatter=CollectiveCost(latency_s=0.0, bandwidth_bytes_per_s=1e9),
        all_reduce=cost,
        flops_per_s={"float32": 1e9},
        launch_overhead_s=launch_overhead_s,
        copy_bytes_per_s=1e10,
    )


CALIBRATION = calibration()
ROOT = Layer(
    name="",
    stack="",
    parameter_bytes=10 * MB,
    gradient_bytes=10 * MB,
    forward_flops_per_token=0.0,
    backward_flops_per_token=0.0,
    num_kernels=1,
)


def layer(index: int, *, stack: str = "layers", megabytes: int = 100) -> Layer:
    return Layer(
        name=f"layers.{index}",
        stack=stack,
        parameter_bytes=megabytes * MB,
        gradient_bytes=megabytes * MB,
        forward_flops_per_token=1e6,
        backward_flops_per_token=2e6,
        num_kernels=10,
    )


def layers(count: int) -> list[Layer]:
    return [layer(index) for index in range(count)]


def work(
    *,
    tokens: int = 100,
    trains: bool = True,
    recomputes: bool = True,
    reshards: bool = True,
    on_host: bool = False,
) -> Work:
    return Work(
        tokens=tokens,
        dtype="float32",
        trains=trains,
        recomputes=recomputes,
        reshards=reshards,
        on_host=on_host,
    )
