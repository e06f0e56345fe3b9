"""What earlier trials say about settings, and settings as points that a regression can read.

Runs in the driver. Pure data and functions: no Optuna, no Ray, no disk. Imports its siblings
``objective`` and ``knobs``. A point has one column for each number or switch and one for each
choice of a text knob, each between 0 and 1; numbers on a logarithmic scale have a second column
with the reciprocal, since work done once for each micro-batch falls with its size.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autotune.knobs import KnobValue
from autotune.objective import TrialRecord, TrialState

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Array = NDArray[np.float64]
Setting = Mapping[str, KnobValue]

_REFUSED = re.compile(
    r"Tried to allocate (?P<asked>[\d.]+ [KMG]iB).{0,80}?"
    r"total capacity of (?P<total>[\d.]+ [KMG]iB) of which (?P<free>[\d.]+ [KMG]iB) is free",
    re.DOTALL,
)
"""PyTorch's message when its allocator finds no room."""
_BYTES = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One trial as the models see it."""

    setting: dict[str, KnobValue]
    state: TrialState
    metrics: dict[str, float]
    """Metric of the catalogue -> finite value; what was not measured is missing."""
    least_peak: float | None = None
    """Share of the device that a trial which ran out of memory needed at least, where it said."""

    @staticmethod
    def of(record: TrialRecord, names: Sequence[str]) -> "Evidence":
        """Return what a record says about some metrics; nothing but its state for a failed one."""
        found = {} if record.state.is_failure else record.metrics
        measured = {
            name: value
            for name in names
            if (value := found.get(name)) is not None and math.isfinite(value)
        }
        return Evidence(
            setting=dict(record.setting),
            state=record.state,
            metrics=measured,
            least_peak=least_peak(record.cause),
        )

    @property
    def is_measured(self) -> bool:
        """Whether the trial ran to where its metrics mean something."""
        return self.state is TrialState.COMPLETE


def least_peak(cause: str) -> float | None:
    """Return how much of a device's memory would have been taken, as a share of all of it, had the
    allocation that failed come through; None where a cause does not say so."""
    found = _REFUSED.search(cause)
    if found is None:
        return None
    asked, total, free = (_bytes(found[name]) for name in ("asked", "total", "free"))
    return (total - free + asked) / total if total else None


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * _BYTES[unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Settings with their points, one row each."""

    settings: Sequence[Setting]
    points: Array
    features: Array
    """Columns of a regression's linear part: a constant, the points, reciprocals."""
    names: tuple[str, ...]
    """What each column of ``features`` is of: a knob, :data:`RECIPROCAL` and a knob, or nothing."""


RECIPROCAL = "1/"


class Encoder:
    """Turns settings into points.

    Args:
        distributions: Optuna's distribution of each knob; one with a single value has no column.
    """

    def __init__(self, distributions: "Mapping[str, BaseDistribution]") -> None:
        self._knobs = {
            name: distribution
            for name, distribution in distributions.items()
            if not distribution.single()
        }

    def batch(self, settings: Sequence[Setting]) -> Batch:
        """Return settings with their points and features."""
        columns: list[Array] = []
        reciprocals: list[Array] = []
        names: list[str] = []
        of_reciprocals: list[str] = []
        for name, distribution in self._knobs.items():
            values = [setting[name] for setting in settings]
            own = _columns(values, distribution)
            columns += own
            names += [name] * len(own)
            if _is_logarithmic(distribution):
                low = float(getattr(distribution, "low"))
                reciprocals.append(low / np.array(values, dtype=float))
                of_reciprocals.append(RECIPROCAL + name)
        constant = np.ones(len(settings))
        features = np.stack([constant, *columns, *reciprocals], axis=1)
        points = np.stack(columns, axis=1) if columns else features[:, :0]
        return Batch(
            settings=settings,
            points=points,
            features=features,
            names=("", *names, *of_reciprocals),
        )


def _columns(values: Sequence[KnobValue], distribution: "BaseDistribution") -> list[Array]:
    choices = getattr(distribution, "choices", None)
    if choices is None:
        return [_share(np.array(values, dtype=float), distribution)]
    if set(choices) == {False, True}:
        return [np.array(values, dtype=float)]
    return [
        np.array([value == choice for value in values], dtype=float) / math.sqrt(2)
        for choice in choices
    ]


def _is_logarithmic(distribution: "BaseDistribution") -> bool:
    return bool(getattr(distribution, "log", False))


def _share(values: Array, distribution: "BaseDistribution") -> Array:
    """Return where numbers lie between the smallest (0) and the largest (1)."""
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    if _is_logarithmic(distribution):
        return np.asarray(np.log(values / low) / math.log(high / low))
    return (values - low) / (high - low)
