"""What a verification of settings found: the records of ``verify.jsonl`` and ``verification.json``.

Runs in the driver. Data and its JSON, no computation: :mod:`autotune.comparison` plans the jobs and
decides. A :class:`VerifyJob` is one line of ``verify.jsonl`` in the sweep's folder; a
:class:`Verification` is ``verification.json`` there, which reports and the export read.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from autotune.errors import SweepError
from autotune.objective import TrialRecord

SCHEMA_VERSION = 1
"""Version of ``verification.json``; a reader refuses any other."""


class Decision(str, Enum):
    """What a verification says of one setting."""

    PROVEN = "proven"
    """The whole interval of the gain is above 1, and every constraint's is within its limit."""
    NOT_PROVEN = "not_proven"
    """The measurements allow either answer, or something could not be measured."""
    WORSE = "worse"
    """Slower than the base job, or it breaks a constraint, or a job of it failed."""


class Verdict(str, Enum):
    """What a verification says of one constraint."""

    KEPT = "kept"
    BROKEN = "broken"
    UNCLEAR = "unclear"
    """The limit lies within the interval."""
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over jobs with its interval; the interval of a gain holds at all looks together."""

    value: float
    low: float
    high: float
    num_jobs: int
    """Jobs, or pairs of jobs for a gain, behind it."""

    @property
    def width_ratio(self) -> float:
        """Width of the interval / value."""
        return (self.high - self.low) / self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintCheck:
    """One constraint of one verified setting."""

    metric: str
    max: float
    measured: Estimate | None
    """None has its reason in ``absent``."""
    baseline: Estimate | None
    """The base job's own value: for a measure of consistency, its noise floor."""
    verdict: Verdict
    absent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """One verified setting."""

    number: int
    """The trial of the sweep that had it; 1 where a file's setting is verified."""
    setting: dict[str, Any]
    """Knob -> value."""
    overrides: list[str]
    """Hydra overrides that turn the base job into this setting."""
    decision: Decision
    reason: str
    """Why, in words; a sentence."""
    gain_ratio: Estimate | None
    """How many times better than the base job in the objective: above 1 is better, whatever the
    objective's direction. None has its reason in ``reason``."""
    objective: Estimate | None
    """The setting's own value of the objective."""
    constraints: list[ConstraintCheck]
    num_jobs: int
    """Cold jobs that ran with this setting."""

    @property
    def is_proven(self) -> bool:
        """Whether it is faster than the base job and keeps every constraint."""
        return self.decision is Decision.PROVEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome of one verification; ``verification.json``."""

    sweep: str
    objective: str
    """Metric that is compared."""
    confidence: float
    interval_width_ratio: float
    """Width / gain at which a gain is known well enough."""
    baseline: Estimate | None
    """The base job's own value of the objective."""
    candidates: list[CandidateResult]
    """In the order of the sweep's own measurement, best first."""
    winner: int | None
    """Number of the proven candidate with the largest gain."""
    num_jobs: int
    max_jobs: int
    why_ended: str
    gpu_seconds: float
    """Ranks held x wall time of all jobs."""
    started_at: str
    ended_at: str
    file: str | None = None
    """The production file whose setting was verified, as its path; None: settings of a sweep."""
    claim: dict[str, Any] | None = None
    """What that file states of its gain, see ``autotune.claim``; None: nothing."""

    def of(self, number: int) -> CandidateResult | None:
        """Return what was found about a trial's setting; None where it was not verified."""
        return next((found for found in self.candidates if found.number == number), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"schema_version": SCHEMA_VERSION, **_plain(dataclasses.asdict(self))}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Verification":
        """Build the record that :meth:`to_dict` came from.

        Raises:
            ValueError: Another version of the schema.
        """
        fields = dict(data)
        version = fields.pop("schema_version", None)
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version}, not {SCHEMA_VERSION}")
        fields["baseline"] = _estimate(fields["baseline"])
        fields["candidates"] = [_candidate(entry) for entry in fields["candidates"]]
        return Verification(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """One cold job of a verification; a line of ``verify.jsonl``."""

    plan: str
    """Which verification it belongs to, see :func:`autotune.verify.plan_name`."""
    block: int
    trial: int
    """The sweep's trial whose setting ran, see ``CandidateResult.number``; 0 is the baseline."""
    record: TrialRecord
    """What was measured; its number counts the jobs of the verification."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "plan": self.plan,
            "block": self.block,
            "trial": self.trial,
            "record": self.record.to_dict(),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "VerifyJob":
        """Build the record that :meth:`to_dict` came from."""
        return VerifyJob(
            plan=data["plan"],
            block=data["block"],
            trial=data["trial"],
            record=TrialRecord.from_dict(data["record"]),
        )


def _plain(value: Any) -> Any:
    """Return nested data with enums as their values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    return None if data is None else Estimate(**data)


def _candidate(data: Mapping[str, Any]) -> CandidateResult:
    return CandidateResult(
        **{
            **data,
            "decision": Decision(data["decision"]),
            "gain_ratio": _estimate(data["gain_ratio"]),
            "objective": _estimate(data["objective"]),
            "constraints": [
                ConstraintCheck(
                    **{
                        **entry,
                        "measured": _estimate(entry["measured"]),
                        "baseline": _estimate(entry["baseline"]),
                        "verdict": Verdict(entry["verdict"]),
                    }
                )
                for entry in data["constraints"]
            ],
        }
    )


def read_verification(path: Path) -> Verification | None:
    """Read ``verification.json``; None where there is none.

    Raises:
        SweepError: It cannot be read.
    """
    if not path.exists():
        return None
    try:
        return Verification.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SweepError(
            f"{path} cannot be read: {error}.", "Remove it and run `autotune verify` again."
        ) from error
