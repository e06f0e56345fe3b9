"""What one rank saw of one step: its collectives and when it computed.

Made in verl's workers (`kineto.py`), read in the trainer process of a trial (`communication.py`).
Times are microseconds on the rank's own clock, sizes are bytes.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(str, Enum):
    """What a collective does."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective on one rank: from when the rank joins it to when it is done there."""

    kind: Kind
    start_us: float
    end_us: float
    # Process group: one name on all its ranks, and no other group's; None when not known.
    group: str | None
    # Ranks of the group; None when not known: then those that name it are taken for all of them.
    group_size: int | None = None
    # The whole buffer: gathered output, input before it is scattered, or the tensor; None when not
    # known.
    num_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTrace:
    """What one rank's profiler saw of one step; small, and can be pickled.

    `compute_us` is merged: rows (start, end), sorted, that do not touch. All times are on the
    rank's own clock; `clock_offset_us` is what to add to reach the clock that the ranks share.
    """

    rank: int
    window_us: tuple[float, float]
    collectives: tuple[Collective, ...]
    compute_us: tuple[tuple[float, float], ...]
    # What stopping the profiler and reading its events cost.
    overhead_s: float = 0.0
    clock_offset_us: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "RankTrace":
        """Build the trace that :meth:`to_dict` came from, lists for tuples as JSON has them."""
        fields = dict(data)
        fields["window_us"] = tuple(data["window_us"])
        fields["compute_us"] = tuple((start, end) for start, end in data["compute_us"])
        fields["collectives"] = tuple(
            Collective(**{**entry, "kind": Kind(entry["kind"])}) for entry in data["collectives"]
        )
        return RankTrace(**fields)
