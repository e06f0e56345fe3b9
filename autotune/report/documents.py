"""The answers of ``autotune report``, ``list``, ``show`` and ``compare`` for machines: ``--json``.

Runs in whatever process reports. A document is one JSON object with ``schema`` (which of the four),
``schema_version`` and the fields of a dataclass, whose docstrings are their documentation:
``autotune.report``: :class:`~autotune.report.answer.Answer`; ``autotune.list``:
:class:`~autotune.report.overview.SweepLine`; ``autotune.trial``:
:class:`~autotune.report.overview.TrialView`; ``autotune.comparison``:
:class:`~autotune.report.compare.Comparison`. Trials stand as numbers wherever ``trials`` holds
their records. Numbers that were not measured are null. The version grows when a field is renamed,
removed or changes its meaning; new fields do not change it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from autotune.objective import StepRecord, TrialRecord
from autotune.report.answer import Answer
from autotune.report.compare import Comparison
from autotune.report.overview import SweepLine, TrialView
from autotune.report.reading import SweepData
from autotune.report.text import outcome

SCHEMA_VERSION = 1


def report_document(answer: Answer, data: SweepData) -> dict[str, Any]:
    """Return the answer with every finished trial, the calibration and the versions."""
    return {
        **_head("report"),
        **{
            field.name: _trial_number(getattr(answer, field.name))
            for field in dataclasses.fields(answer)
        },
        "folder": str(data.folder),
        "trials": [{**record.to_dict(), "outcome": outcome(record)} for record in data.trials],
        "calibration": plain(data.calibration),
        "versions": dict(data.versions),
    }


def list_document(sweeps: Sequence[SweepLine]) -> dict[str, Any]:
    """Return the overview of several sweeps."""
    return {**_head("list"), "sweeps": plain(sweeps)}


def trial_document(view: TrialView) -> dict[str, Any]:
    """Return everything known of one trial."""
    return {**_head("trial"), **plain(view)}


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return two trials side by side."""
    return {**_head("comparison"), **plain(comparison)}


def plain(value: Any) -> Any:
    """Return JSON data: dataclasses as mappings, enums as their values, no non-finite number."""
    if isinstance(value, TrialRecord | StepRecord):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _head(kind: str) -> dict[str, Any]:
    return {"schema": f"autotune.{kind}", "schema_version": SCHEMA_VERSION}


def _trial_number(value: Any) -> Any:
    """Return a trial, or each of several, by number; anything else as :func:`plain` does."""
    if isinstance(value, tuple):
        return [_trial_number(entry) for entry in value]
    return value.number if isinstance(value, TrialRecord) else plain(value)
