"""How fast the links and the devices under a job are: the constants of every time prediction.

Runs anywhere; standard library only. ``autotune calibrate`` measures the constants on a trial's own
kind of placement group, the overlap planner reads them. They are plain numbers, so that they travel
inside verl's configuration: an exported job carries the calibration that its plan was made with.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import BadInputError

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""torch's name of a dtype -> bytes of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """Time of one collective over a message of n bytes: ``latency_s + n / bandwidth_bytes_per_s``.

    n is the whole message: what an all-gather puts out, a reduce-scatter takes in, an all-reduce
    reduces. The ring's factor (world_size - 1) / world_size is therefore in the bandwidth.
    """

    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, message_bytes: float) -> float:
        """Return the time of one collective over a message of this size."""
        return self.latency_s + message_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The constants of one cluster at one world size."""

    world_size: int
    """Ranks that took part in every collective."""
    all_gather: CollectiveCost
    reduce_scatter: CollectiveCost
    all_reduce: CollectiveCost
    flops_per_s: Mapping[str, float]
    """torch's name of a dtype (``bfloat16``) -> FLOP/s that a large decoder layer reaches,
    forward and backward."""
    launch_overhead_s: float
    """Host time for one kernel of a layer, modules and autograd included."""
    copy_bytes_per_s: float
    """Bandwidth of a copy within one device, bytes copied a second."""

    def to_dict(self) -> dict[str, object]:
        """Return the constants as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object], key: str) -> "Calibration":
        """Read what :meth:`to_dict` wrote.

        Args:
            data: The mapping.
            key: Where it stands, for messages.

        Raises:
            BadInputError: A missing or unknown field, or one that is not a positive number.
        """
        _check_names(cls, data, key)
        collectives = {
            name: _collective(data[name], f"{key}.{name}")
            for name in ("all_gather", "reduce_scatter", "all_reduce")
        }
        world_size = _positive(data["world_size"], f"{key}.world_size")
        if not world_size.is_integer():
            raise BadInputError(f"{key}.world_size is {world_size}.", "It must be an integer.")
        flops = data["flops_per_s"]
        if not isinstance(flops, Mapping) or not flops:
            raise BadInputError(
                f"{key}.flops_per_s is {flops!r}.", "It must map at least one dtype to FLOP/s."
            )
        return cls(
            world_size=int(world_size),
            **collectives,
            flops_per_s={
                str(dtype): _positive(rate, f"{key}.flops_per_s.{dtype}")
                for dtype, rate in flops.items()
            },
            launch_overhead_s=_not_negative(data["launch_overhead_s"], f"{key}.launch_overhead_s"),
            copy_bytes_per_s=_positive(data["copy_bytes_per_s"], f"{key}.copy_bytes_per_s"),
        )


def _collective(data: object, key: str) -> CollectiveCost:
    _check_names(CollectiveCost, data, key)
    assert isinstance(data, Mapping)
    return CollectiveCost(
        latency_s=_not_negative(data["latency_s"], f"{key}.latency_s"),
        bandwidth_bytes_per_s=_positive(
            data["bandwidth_bytes_per_s"], f"{key}.bandwidth_bytes_per_s"
        ),
    )


def _check_names(cls: type, data: object, key: str) -> None:
    names = {field.name for field in dataclasses.fields(cls)}
    given = set(data) if isinstance(data, Mapping) else set()
    if given != names:
        raise BadInputError(
            f"{key} has the fields {', '.join(sorted(map(str, given))) or 'of no mapping'}.",
            f"It must have exactly {', '.join(sorted(names))}.",
        )


def _not_negative(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadInputError(f"{key} is {value!r}.", "It must be a finite number of at least 0.")
    return float(value)


def _positive(value: object, key: str) -> float:
    number = _not_negative(value, key)
    if number == 0:
        raise BadInputError(f"{key} is {value!r}.", "It must be above 0.")
    return number
