"""The records of a verification survive their way through JSON."""

import json

import pytest
from verify_cases import LIMIT, OBJECTIVE, record

from autotune.verification import (
    CandidateResult,
    ConstraintCheck,
    Decision,
    Estimate,
    Verdict,
    Verification,
    VerifyJob,
)

GAIN = Estimate(value=1.5, low=1.4, high=1.6, num_jobs=4)
SPEED = Estimate(value=150.0, low=149.0, high=151.0, num_jobs=4)
CHECKS = [
    ConstraintCheck(
        metric=LIMIT.metric,
        max=LIMIT.max,
        measured=Estimate(value=0.1, low=0.09, high=0.11, num_jobs=4),
        baseline=None,
        verdict=Verdict.KEPT,
        absent="",
    )
]


def verification(decision: Decision = Decision.PROVEN) -> Verification:
    candidate = CandidateResult(
        number=3,
        setting={"ppo_micro_batch_size_per_gpu": 8},
        overrides=["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"],
        decision=decision,
        reason="1.5 [1.4, 1.6] times the base job, all constraints kept.",
        gain_ratio=GAIN,
        objective=SPEED,
        constraints=CHECKS,
        num_jobs=4,
    )
    return Verification(
        sweep="tiny",
        objective=OBJECTIVE,
        confidence=0.95,
        interval_width_ratio=0.2,
        baseline=Estimate(value=100.0, low=99.0, high=101.0, num_jobs=4),
        candidates=[candidate],
        winner=3 if decision is Decision.PROVEN else None,
        num_jobs=8,
        max_jobs=8,
        why_ended="the interval is narrow enough",
        gpu_seconds=640.0,
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:08:00+00:00",
    )


@pytest.mark.parametrize("decision", list(Decision))
def test_a_verification_is_the_same_after_json(decision: Decision) -> None:
    written = json.dumps(verification(decision).to_dict(), allow_nan=False)
    assert Verification.from_dict(json.loads(written)) == verification(decision)


def test_a_verification_of_another_schema_is_refused() -> None:
    data = {**verification().to_dict(), "schema_version": 99}
    with pytest.raises(ValueError, match="schema_version is 99, not 1"):
        Verification.from_dict(data)


def test_a_job_is_the_same_after_json() -> None:
    job = VerifyJob(plan="p", block=1, trial=3, record=record(2, 100.0))
    assert VerifyJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_a_candidate_is_found_by_its_number() -> None:
    found = verification()
    assert found.of(3) is found.candidates[0]
    assert found.of(4) is None


def test_the_width_of_an_interval_is_relative_to_its_value() -> None:
    assert GAIN.width_ratio == pytest.approx(0.2 / 1.5)
