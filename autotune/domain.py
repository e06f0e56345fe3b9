"""The values that a sweep lets one knob take: checked when built, and the nearest to any number.

Runs in the driver. A domain is a list of choices, a grid of numbers, or every number between two
limits; numbers keep their distances, so that a sampler may draw anywhere between the smallest and
the largest value.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.errors import BadInputError, nearest
from autotune.knobs import KNOBS, MAX_INTEGER, Knob, KnobValue

MAX_INTEGER_RANGE = 100_000
"""Integers over a wider range are searched as real numbers, then brought to the nearest allowed
one: Optuna's Gaussian process lists every integer of a range."""
LOG_FROM_RATIO = 8
"""Choices that span at least this ratio are searched on a logarithmic scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Values that one knob may take: choices, a grid, or every number from low to high."""

    knob: Knob
    choices: tuple[KnobValue, ...] | None = None
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    """Distance of neighbouring values; None: every number (floats only)."""
    log: bool = False
    when: Mapping[str, KnobValue] = field(default_factory=dict)
    """Other knobs and the value that they must have for this one to act."""

    @property
    def size(self) -> int | None:
        """Number of values, or None when there is one between any two."""
        if self.choices is not None:
            return len(self.choices)
        if self.step is None:
            return None
        return math.floor((self.high - self.low) / self.step + 1e-9) + 1

    @property
    def is_numeric(self) -> bool:
        return self.knob.kind in (int, float)

    def at(self, index: int) -> KnobValue:
        """Return a value of a finite domain by its place."""
        if self.choices is not None:
            return self.choices[index]
        assert self.step is not None, f"{self.knob.name} is continuous"
        return self._as_kind(self.low + index * self.step)

    def values(self) -> Iterator[KnobValue]:
        """Iterate over a finite domain."""
        assert self.size is not None, f"{self.knob.name} is continuous"
        return (self.at(index) for index in range(self.size))

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and largest value of a numeric domain."""
        if self.choices is None:
            return self.low, float(self.at(self.size - 1)) if self.size is not None else self.high
        numbers = [float(value) for value in self.choices]
        return min(numbers), max(numbers)

    def nearest(self, value: KnobValue) -> KnobValue:
        """Return the allowed value closest to ``value``, in log distance where ``log`` is set."""
        if not self.is_numeric:
            assert self.choices is not None, f"{self.knob.name} is not a number"
            return value if value in self.choices else self.choices[0]
        number = float(value)
        if self.choices is not None:
            return min(self.choices, key=lambda choice: self._distance(float(choice), number))
        low, high = self.bounds()
        if self.size is None:
            return min(max(number, low), high)
        index = math.floor((min(max(number, low), high) - self.low) / self._step())
        around = [self.at(place) for place in (index, index + 1) if 0 <= place < self.size]
        return min(around, key=lambda choice: self._distance(float(choice), number))

    def contains(self, value: KnobValue) -> bool:
        """Say whether ``value`` is allowed."""
        if not self.is_numeric:
            return value in (self.choices or ())
        return math.isclose(float(self.nearest(value)), float(value), rel_tol=1e-12)

    def describe(self) -> str:
        """Return the values in words."""
        if self.choices is not None:
            return f"the choices {', '.join(map(str, self.choices))}"
        step = "" if self.step is None else f" in steps of {self.step:g}"
        return f"the numbers from {self.low:g} to {self.high:g}{step}"

    def draw(self, rng: np.random.Generator) -> KnobValue:
        """Return a random value, uniform over the values or over the (log) range."""
        if self.size is not None:
            return self.at(int(rng.integers(self.size)))
        if self.log:
            return float(np.exp(rng.uniform(np.log(self.low), np.log(self.high))))
        return float(rng.uniform(self.low, self.high))

    def _step(self) -> float:
        assert self.step is not None, f"{self.knob.name} is continuous"
        return self.step

    def _as_kind(self, number: float) -> KnobValue:
        return round(number) if self.knob.kind is int else round(number, 12)

    def _distance(self, a: float, b: float) -> float:
        """Return how far a drawn ``b`` is from an allowed ``a``; below 0, the smallest is near."""
        if not self.log:
            return abs(a - b)
        return abs(math.log(a) - math.log(b)) if b > 0 else a


def make_domain(
    name: str,
    *,
    choices: Sequence[object] | None = None,
    low: float | None = None,
    high: float | None = None,
    step: float | None = None,
    log: bool = False,
    when: Mapping[str, object] | None = None,
) -> Domain:
    """Build and check the domain of one knob from the fields of a sweep file's ``knobs.<name>``.

    Raises:
        BadInputError: An unknown knob, or a domain that is empty, contradictory or outside what the
            knob may take.
    """
    key = f"knobs.{name}"
    if name not in KNOBS:
        hint = nearest(name, KNOBS) or f"The knobs are: {', '.join(sorted(KNOBS))}."
        raise BadInputError(f"{key}: there is no knob '{name}'.", hint)
    knob = KNOBS[name]
    conditions = _parse_when(key, when)
    if choices is not None:
        _refuse_range_fields(key, low=low, high=high, step=step)
        values = _parse_choices(knob, key, choices)
        return Domain(
            knob=knob, choices=values, log=_choices_log(knob, key, values, log), when=conditions
        )
    if low is None or high is None:
        given = "low" if low is not None else "high" if high is not None else "neither"
        raise BadInputError(
            f"{key}: a domain needs either choices, or low and high; it has {given}.", knob.legal()
        )
    return _range_domain(knob, key, low=low, high=high, step=step, log=log, when=conditions)


def _parse_when(key: str, when: Mapping[str, object] | None) -> dict[str, KnobValue]:
    conditions: dict[str, KnobValue] = {}
    for other, value in (when or {}).items():
        if other not in KNOBS:
            raise BadInputError(f"{key}.when: there is no knob '{other}'.", nearest(other, KNOBS))
        conditions[other] = KNOBS[other].parse(value, f"{key}.when.{other}")
    return conditions


def _refuse_range_fields(key: str, **fields: float | None) -> None:
    given = [name for name, value in fields.items() if value is not None]
    if given:
        raise BadInputError(
            f"{key}: choices and {', '.join(given)} exclude each other.",
            "Give either choices, or low and high.",
        )


def _parse_choices(knob: Knob, key: str, choices: Sequence[object]) -> tuple[KnobValue, ...]:
    if not choices:
        raise BadInputError(
            f"{key}.choices is empty.", "Give at least one value, or leave the knob out."
        )
    values = tuple(
        knob.parse(value, f"{key}.choices[{index}]") for index, value in enumerate(choices)
    )
    for index, value in enumerate(values):
        if value in values[:index]:
            raise BadInputError(
                f"{key}.choices[{index}] is {value!r}, which choices[{values.index(value)}] is "
                "already."
            )
    return values


def _choices_log(knob: Knob, key: str, values: tuple[KnobValue, ...], log: bool) -> bool:
    if knob.kind not in (int, float):
        if log:
            raise BadInputError(
                f"{key}.log is true, but {knob.legal()}", "Only numbers have a logarithmic scale."
            )
        return False
    numbers = [float(value) for value in values]
    if log and min(numbers) <= 0:
        raise BadInputError(
            f"{key}.log is true, but the smallest choice is {min(numbers):g}.",
            "It must be above 0.",
        )
    return log or (min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_FROM_RATIO)


def _range_domain(
    knob: Knob,
    key: str,
    *,
    low: float,
    high: float,
    step: float | None,
    log: bool,
    when: dict[str, KnobValue],
) -> Domain:
    if knob.kind not in (int, float):
        raise BadInputError(
            f"{key}: low and high need a number, but {knob.legal()}", "Give choices."
        )
    first, last = float(knob.parse(low, f"{key}.low")), float(knob.parse(high, f"{key}.high"))
    if first > last:
        raise BadInputError(f"{key}.low is {low:g}, above {key}.high ({high:g}).")
    if step is not None and not (math.isfinite(step) and step > 0):
        raise BadInputError(f"{key}.step is {step:g}.", "It must be a finite number above 0.")
    if step is not None and (last - first) / step > MAX_INTEGER:
        raise BadInputError(
            f"{key}.step is {step:g}, of which {key}.low to {key}.high has more than 2**53.",
            "Take a larger step, or leave it out.",
        )
    if step is not None and knob.kind is int and not float(step).is_integer():
        raise BadInputError(f"{key}.step is {step:g}.", f"{knob.name} takes integers.")
    if log and first <= 0:
        raise BadInputError(f"{key}.log is true, but {key}.low is {low:g}.", "It must be above 0.")
    distance = 1.0 if step is None and knob.kind is int else step
    return Domain(knob=knob, low=first, high=last, step=distance, log=log, when=when)
