"""What differs between two trials, of one sweep or of two: settings, versions, measured numbers.

Runs in whatever process reports. Pure functions over :class:`~autotune.report.reading.SweepData`. A
sweep stands for its winner, or, where nothing is feasible, for the trial that misses by least.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.config import to_yaml
from autotune.errors import BadInputError
from autotune.metrics import DETAILS, METRICS
from autotune.objective import TrialRecord
from autotune.report.answer import answer
from autotune.report.gain import Gain, gain
from autotune.report.reading import SweepData, read_sweep

_IDENTITY = ("name", "output_dir")
"""Keys of a sweep file that only say which sweep it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two trials."""

    sweep: str
    folder: Path
    trial: int
    outcome_of: str
    """``winner``, ``closest`` to feasible, or ``chosen`` on the command line."""
    gain: Gain | None
    """Against its own sweep's baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that is not the same on both sides; None: the side has no such entry."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPair:
    """A measured number of both sides."""

    metric: str
    a: float | None
    b: float | None
    ratio: float | None
    """b / a; None unless both were measured and ``a`` is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two trials side by side."""

    a: Side
    b: Side
    fidelity: str
    """Of both, see :attr:`autotune.report.answer.Answer.fidelity`."""
    settings: tuple[Difference, ...]
    """Knobs with different values."""
    metrics: tuple[MetricPair, ...]
    """All metrics of either side, in the catalogue's order, then those of phases and kinds."""
    config: tuple[Difference, ...]
    """Keys of the two sweep files with different values; none within one sweep."""
    versions: tuple[Difference, ...]
    """Packages of different versions; none within one sweep."""


def compare(a: str, b: str) -> Comparison:
    """Compare two references, each a sweep's folder or ``folder:trial``.

    Raises:
        BadInputError: One of them is not there, or has no finished trial, or the trials of one
            replayed their rollout and those of the other did not.
    """
    data_a, record_a, side_a = resolve(a)
    data_b, record_b, side_b = resolve(b)
    fidelities = [data.config.trial.fidelity for data in (data_a, data_b)]
    if fidelities[0] != fidelities[1]:
        raise BadInputError(
            f"{a} was measured with trial.fidelity: {fidelities[0]}, {b} with {fidelities[1]}.",
            "A replayed rollout and whole steps are different work: their numbers do not compare. "
            "`autotune verify` measures whole steps.",
        )
    return Comparison(
        a=side_a,
        b=side_b,
        fidelity=fidelities[0],
        settings=differences(record_a.setting, record_b.setting),
        metrics=metric_pairs(record_a, record_b),
        config=differences(_flat_config(data_a), _flat_config(data_b)),
        versions=differences(data_a.versions, data_b.versions),
    )


def resolve(reference: str) -> tuple[SweepData, TrialRecord, Side]:
    """Return the sweep and the trial that a reference names."""
    folder, colon, number = reference.rpartition(":")
    chosen = bool(colon) and number.isdecimal()
    data = read_sweep(folder if chosen else reference)
    found = answer(data)
    record = data.trial(int(number)) if chosen else found.shown
    if record is None:
        raise BadInputError(f"{reference} has no finished trial yet.")
    how = "chosen" if chosen else "winner" if found.winner is not None else "closest"
    side = Side(
        sweep=data.config.name,
        folder=data.folder,
        trial=record.number,
        outcome_of=how,
        gain=gain(data, record),
    )
    return data, record, side


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the entries of two mappings that differ, those of ``a`` first."""
    return tuple(
        Difference(name=name, a=a.get(name), b=b.get(name))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    )


def metric_pairs(a: TrialRecord, b: TrialRecord) -> tuple[MetricPair, ...]:
    """Return the numbers of two trials side by side."""
    known = [*METRICS, *DETAILS]
    held = {*a.metrics, *b.metrics}
    pairs = []
    for name in [*(n for n in known if n in held), *sorted(held - set(known))]:
        left, right = a.metrics.get(name), b.metrics.get(name)
        ratio = right / left if left and right is not None else None
        pairs.append(MetricPair(metric=name, a=left, b=right, ratio=ratio))
    return tuple(pairs)


def _flat_config(data: SweepData) -> dict[str, Any]:
    """Return the sweep file as dotted keys; overrides of the base job by their own keys."""
    flat: dict[str, Any] = {}
    _flatten("", yaml.safe_load(to_yaml(data.config)), flat)
    return {key: value for key, value in flat.items() if key not in _IDENTITY}


def _flatten(prefix: str, value: Any, flat: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{prefix}.{key}" if prefix else str(key), inner, flat)
    elif prefix == "base.overrides":
        flat |= {f"base: {key}": text for key, _, text in (o.partition("=") for o in value)}
    else:
        flat[prefix] = value
