"""A calibration as text: what the links and the devices reach, what they look like, what follows.

Runs in the driver. Pure functions from a record to text.
"""

from autotune.models.calibration import CollectiveCost
from autotune.models.calibration_record import CalibrationRecord
from autotune.models.links import (
    LinkClass,
    bus_bytes_per_s,
    fit_error_ratio,
    hiding_tokens,
    link_class,
)
from autotune.report.text import moment_text, plural

BUCKET_BYTES = 25_000_000
"""Size of the example: torch's own default bucket of gradients."""

_DTYPE_OF_PLAN = {"gpu": "bfloat16", "cpu": "float32"}
"""What training computes in there."""


def calibration_line(record: CalibrationRecord) -> str:
    """Return the outcome in one line."""
    link = _link(record)
    look = f"links look like {link.name}" if link is not None else "one rank, no links"
    gather = record.constants.all_gather
    return (
        f"Calibration: {_where(record)}: {look}; all-gather {_rate(gather)} after "
        f"{gather.latency_s * 1e6:.0f} us."
    )


def calibration_text(record: CalibrationRecord) -> str:
    """Return the table of what was measured, and what it implies."""
    constants = record.constants
    lines = [
        f"{_where(record)}, {moment_text(record.measured_at)}, took {record.took_s:.0f} s",
        "",
        f"{'collective':16}{'latency':>10}{'bandwidth':>13}{'25 MB take':>12}"
        f"{'fit error':>11}  sizes",
    ]
    for name, samples in record.samples.items():
        cost: CollectiveCost = getattr(constants, name)
        lines.append(
            f"{name:16}{cost.latency_s * 1e6:>7.0f} us{_rate(cost):>13}"
            f"{cost.time_s(BUCKET_BYTES) * 1e3:>9.2f} ms"
            f"{100 * fit_error_ratio(cost, samples):>9.0f} %  "
            f"{_bytes(samples[0][0])} to {_bytes(samples[-1][0])}"
        )
    lines.append("")
    for dtype, rate in constants.flops_per_s.items():
        lines.append(f"{dtype} in a decoder layer: {rate / 1e12:.3g} TFLOP/s a rank")
    lines += [
        f"copies within a device: {constants.copy_bytes_per_s / 1e9:.3g} GB/s",
        f"launching an operation: {constants.launch_overhead_s * 1e6:.1f} us",
        "",
        *_implications(record),
    ]
    return "\n".join(lines)


def _implications(record: CalibrationRecord) -> list[str]:
    link, bandwidth = _link(record), bus_bytes_per_s(record.constants)
    if link is None or bandwidth is None:
        return ["One rank: nothing is communicated, so no setting of overlap acts."]
    lines = [
        f"The links look like {link.name} ({bandwidth / 1e9:.3g} GB/s a rank in a ring).",
        f"Search spaces *_{link.scenario.value}.yaml start from settings for such links.",
    ]
    dtype = _DTYPE_OF_PLAN[record.device]
    tokens = hiding_tokens(record.constants, dtype=dtype)
    if tokens is not None:
        lines.append(
            f"A layer's forward pass hides its all-gather from about {tokens} tokens a "
            f"micro-batch and rank ({dtype}, latency left out); below that, communication shows "
            "whatever is prefetched."
        )
    return lines


def _link(record: CalibrationRecord) -> LinkClass | None:
    return link_class(record.constants, num_nodes=record.num_nodes, device=record.device)


def _where(record: CalibrationRecord) -> str:
    ranks, nodes = record.constants.world_size, record.num_nodes
    return (
        f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}, "
        f"{record.device_name}, {record.backend}"
    )


def _rate(cost: CollectiveCost) -> str:
    return f"{cost.bandwidth_bytes_per_s / 1e9:.3g} GB/s"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 2**10:.3g} KiB"
