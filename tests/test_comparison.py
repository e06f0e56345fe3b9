"""The plan of a verification and its decision, with answers by hand and over many seeds."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from verify_cases import LIMIT, OBJECTIVE, look, record, run

from autotune.comparison import BASELINE, Finding, Plan, assess, estimate, order_of_block
from autotune.objective import TrialState
from autotune.verification import Decision, Verdict, VerifyJob


def plan(*candidates: int, max_jobs: int = 8, width: float = 0.01) -> Plan:
    return Plan(
        candidates=candidates or (1,), max_jobs=max_jobs, interval_width_ratio=width
    )


def decide(
    baseline: list[float], candidate: list[float], *, exposed: float = 0.1, error: float = 0.05
) -> Finding:
    return assess(
        [record(0, value) for value in baseline],
        [record(0, value, exposed=exposed) for value in candidate],
        objective=OBJECTIVE,
        constraints=[LIMIT],
        error=error,
    )


def test_jobs_are_interleaved_a_b_b_a() -> None:
    jobs, _ = run(plan(7, max_jobs=8), lambda trial, number: 100.0 + number)
    assert [job.trial for job in jobs] == [0, 7, 7, 0, 0, 7, 7, 0]
    assert [job.block for job in jobs] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_every_other_block_of_several_candidates_runs_in_reverse() -> None:
    assert order_of_block(0, (4, 9)) == [0, 4, 9]
    assert order_of_block(1, (4, 9)) == [9, 4, 0]


def test_the_gain_is_the_geometric_mean_of_the_blocks_with_the_t_interval_of_the_logarithms() -> (
    None
):
    powers = [100 * math.exp(power) for power in (1, 2, 3)]
    found = decide([100.0] * 3, powers).gain_ratio
    assert found is not None
    assert math.log(found.value) == pytest.approx(2.0)
    assert math.log(found.high) - 2 == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert found.num_jobs == 3


def test_a_drift_that_all_blocks_share_leaves_no_trace() -> None:
    found = decide([100.0, 150.0, 90.0], [120.0, 180.0, 108.0]).gain_ratio
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((1.2, 1.2, 1.2))


@pytest.mark.parametrize(
    ("candidate", "exposed", "decision", "reason"),
    [
        ([150.0, 151.0, 149.0], 0.1, Decision.PROVEN, "all constraints kept"),
        ([150.0, 90.0, 120.0], 0.1, Decision.NOT_PROVEN, "holds 1"),
        ([90.0, 91.0, 90.0], 0.1, Decision.WORSE, "slower"),
        ([150.0, 151.0, 149.0], 0.3, Decision.WORSE, "breaks exposed_comm_ratio"),
    ],
)
def test_a_decision_needs_the_whole_interval(
    candidate: list[float], exposed: float, decision: Decision, reason: str
) -> None:
    found = decide([100.0, 100.0, 100.0], candidate, exposed=exposed)
    assert (found.decision, reason in found.reason) == (decision, True), found.reason


def test_a_constraint_whose_interval_holds_the_limit_is_not_proven() -> None:
    found = assess(
        [record(0, 100.0) for _ in range(3)],
        [record(0, 150.0, exposed=value) for value in (0.15, 0.19, 0.22)],
        objective=OBJECTIVE,
        constraints=[LIMIT],
        error=0.05,
    )
    assert found.constraints[0].verdict is Verdict.UNCLEAR
    assert found.decision is Decision.NOT_PROVEN
    assert not found.is_settled(interval_width_ratio=10)


def test_a_constraint_that_was_not_measured_proves_nothing() -> None:
    found = assess(
        [record(0, 100.0) for _ in range(3)],
        [record(0, 150.0, exposed=None) for _ in range(3)],
        objective=OBJECTIVE,
        constraints=[LIMIT],
        error=0.05,
    )
    assert found.constraints[0].verdict is Verdict.NOT_MEASURED
    assert found.decision is Decision.NOT_PROVEN
    assert "no such step" in found.reason


def test_the_baselines_own_value_stands_beside_a_constraint() -> None:
    check = decide([100.0] * 3, [150.0] * 3).constraints[0]
    assert check.baseline is not None and check.baseline.value == pytest.approx(0.1)


def test_less_is_better_where_the_objective_says_so() -> None:
    before = [dataclasses.replace(record(0, 1.0), metrics={"step_s": 3.0}) for _ in range(3)]
    after = [dataclasses.replace(record(0, 1.0), metrics={"step_s": 2.0}) for _ in range(3)]
    found = assess(before, after, objective="step_s", constraints=[], error=0.05)
    assert found.gain_ratio is not None and found.gain_ratio.value == pytest.approx(1.5)


def test_an_objective_at_zero_has_no_ratio() -> None:
    found = decide([0.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert found.gain_ratio is None and "not above 0" in found.reason


def test_an_interval_of_what_is_never_below_zero_begins_at_zero() -> None:
    found = estimate([0.0, 1e-5, 5e-5], 0.05)
    assert found is not None and found.low == 0.0


def test_it_ends_at_the_first_look_with_a_narrow_interval() -> None:
    jobs, comparison = run(
        plan(max_jobs=20, width=0.1), lambda trial, number: 100 + 50 * trial + number % 2 / 100
    )
    assert len(jobs) == 6
    assert comparison.finding(1).decision is Decision.PROVEN


def test_it_ends_with_the_jobs_when_the_interval_stays_wide() -> None:
    jobs, comparison = run(
        plan(max_jobs=8), lambda trial, number: 100.0 + 20 * (number % 3) + 100 * trial
    )
    assert len(jobs) == 8
    assert comparison.finding(1).decision is Decision.PROVEN


def test_a_candidate_that_is_worse_gets_no_more_jobs() -> None:
    noise = [0.0, 0.05, -0.04, 0.03, 0.01]
    jobs, comparison = run(
        plan(1, 2, max_jobs=18), lambda trial, number: [100, 300, 20][trial] + noise[number % 5]
    )
    assert comparison.finding(2).decision is Decision.WORSE
    assert sum(job.trial == 2 for job in jobs) == 3
    assert sum(job.trial == 1 for job in jobs) == sum(job.trial == 0 for job in jobs) == 6


def test_a_cold_job_that_fails_settles_its_candidate() -> None:
    failed = record(1, None, state=TrialState.OUT_OF_MEMORY, cause="CUDA out of memory")
    jobs = [
        VerifyJob(plan="p", block=0, trial=0, record=record(0, 100.0)),
        VerifyJob(plan="p", block=0, trial=1, record=failed),
    ]
    comparison = look(plan(), jobs)
    assert comparison.next_job() is None
    assert comparison.finding(1).decision is Decision.WORSE
    assert "CUDA out of memory" in comparison.finding(1).reason


def test_a_base_job_that_fails_ends_it_without_a_proof() -> None:
    failed = record(0, None, state=TrialState.CRASH, cause="x")
    jobs = [VerifyJob(plan="p", block=0, trial=0, record=failed)]
    comparison = look(plan(), jobs)
    assert comparison.next_job() is None
    assert comparison.baseline_failure is not None and "crash: x" in comparison.baseline_failure
    assert comparison.finding(1).decision is Decision.NOT_PROVEN


def test_nothing_is_decided_between_the_looks() -> None:
    jobs, _ = run(plan(max_jobs=8), lambda trial, number: 100.0 + 50 * trial + number)
    halfway = look(plan(max_jobs=8), jobs[:6])
    assert halfway.finding(1).reason == "No planned look was reached."


def test_what_ran_counts_when_the_time_is_over() -> None:
    jobs, _ = run(plan(max_jobs=8), lambda trial, number: 100.0 + 50 * trial + number)
    ended = look(plan(max_jobs=8), jobs[:6], is_over=True)
    assert ended.finding(1).gain_ratio is not None
    assert ended.finding(1).decision is Decision.PROVEN


def all_jobs(planned: Plan, logarithms: Sequence[float], gain: float = 0.0) -> list[VerifyJob]:
    """Every job of a plan; later ones do not change what a look settled."""
    order = [
        (block, trial)
        for block in range(planned.max_blocks)
        for trial in order_of_block(block, planned.candidates)
    ]
    return [
        VerifyJob(
            plan="p",
            block=block,
            trial=trial,
            record=record(number, 1000 * math.exp(logarithms[number] + (gain if trial else 0.0))),
        )
        for number, (block, trial) in enumerate(order)
    ]


def drifting_jobs(rng: np.random.Generator, *, tail: bool) -> list[float]:
    """Logarithms of what equal jobs measure on a machine that drifts and jumps."""
    noise = rng.standard_t(3, size=40) * 0.03 if tail else rng.normal(size=40) * 0.05
    drift = np.linspace(0, rng.normal() * 0.3, 40)
    return [float(value) for value in noise + drift]


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("candidates", [(1,), (1, 2, 3)])
def test_equal_settings_are_proven_faster_in_at_most_one_of_twenty(
    candidates: tuple[int, ...], tail: bool
) -> None:
    rng = np.random.default_rng(7)
    num_runs = 400
    planned = plan(*candidates, max_jobs=36, width=0.05)
    proven = 0
    for _ in range(num_runs):
        comparison = look(planned, all_jobs(planned, drifting_jobs(rng, tail=tail)))
        found = [comparison.finding(number).decision for number in candidates]
        proven += Decision.PROVEN in found
    assert proven / num_runs <= 0.05


def test_a_gain_of_a_tenth_is_mostly_proven_at_the_noise_of_a_quiet_machine() -> None:
    rng = np.random.default_rng(3)
    planned = plan(max_jobs=16, width=0.05)
    proven = 0
    for _ in range(50):
        jobs = all_jobs(planned, list(rng.normal(size=16) * 0.03), gain=0.1)
        proven += look(planned, jobs).finding(1).decision is Decision.PROVEN
    assert proven >= 45


def test_peeking_after_every_job_would_break_the_promise() -> None:
    """The looks matter: plain 95 % intervals, looked at after every block, cry wolf too often."""
    rng = np.random.default_rng(5)
    cried = 0
    for _ in range(200):
        noise = rng.normal(size=(2, 18)) * 0.05
        before, after = (1000 * np.exp(row) for row in noise)
        cried += any(
            (gain := decide(list(before[:n]), list(after[:n])).gain_ratio) is not None
            and gain.low > 1
            for n in range(3, 19)
        )
    assert cried / 200 > 0.05


def test_the_baseline_is_trial_zero() -> None:
    assert BASELINE == 0
