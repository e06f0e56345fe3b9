"""The answer of a sweep, from records whose answer is known by hand."""

import shlex
from pathlib import Path

import pytest
from report_cases import (
    MICRO,
    THROUGHPUT,
    failed,
    sweep_data,
    trial,
    two_objectives,
)

from autotune.objective import TrialState
from autotune.report.answer import Change, Verdict, answer, gpu_seconds
from autotune.verification import (
    CandidateResult,
    ConstraintCheck,
    Decision,
    Estimate,
    Verification,
    VerifyJob,
)
from autotune.verification import Verdict as ConstraintVerdict


def test_the_best_feasible_trial_wins_by_its_ratio_to_the_baseline() -> None:
    found = answer(sweep_data([trial(0), trial(1, 150.0), trial(2, 900.0, memory=0.99)]))
    assert found.winner is not None and found.winner.number == 1
    assert found.gain is not None and found.gain.ratio == 1.5
    assert found.verdict is Verdict.NOT_VERIFIED


def test_the_constraint_that_refused_most_better_trials_binds() -> None:
    records = [trial(0), trial(1, 150.0), trial(2, 900.0, memory=0.99), trial(3, 50.0, memory=0.95)]
    found = answer(sweep_data(records))
    assert found.binding == "peak_memory_ratio"
    assert [limit.num_refused for limit in found.limits] == [1, 0]


def test_headroom_is_what_is_left_of_the_limit() -> None:
    limits = {limit.metric: limit for limit in answer(sweep_data([trial(0)])).limits}
    assert limits["peak_memory_ratio"].headroom_ratio == pytest.approx(4 / 9)
    assert limits["exposed_comm_ratio"].headroom_ratio is None
    assert limits["exposed_comm_ratio"].reason == "no profiled step finished"


def test_without_a_winner_the_limits_are_about_the_closest_trial() -> None:
    found = answer(sweep_data([trial(0, memory=0.99), trial(1, memory=0.92)]))
    assert found.winner is None and found.closest is not None and found.closest.number == 1
    assert found.verdict is Verdict.NOTHING_FEASIBLE
    assert found.limits[0].value == 0.92 and found.limits[0].num_refused == 2
    assert found.changes == () and found.production is None


def test_changes_are_against_the_baseline() -> None:
    assert answer(sweep_data([trial(0), trial(1, 150.0)])).changes == (
        Change(knob=MICRO, was=2, now=8),
    )


def test_a_sweep_whose_baseline_still_runs_has_changes_from_nothing_known() -> None:
    found = answer(sweep_data([trial(1)]))
    assert found.gain is None
    assert Change(knob=MICRO, was=None, now=8) in found.changes


def test_nothing_finished_is_not_the_same_as_nothing_feasible() -> None:
    assert answer(sweep_data([])).verdict is Verdict.NOTHING_FINISHED


def test_costs_are_counted_by_outcome() -> None:
    records = [trial(0), trial(1, memory=0.99), failed(2), failed(3)]
    costs = {cost.outcome: cost for cost in answer(sweep_data(records)).costs}
    assert {name: cost.num_trials for name, cost in costs.items()} == {
        "feasible": 1,
        "infeasible": 1,
        "out_of_memory": 2,
    }
    assert costs["feasible"].gpu_hours == pytest.approx(8 * 100 / 3600)
    assert costs["out_of_memory"].gpu_hours == pytest.approx(2 * 8 * 100 / 3600)


def test_a_lost_trial_costs_what_its_clock_says() -> None:
    assert gpu_seconds(failed(1, TrialState.INFRASTRUCTURE), num_ranks=8) == 800
    measured_cost = trial(1, metrics={**trial(1).metrics, "gpu_seconds": 5.0})
    assert gpu_seconds(measured_cost, num_ranks=8) == 5.0


def test_there_is_no_production_command_before_best_yaml_is_there() -> None:
    assert answer(sweep_data([trial(0)], exported=None)).production is None


def test_a_file_of_another_setting_is_no_production_command() -> None:
    records = [trial(0), trial(1, 150.0), trial(2, 140.0)]
    assert answer(sweep_data(records, exported=2)).production is None
    again = trial(3, 149.0, setting=trial(1).setting)
    assert answer(sweep_data([*records, again], exported=3)).production is not None


def test_the_baselines_own_settings_are_no_production_command() -> None:
    assert answer(sweep_data([trial(0), trial(1, 50.0)], exported=0)).production is None


def test_a_production_command_survives_a_shell() -> None:
    data = sweep_data([trial(0), trial(1, 150.0)], folder=Path("/my sweeps/demo"))
    command = answer(data).production
    assert command is not None and shlex.split(command)[4] == "/my sweeps/demo"


def test_two_objectives_have_a_front_of_feasible_trials() -> None:
    records = [trial(0), trial(1, 150.0, memory=0.7), trial(2, 90.0, memory=0.6)]
    records += [trial(3, 80.0, memory=0.3), trial(4, 900.0, memory=0.99)]
    found = answer(two_objectives(records))
    assert found.trade_off == "peak_memory_ratio"
    assert [record.number for record in found.front] == [1, 0, 3]
    assert answer(sweep_data(records)).front == ()


def test_the_jobs_of_a_verification_have_a_cost_of_their_own() -> None:
    job = VerifyJob(plan="p", block=0, trial=0, record=trial(0))
    found = answer(sweep_data([trial(0), trial(1, 150.0)], verify_jobs=[job, job]))
    assert found.proof_gpu_hours == pytest.approx(2 * 8 * 100 / 3600)
    assert sum(cost.gpu_hours for cost in found.costs) == pytest.approx(2 * 8 * 100 / 3600)
    assert answer(sweep_data([trial(0)])).proof_gpu_hours is None


def verification(decision: Decision, low: float, high: float) -> Verification:
    """Trial 1 compared with the baseline in five pairs of cold jobs."""
    memory = Estimate(value=0.45, low=0.4, high=0.54, num_jobs=5)
    check = ConstraintCheck(
        metric="peak_memory_ratio",
        max=0.9,
        measured=memory,
        baseline=Estimate(value=0.3, low=0.3, high=0.3, num_jobs=5),
        verdict=ConstraintVerdict.KEPT,
        absent="",
    )
    candidate = CandidateResult(
        number=1,
        setting=dict(trial(1).setting),
        overrides=[],
        decision=decision,
        reason="",
        gain_ratio=Estimate(value=(low + high) / 2, low=low, high=high, num_jobs=5),
        objective=Estimate(value=50.0 * (low + high), low=50.0, high=500.0, num_jobs=5),
        constraints=[check],
        num_jobs=5,
    )
    return Verification(
        sweep="demo",
        objective=THROUGHPUT,
        confidence=0.95,
        interval_width_ratio=0.1,
        baseline=Estimate(value=100.0, low=90.0, high=110.0, num_jobs=5),
        candidates=[candidate],
        winner=1 if decision is Decision.PROVEN else None,
        num_jobs=10,
        max_jobs=15,
        why_ended="",
        gpu_seconds=100.0,
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:10:00+00:00",
    )


def test_a_proven_trial_wins_over_a_luckier_one_with_the_verified_interval() -> None:
    proof = verification(Decision.PROVEN, 1.5, 1.7)
    found = answer(sweep_data([trial(0), trial(1, 150.0), trial(2, 170.0)], verification=proof))
    assert found.verdict is Verdict.PROVEN
    assert found.winner is not None and found.winner.number == 1
    assert found.gain is not None and (found.gain.low, found.gain.high) == (1.5, 1.7)
    assert found.gain.basis == "5 pairs (10 cold jobs), interleaved"
    assert found.gain.is_verified and (found.gain.baseline, found.gain.winner) == (100.0, 160.0)


def test_verified_limits_carry_the_interval_over_cold_jobs() -> None:
    proof = verification(Decision.PROVEN, 1.5, 1.7)
    [memory, exposed] = answer(sweep_data([trial(0), trial(1, 150.0)], verification=proof)).limits
    assert (memory.value, memory.low, memory.high, memory.baseline) == (0.45, 0.4, 0.54, 0.3)
    assert exposed.low is None


@pytest.mark.parametrize("decision", [Decision.NOT_PROVEN, Decision.WORSE])
def test_a_verification_that_proves_nothing_is_said(decision: Decision) -> None:
    proof = verification(decision, 0.9, 1.1)
    found = answer(sweep_data([trial(0), trial(1, 150.0)], verification=proof))
    assert found.verdict.value == decision.value
    assert found.gain is not None and found.gain.low == 0.9


def test_a_repetition_of_the_baseline_that_wins_is_the_baseline() -> None:
    again = trial(7, 101.0, setting=trial(0).setting, params=trial(0).params)
    found = answer(sweep_data([trial(0), again]))
    assert found.verdict is Verdict.BASELINE_IS_BEST and found.gain is None
    assert [record.number for record in found.repetitions] == [0, 7]
