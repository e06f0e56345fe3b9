"""What a job says about overlapping communication with computation, and where it says so.

Runs in the driver and in verl's workers; standard library only. The settings are one mapping inside
verl's own configuration of an engine, ``wrap_policy.overlap`` (:data:`OVERLAP`): verl leaves
the content of ``wrap_policy`` to whoever wraps the model, so the mapping survives verl's conversion
into dataclasses and an exported file carries it into production. 0 means everywhere that verl's own
behaviour stays.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import BadInputError, nearest
from autotune.models.calibration import Calibration

OVERLAP = "wrap_policy.overlap"
"""Key of the settings below an FSDP engine's configuration."""

TIMES = ("min_overlap_time_s", "overlap_threshold")
"""Settings that need a calibration."""
TURNS_ON = ("bucket_size", *TIMES, "forward_prefetch_depth", "backward_prefetch_depth")
"""Settings of which each changes what verl does as soon as it is above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapSettings:
    """How the layers of one engine's model are bucketed, and how far ahead they are gathered."""

    bucket_size: int = 0
    """Bytes: consecutive layers share one all-gather until their gathered parameters reach it."""
    min_overlap_time_s: float = 0.0
    """Forward computation that a unit must hold at least; it takes in further layers until then.
    Needs ``calibration``."""
    overlap_threshold: float = 0.0
    """Largest ratio of a unit's communication time to the computation time that it may hide behind:
    units are gathered as many units ahead as that takes. Needs ``calibration``."""
    forward_prefetch_depth: int = 0
    """Units that are gathered ahead in forward, instead of what ``overlap_threshold`` derives."""
    backward_prefetch_depth: int = 0
    """The same in backward, where FSDP2 gathers one unit ahead by itself."""
    max_unsharded_bytes: int = 0
    """Bytes that gathered parameters may take at once; merging and derived prefetching stop
    there."""
    sequence_tokens: int = 0
    """Tokens that one sequence is expected to have, where micro-batches are counted in
    sequences."""
    calibration: Calibration | None = None
    """Speed of the links and devices, which turns bytes and operations into times."""

    @property
    def is_neutral(self) -> bool:
        """Say whether verl's own wrapping stays as it is."""
        return not any(getattr(self, name) for name in TURNS_ON)

    def with_forward_prefetch(self) -> "OverlapSettings":
        """Return the settings of an engine whose ``forward_prefetch``, verl's own switch, is on: a
        depth of 1, unless a depth is given or derived."""
        if self.overlap_threshold or self.forward_prefetch_depth:
            return self
        return dataclasses.replace(self, forward_prefetch_depth=1)

    @classmethod
    def from_dict(cls, data: object, key: str) -> "OverlapSettings":
        """Read the mapping of verl's configuration.

        Args:
            data: What stands at ``key``.
            key: Its full key, for messages.

        Raises:
            BadInputError: Not a mapping, an unknown name, or a value that a setting cannot take.
        """
        if not isinstance(data, Mapping):
            raise BadInputError(f"{key} is {data!r}.", "It must be a mapping of overlap settings.")
        names = [field.name for field in dataclasses.fields(cls)]
        for name in data:
            if name not in names:
                hint = nearest(str(name), names) or f"It takes: {', '.join(names)}."
                raise BadInputError(f"{key}: there is no overlap setting '{name}'.", hint)
        values = {
            name: _number(value, f"{key}.{name}")
            for name, value in data.items()
            if name != "calibration"
        }
        for name, value in values.items():
            if name not in TIMES and not value.is_integer():
                raise BadInputError(f"{key}.{name} is {value:g}.", "It must be an integer.")
        calibration = data.get("calibration")
        return cls(
            **{
                name: value if name in TIMES else int(value)  # type: ignore[arg-type]
                for name, value in values.items()
            },
            calibration=None
            if calibration is None
            else Calibration.from_dict(calibration, f"{key}.calibration"),
        )

    def check_calibrated(self) -> None:
        """Refuse settings that are times where nothing says how long anything takes.

        A sweep adds the calibration of its own cluster, so this is asked when a plan is made.

        Raises:
            BadInputError: A time is set and ``calibration`` is not.
        """
        for name in TIMES:
            if getattr(self, name) and self.calibration is None:
                raise BadInputError(
                    f"{OVERLAP}.{name} is {getattr(self, name):g}, but there is no "
                    f"{OVERLAP}.calibration.",
                    "Times can be planned only from a calibration: autotune calibrate measures it.",
                )


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadInputError(f"{key} is {value!r}.", "It must be a number of at least 0.")
    return float(value)
