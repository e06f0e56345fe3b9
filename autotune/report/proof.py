"""The proof of a verification: its cold jobs one by one, the pairs' ratios, how well it is known.

Runs in whatever process reports. Pure functions from the records of ``verify.jsonl`` and
``verification.json`` to text; what the jobs prove was decided by :mod:`autotune.comparison`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.objective import BASELINE, TrialRecord, TrialState, is_maximised
from autotune.report.reading import SweepData
from autotune.report.text import (
    duration_s,
    format_duration,
    format_value,
    plural,
    ratio_text,
)
from autotune.report.verify_text import hours_text, knowledge_text, setting_name
from autotune.verification import Verification, VerifyJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofJob:
    """One cold job as a row of a table."""

    number: int
    """Its place in the order in which the jobs ran, from 1."""
    block: int
    """From 1; a block holds the base job and each candidate once."""
    setting: str
    objective: str
    limits: tuple[tuple[str, bool], ...]
    """Each constraint's value, and whether its limit is broken."""
    state: str
    cause: str
    """Why it failed; empty when it completed."""
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRatio:
    """What one block says of one candidate."""

    block: int
    """From 1."""
    candidate: str
    ratio: float
    """How many times better than the base job of the same block; above 1 is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A verification with its data."""

    objective: str
    metrics: tuple[str, ...]
    """Metrics of the constraints, the columns of ``ProofJob.limits``."""
    jobs: tuple[ProofJob, ...]
    pairs: tuple[PairRatio, ...]
    sentences: tuple[str, ...]
    """What is known of each candidate, and how well."""
    cost: str


def proof_of(data: SweepData) -> Proof | None:
    """Return the data behind a sweep's verification; None without one."""
    found = data.verification
    if found is None:
        return None
    jobs = jobs_of(found, data.verify_jobs)
    metrics = tuple(constraint.metric for constraint in data.config.constraints)
    return Proof(
        objective=found.objective,
        metrics=metrics,
        jobs=tuple(_row(at, job, found, metrics) for at, job in enumerate(jobs, start=1)),
        pairs=tuple(pair_ratios(jobs, found)),
        sentences=tuple(
            f"{setting_name(candidate.number).capitalize()}: {knowledge_text(candidate, found)}"
            for candidate in found.candidates
        ),
        cost=hours_text(found, data.config.resources.device),
    )


def begun_jobs(data: SweepData) -> list[VerifyJob]:
    """Return the jobs of a verification that has no outcome yet; none where there is no such."""
    last = [job for job in data.verify_jobs if job.plan == data.verify_jobs[-1].plan]
    found = data.verification
    return [] if found is not None and jobs_of(found, last) else last


def begun_line(data: SweepData) -> str:
    """Say that a verification has begun and has no outcome yet; empty where none has."""
    jobs = begun_jobs(data)
    if not jobs:
        return ""
    newer = "newer " if data.verification is not None else ""
    ended = "" if data.is_running else " It was interrupted: the same command goes on with it."
    return (
        f"A {newer}verification has begun and has no outcome yet; {plural(len(jobs), 'cold job')} "
        f"ran.{ended}"
    )


def jobs_of(found: Verification, jobs: Sequence[VerifyJob]) -> list[VerifyJob]:
    """Return the jobs of a verification; none where the file holds only those of others.

    ``verify.jsonl`` holds every verification of a folder, and ``verification.json`` the last one.
    """
    plans: dict[str, list[VerifyJob]] = {}
    for job in jobs:
        plans.setdefault(job.plan, []).append(job)
    for ran in reversed(plans.values()):
        start = min(job.record.started_at for job in ran)
        if len(ran) == found.num_jobs and start == found.started_at:
            return ran
    return []


def pair_ratios(jobs: Sequence[VerifyJob], found: Verification) -> list[PairRatio]:
    """Return each candidate against the base job of its own block, in the order of the blocks."""
    values = {
        (job.block, job.trial): value
        for job in jobs
        if (value := job.record.value(found.objective)) is not None and value > 0
    }
    pairs = []
    for block, trial in sorted(values):
        base = values.get((block, BASELINE))
        if trial != BASELINE and base is not None:
            value = values[block, trial]
            ratio = value / base if is_maximised(found.objective) else base / value
            pairs.append(PairRatio(block=block + 1, candidate=setting_name(trial), ratio=ratio))
    return pairs


def ratios_text(pairs: Sequence[PairRatio]) -> list[str]:
    """Return the pairs' ratios, a line a candidate."""
    by_candidate: dict[str, list[str]] = {}
    for pair in pairs:
        by_candidate.setdefault(pair.candidate, []).append(f"{ratio_text(pair.ratio)}×")
    return [
        f"{name.capitalize()} against the baseline, pair by pair: {', '.join(ratios)}."
        for name, ratios in by_candidate.items()
    ]


def _row(
    number: int, job: VerifyJob, found: Verification, metrics: Sequence[str]
) -> ProofJob:
    record = job.record
    is_complete = record.state is TrialState.COMPLETE
    return ProofJob(
        number=number,
        block=job.block + 1,
        setting=setting_name(job.trial),
        objective=format_value(found.objective, record.value(found.objective)),
        limits=tuple(_limit(record, metric) for metric in metrics),
        state=record.state.value.replace("_", " "),
        cause="" if is_complete else record.cause,
        time=format_duration(duration_s(record)),
    )


def _limit(record: TrialRecord, metric: str) -> tuple[str, bool]:
    violation = record.violations.get(metric)
    value = record.value(metric)
    return format_value(metric, value), violation is not None and violation > 0
