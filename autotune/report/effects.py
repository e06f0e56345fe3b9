"""What the knobs do to the objective, from the completed trials: importance, slices, pairs.

Runs in whatever process reports. Pure computation, no drawing. Importance is Optuna's (PED-ANOVA:
how far a knob decides whether a trial is among the better ones) over a study made from the
records, so that it needs neither the sweep's journal nor its lock. The search visits good regions
more often than others: all of this hints, only a comparison of two settings proves.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.knobs import KnobValue
from autotune.measure.stats import median
from autotune.objective import TrialRecord, is_maximised
from autotune.report.text import format_number, knob_text, plural

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MIN_SETTINGS = 10
"""Completed distinct settings below which importance would be noise."""
MIN_SETTINGS_OF_PAIRS = 20
"""Completed distinct settings below which a map of two knobs is mostly empty."""
MAX_CATEGORIES = 8
"""Numbers of more different values than this are put into bins."""
NUM_BINS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One knob against the objective."""

    knob: str
    labels: tuple[str, ...]
    """The knob's values, or bins of them, in order."""
    positions: tuple[int, ...]
    """Index into ``labels`` of each completed trial."""
    medians: tuple[float, ...]
    """Median objective at each label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two knobs against the objective."""

    x: Slice
    y: Slice
    medians: tuple[tuple[float | None, ...], ...]
    """[y label][x label] -> median objective; None where nothing was tried."""
    counts: tuple[tuple[int, ...], ...]
    """Trials of each cell."""


def completed(trials: Sequence[TrialRecord], objective: str) -> list[TrialRecord]:
    """Return the trials that have a value of the objective."""
    return [record for record in trials if record.value(objective) is not None]


def varied_knobs(trials: Sequence[TrialRecord]) -> list[str]:
    """Return the knobs that do not have one value in all trials."""
    names = trials[0].setting if trials else {}
    return [name for name in names if len({record.setting[name] for record in trials}) > 1]


def importances(trials: Sequence[TrialRecord], objective: str) -> dict[str, float]:
    """Return knob -> importance, the greatest first, summing to 1; empty with too few settings.

    Args:
        trials: Completed trials, see :func:`completed`.
        objective: Metric to optimise, in its own direction.
    """
    knobs = varied_knobs(trials)
    values = {record.value(objective) for record in trials}
    if num_settings(trials) < MIN_SETTINGS or not knobs or len(values) < 2:
        return {}
    import optuna
    from optuna.trial import create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if is_maximised(objective) else "minimize")
    distributions = {knob: _distribution([r.setting[knob] for r in trials]) for knob in knobs}
    for record in trials:
        study.add_trial(
            create_trial(
                params={knob: record.setting[knob] for knob in knobs},
                distributions=distributions,
                value=record.value(objective),
            )
        )
    return dict(optuna.importance.get_param_importances(study))


def why_no_importance(trials: Sequence[TrialRecord]) -> str:
    """Return why importance is not told; empty where enough settings completed."""
    found = num_settings(trials)
    if found >= MIN_SETTINGS:
        return ""
    return (
        f"The knobs' importance is not shown: {plural(found, 'setting')} completed, and below "
        f"{MIN_SETTINGS} it would be noise."
    )


def num_settings(trials: Sequence[TrialRecord]) -> int:
    """Return how many different settings the trials ran."""
    return len({tuple(sorted(record.setting.items())) for record in trials})


def slice_of(trials: Sequence[TrialRecord], knob: str, objective: str) -> Slice:
    """Return one knob against the objective over completed trials."""
    labels, positions = _binned([record.setting[knob] for record in trials])
    medians = [
        median([_value(r, objective) for r, at in zip(trials, positions, strict=True) if at == i])
        for i in range(len(labels))
    ]
    return Slice(
        knob=knob, labels=tuple(labels), positions=tuple(positions), medians=tuple(medians)
    )


def pair_of(trials: Sequence[TrialRecord], x: Slice, y: Slice, objective: str) -> Pair:
    """Return two knobs against the objective over the trials that the slices are of."""
    cells: dict[tuple[int, int], list[float]] = {}
    for record, at_x, at_y in zip(trials, x.positions, y.positions, strict=True):
        cells.setdefault((at_y, at_x), []).append(_value(record, objective))
    rows, columns = range(len(y.labels)), range(len(x.labels))
    return Pair(
        x=x,
        y=y,
        medians=tuple(
            tuple(median(cells[i, j]) if (i, j) in cells else None for j in columns) for i in rows
        ),
        counts=tuple(tuple(len(cells.get((i, j), ())) for j in columns) for i in rows),
    )


def top_pairs(
    trials: Sequence[TrialRecord], ranked: Sequence[str], objective: str, *, num_knobs: int = 3
) -> list[Pair]:
    """Return the pairs of the most important knobs, the most important pair first; none where too
    few settings were measured."""
    if num_settings(trials) < MIN_SETTINGS_OF_PAIRS:
        return []
    slices = [slice_of(trials, knob, objective) for knob in ranked[:num_knobs]]
    return [pair_of(trials, x, y, objective) for x, y in itertools.combinations(slices, 2)]


def _binned(values: Sequence[KnobValue]) -> tuple[list[str], list[int]]:
    """Return labels in order, and the label of each value."""
    distinct = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    if len(distinct) <= MAX_CATEGORIES or any(isinstance(value, str) for value in distinct):
        return [knob_text(value) for value in distinct], [distinct.index(v) for v in values]
    numbers = np.asarray([float(value) for value in values])
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, NUM_BINS + 1)))
    places = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    labels = [
        f"{format_number(low)} to {format_number(high)}"
        for low, high in itertools.pairwise(edges.tolist())
    ]
    used = sorted(set(places.tolist()))
    return [labels[index] for index in used], [used.index(place) for place in places.tolist()]


def _distribution(values: Sequence[KnobValue]) -> "BaseDistribution":
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if any(isinstance(value, bool | str) for value in values):
        return CategoricalDistribution(sorted(set(values), key=str))
    if all(isinstance(value, int) for value in values):
        return IntDistribution(int(min(values)), int(max(values)))
    return FloatDistribution(float(min(values)), float(max(values)))


def _value(record: TrialRecord, objective: str) -> float:
    value = record.value(objective)
    assert value is not None, record
    return value
