"""Recorded measurements of many settings, to search in them instead of on a cluster.

Runs anywhere. A landscape is a JSON file: ``knobs`` and ``metrics`` (names), ``baseline`` (values
of the knobs), ``constraints`` (metric -> largest feasible value), ``relative_noise`` (metric ->
standard deviation of one trial, for true values), and ``rows`` of ``[knob values, state,
metrics]``; metrics are one list, or several where a setting was measured several times.
A finished sweep is a landscape too. Drawing a trial picks a repetition and adds the noise, so equal
seeds give equal trials. Settings that have no row do not exist.
"""

import functools
import json
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain import LOG_FROM_RATIO, MAX_INTEGER_RANGE
from autotune.errors import BadInputError
from autotune.knobs import KnobValue
from autotune.metrics import METRICS
from autotune.objective import (
    Constraint,
    TrialRecord,
    TrialState,
    evaluate,
    is_maximised,
    repetitions,
)
from autotune.settings import ConstraintConfig

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Setting = dict[str, KnobValue]
_FIELDS = (
    "name",
    "origin",
    "objective",
    "constraints",
    "relative_noise",
    "baseline",
    "knobs",
    "metrics",
    "rows",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is known of one setting."""

    setting: Setting
    state: TrialState
    repetitions: tuple[dict[str, float], ...]
    """Metric -> value of each measurement; empty for a setting that failed."""


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """Settings and what a trial of each comes to."""

    name: str
    origin: str
    objective: str
    constraints: tuple[Constraint, ...]
    relative_noise: Mapping[str, float]
    baseline: Setting
    rows: tuple[Row, ...]

    @functools.cached_property
    def by_key(self) -> dict[Hashable, Row]:
        """Rows by the identity of their setting."""
        return {key_of(row.setting): row for row in self.rows}

    def true_metrics(self, setting: Mapping[str, KnobValue]) -> dict[str, float]:
        """Return each metric's mean over a setting's measurements."""
        found = self.by_key[key_of(setting)].repetitions
        return {name: math.fsum(run[name] for run in found) / len(found) for name in found[0]}

    def is_feasible(self, setting: Mapping[str, KnobValue]) -> bool:
        """Say whether a setting completes and keeps the constraints in truth."""
        if self.by_key[key_of(setting)].state is not TrialState.COMPLETE:
            return False
        return evaluate(self.true_metrics(setting), self.constraints)[1]

    @functools.cached_property
    def optimum(self) -> float:
        """Return the best true objective of a feasible setting.

        Raises:
            BadInputError: No setting is feasible.
        """
        values = [
            self.true_metrics(row.setting)[self.objective]
            for row in self.rows
            if self.is_feasible(row.setting)
        ]
        if not values:
            raise BadInputError(f"landscape {self.name}: no setting keeps its constraints.")
        return max(values) if is_maximised(self.objective) else min(values)

    def draw(self, setting: Mapping[str, KnobValue], rng: np.random.Generator) -> dict[str, float]:
        """Return the metrics of one more trial of a setting that completes."""
        found = self.by_key[key_of(setting)].repetitions
        run = found[int(rng.integers(len(found)))]
        noise = {name: rng.standard_normal() * self.relative_noise.get(name, 0.0) for name in run}
        return {name: value * max(1 + noise[name], 0.0) for name, value in run.items()}

    def to_dict(self, metrics: Sequence[str]) -> dict[str, Any]:
        """Return the content of a landscape file.

        Args:
            metrics: Those to keep; one that a measurement lacks is in no row.
        """
        runs = [run for row in self.rows for run in row.repetitions]
        kept = [name for name in metrics if all(name in run for run in runs)]
        return {
            "name": self.name,
            "origin": self.origin,
            "objective": self.objective,
            "constraints": {limit.metric: limit.max for limit in self.constraints},
            "relative_noise": dict(self.relative_noise),
            "baseline": list(self.baseline.values()),
            "knobs": list(self.baseline),
            "metrics": kept,
            "rows": [
                [
                    [row.setting[name] for name in self.baseline],
                    row.state.value,
                    [[run[name] for name in kept] for run in row.repetitions],
                ]
                for row in self.rows
            ],
        }

    def trial(self, suggestion: Mapping[str, Any], seed: int) -> TrialRecord:
        """Return the record of a suggested trial.

        Args:
            suggestion: What the searcher suggests.
            seed: Equal seeds and numbers give equal trials.
        """
        setting = dict(suggestion["setting"])
        row = self.by_key[key_of(setting)]
        rng = np.random.default_rng([seed, suggestion["number"]])
        metrics: dict[str, float | None] = {}
        if row.state is TrialState.COMPLETE:
            metrics |= self.draw(setting, rng)
        violations, satisfied = evaluate(metrics, self.constraints)
        return TrialRecord(
            number=suggestion["number"],
            state=row.state,
            params=suggestion["params"],
            setting=setting,
            overrides=list(suggestion["overrides"]),
            metrics=metrics,
            absent={name: "not recorded" for name in METRICS if name not in metrics},
            violations=violations,
            feasible=satisfied and row.state is TrialState.COMPLETE,
            cause="" if row.state is TrialState.COMPLETE else f"recorded as {row.state.value}",
            started_at=_NO_TIME,
            ended_at=_NO_TIME,
            retries=0,
        )


_NO_TIME = "1970-01-01T00:00:00+00:00"


class LandscapeSpace:
    """A landscape's settings as a search space, see :class:`autotune.sampler.SearchSpace`."""

    def __init__(self, landscape: Landscape) -> None:
        self._landscape = landscape
        self._settings = [row.setting for row in landscape.rows]
        self._values = {
            name: sorted({setting[name] for setting in self._settings}, key=_order)
            for name in landscape.baseline
        }
        self._distributions = {
            name: _distribution(values) for name, values in self._values.items()
        }

    def distributions(self) -> "dict[str, BaseDistribution]":
        return dict(self._distributions)

    def baseline(self) -> Setting:
        return dict(self._landscape.baseline)

    def snap(self, params: Mapping[str, KnobValue]) -> Setting:
        return {
            name: min(values, key=functools.partial(_distance, params[name]))
            for name, values in self._values.items()
        }

    def is_valid(self, params: Mapping[str, KnobValue]) -> bool:
        return key_of(params) in self._landscape.by_key

    def random_valid(
        self, rng: np.random.Generator, exclude: Collection[Hashable] = frozenset()
    ) -> Setting | None:
        left = [setting for setting in self._settings if key_of(setting) not in exclude]
        return dict(left[int(rng.integers(len(left)))]) if left else None

    def is_small(self, limit: int) -> bool:
        return len(self._settings) <= limit

    def candidates(self, rng: np.random.Generator, limit: int) -> list[Setting]:
        if self.is_small(limit):
            return self._settings
        chosen = rng.choice(len(self._settings), size=limit, replace=False)
        return [self._settings[index] for index in chosen]

    def key(self, params: Mapping[str, KnobValue]) -> Hashable:
        return key_of(params)

    def active(self, params: Mapping[str, KnobValue]) -> Setting:
        return dict(params)

    def overrides(self, params: Mapping[str, KnobValue]) -> list[str]:
        return []


def key_of(setting: Mapping[str, KnobValue]) -> Hashable:
    """Return an identity of a setting."""
    return frozenset(setting.items())


def read_landscape(path: Path) -> Landscape:
    """Read a landscape file.

    Raises:
        BadInputError: It is not one.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: not a landscape: {error}.") from error
    missing = [name for name in _FIELDS if not isinstance(data, dict) or name not in data]
    if missing:
        raise BadInputError(f"{path}: not a landscape: it lacks {', '.join(missing)}.")
    unknown = [name for name in (data["objective"], *data["metrics"]) if name not in METRICS]
    if unknown:
        raise BadInputError(f"{path}: {unknown[0]} is no metric of the catalogue.")
    landscape = Landscape(
        name=data["name"],
        origin=data["origin"],
        objective=data["objective"],
        constraints=tuple(
            ConstraintConfig(metric=name, max=limit) for name, limit in data["constraints"].items()
        ),
        relative_noise=data["relative_noise"],
        baseline=dict(zip(data["knobs"], data["baseline"], strict=True)),
        rows=tuple(_row(data["knobs"], data["metrics"], row) for row in data["rows"]),
    )
    if key_of(landscape.baseline) not in landscape.by_key:
        raise BadInputError(f"{path}: the baseline {landscape.baseline} has no row.")
    return landscape


def landscape_of(
    name: str, records: Sequence[TrialRecord], objective: str, constraints: Sequence[Constraint]
) -> Landscape:
    """Return the landscape that the trials of a sweep are.

    Raises:
        BadInputError: Its baseline did not finish.
    """
    told = [record for record in records if record.state.is_setting_fault]
    baseline = next((record.setting for record in told if record.number == 0), None)
    if baseline is None:
        raise BadInputError(f"{name}: its baseline did not finish.")
    rows = [
        Row(
            setting=trials[0].setting,
            state=TrialState.COMPLETE,
            repetitions=tuple(_measured(trial) for trial in trials),
        )
        for trials in repetitions(told)
    ]
    rows += [
        Row(setting=record.setting, state=record.state, repetitions=())
        for record in told
        if record.state.is_failure
    ]
    return Landscape(
        name=name,
        origin=f"{len(told)} trials of the sweep {name}",
        objective=objective,
        constraints=tuple(constraints),
        relative_noise={},
        baseline=baseline,
        rows=tuple(rows),
    )


def json_text(content: Mapping[str, Any], *, rows: str) -> str:
    """Return a JSON object with a line for each field, and one for each element of ``rows``."""
    fields = [
        f" {json.dumps(name)}: {json.dumps(value)}"
        for name, value in content.items()
        if name != rows
    ]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in content[rows])
    return "{\n" + ",\n".join([*fields, f" {json.dumps(rows)}: [\n{lines}\n ]"]) + "\n}\n"


def _measured(record: TrialRecord) -> dict[str, float]:
    return {name: value for name, value in record.metrics.items() if value is not None}


def _row(knobs: Sequence[str], metrics: Sequence[str], row: Sequence[Any]) -> Row:
    values, state, measured = row
    runs = measured if measured and isinstance(measured[0], list) else [measured]
    return Row(
        setting=dict(zip(knobs, values, strict=True)),
        state=TrialState(state),
        repetitions=tuple(dict(zip(metrics, run, strict=True)) for run in runs if run),
    )


def _distribution(values: Sequence[KnobValue]) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if any(isinstance(value, bool | str) for value in values):
        return CategoricalDistribution(list(values))
    low, high = float(values[0]), float(values[-1])
    log = low > 0 and high / low >= LOG_FROM_RATIO
    if all(isinstance(value, int) for value in values) and high - low <= MAX_INTEGER_RANGE:
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _order(value: KnobValue) -> tuple[str, Any]:
    return type(value).__name__ if isinstance(value, str) else "", value


def _distance(wanted: KnobValue, value: KnobValue) -> float:
    """Return how far a value is from a wanted one; between numbers above 0, on a log scale."""
    if isinstance(value, bool | str) or isinstance(wanted, bool | str):
        return float(value != wanted)
    if value > 0 and wanted > 0:
        return abs(math.log(value / wanted))
    return abs(value - wanted)
