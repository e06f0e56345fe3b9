"""Violations, and the choice of the best, worked out by hand."""

import dataclasses
import json
import math

import pytest
from objective_cases import THROUGHPUT, record, step

from autotune.objective import (
    JobOutcome,
    Recovery,
    Start,
    StepKind,
    StepRecord,
    TrialRecord,
    TrialState,
    best_feasible,
    evaluate,
    is_better,
    least_infeasible,
    pareto_front,
)
from autotune.settings import ConstraintConfig


def infeasible(number: int, **violations: float | None) -> TrialRecord:
    return record(number, violations=violations, feasible=False)


def failed(number: int, state: TrialState = TrialState.OUT_OF_MEMORY) -> TrialRecord:
    return record(number, state=state, metrics={}, feasible=False, cause="out of memory")


def test_violation_is_relative_to_the_limit() -> None:
    violations, feasible = evaluate(
        {"kl_std": 3e-4, "peak_memory_ratio": 0.45},
        [
            ConstraintConfig(metric="kl_std", max=1e-4),
            ConstraintConfig(metric="peak_memory_ratio", max=0.9),
        ],
    )
    assert violations == {"kl_std": pytest.approx(2.0), "peak_memory_ratio": pytest.approx(-0.5)}
    assert not feasible


def test_a_value_at_its_limit_is_feasible() -> None:
    assert evaluate({"kl_std": 0.1}, [ConstraintConfig(metric="kl_std", max=0.1)]) == (
        {"kl_std": 0.0},
        True,
    )


def test_what_was_not_measured_is_listed_and_violates_nothing() -> None:
    limit = [ConstraintConfig(metric="exposed_comm_ratio", max=0.2)]
    assert evaluate({"exposed_comm_ratio": None}, limit) == ({"exposed_comm_ratio": None}, True)


def test_better_follows_the_direction_of_the_metric() -> None:
    assert is_better(2.0, 1.0, THROUGHPUT)
    assert is_better(1.0, 2.0, "step_s")
    assert not is_better(1.0, 1.0, "step_s")


def test_best_feasible_passes_over_a_faster_infeasible_trial() -> None:
    records = [
        record(0),
        record(1, metrics={THROUGHPUT: 900.0}, feasible=False),
        record(2, metrics={THROUGHPUT: 200.0}),
        record(3, metrics={THROUGHPUT: None}),
    ]
    best = best_feasible(records, THROUGHPUT)
    assert best is not None and best.number == 2


def test_the_earlier_of_two_equal_trials_is_the_best() -> None:
    best = best_feasible([record(4), record(2), record(3)], THROUGHPUT)
    assert best is not None and best.number == 2


def test_nothing_feasible_has_no_best() -> None:
    assert best_feasible([failed(0), infeasible(1, kl_std=1.0)], THROUGHPUT) is None


def test_least_infeasible_sums_only_what_is_violated() -> None:
    records = [
        infeasible(1, kl_std=0.5, peak_memory_ratio=-0.9),
        infeasible(2, kl_std=0.2, peak_memory_ratio=0.2),
        infeasible(3, kl_std=0.6, peak_memory_ratio=None),
    ]
    least = least_infeasible(records)
    assert least is not None and least.number == 2


def test_failed_trials_are_least_infeasible_only_if_there_is_no_other() -> None:
    assert least_infeasible([failed(0), infeasible(1, kl_std=99.0)]) == infeasible(1, kl_std=99.0)
    assert least_infeasible([failed(0)]) == failed(0)


def test_a_lost_trial_is_not_evidence() -> None:
    assert least_infeasible([failed(0, TrialState.INFRASTRUCTURE), record(1)]) is None


def test_trial_record_survives_json() -> None:
    written = json.dumps(failed(3).to_dict(), allow_nan=False)
    assert TrialRecord.from_dict(json.loads(written)) == failed(3)


def test_step_record_survives_json() -> None:
    original = step(2, StepKind.PROFILED, metrics={"autotune/kl_per_rank": [1e-9, -2e-9]})
    written = json.dumps(original.to_dict(), allow_nan=False)
    assert StepRecord.from_dict(json.loads(written)) == original


def test_what_is_not_finite_becomes_none_with_a_reason() -> None:
    data = record(1, metrics={THROUGHPUT: math.nan}, violations={"kl_std": math.inf}).to_dict()
    assert data["metrics"] == {THROUGHPUT: None}
    assert data["absent"] == {THROUGHPUT: "not a finite number (nan)"}
    assert data["violations"] == {"kl_std": None}


def test_a_list_with_an_infinite_value_becomes_none_with_a_reason() -> None:
    data = step(2, StepKind.MEASURED, metrics={"x": [1.0, -math.inf]}).to_dict()
    assert (data["metrics"], data["absent"]) == ({"x": None}, {"x": "not a finite number (-inf)"})


# Settings that were measured several times.


def repeated(number: int, size: int, throughput: float, kl: float = -0.5) -> TrialRecord:
    return record(
        number,
        setting={"ppo_micro_batch_size_per_gpu": size},
        metrics={THROUGHPUT: throughput},
        violations={"kl_std": kl},
        feasible=kl <= 0,
    )


def test_a_lucky_trial_does_not_win_against_a_repeated_one() -> None:
    records = [repeated(0, 1, 100.0), repeated(1, 2, 101.0), repeated(2, 1, 101.0)]
    best = best_feasible(records, THROUGHPUT)
    assert best is not None and best.setting["ppo_micro_batch_size_per_gpu"] == 1


def test_the_winner_is_quoted_by_its_trial_in_the_middle() -> None:
    records = [repeated(0, 1, 100.0), repeated(1, 1, 130.0), repeated(2, 1, 110.0)]
    best = best_feasible(records, THROUGHPUT)
    assert best is not None and best.number == 2
    best = best_feasible(records[:2], THROUGHPUT)
    assert best is not None and best.number == 0


def test_a_setting_near_its_limit_loses_to_one_that_keeps_it_clearly() -> None:
    near = [repeated(0, 8, 120.0, kl=-0.02), repeated(1, 8, 121.0, kl=-0.01)]
    clear = [repeated(2, 4, 100.0, kl=-0.4), repeated(3, 4, 101.0, kl=-0.4)]
    best = best_feasible([*near, *clear], THROUGHPUT)
    assert best is not None and best.setting["ppo_micro_batch_size_per_gpu"] == 4
    alone = best_feasible(near, THROUGHPUT)
    assert alone is not None and alone.number == 0


def test_two_repetitions_that_agree_do_not_prove_that_a_near_limit_is_kept() -> None:
    near = [repeated(0, 8, 120.0, kl=-0.08), repeated(1, 8, 121.0, kl=-0.08)]
    clear = [repeated(2, 4, 100.0, kl=-0.2)]
    best = best_feasible([*near, *clear], THROUGHPUT)
    assert best is not None and best.setting["ppo_micro_batch_size_per_gpu"] == 4


def test_where_no_limit_is_kept_clearly_the_setting_with_most_room_wins() -> None:
    near = [repeated(0, 8, 120.0, kl=-0.01), repeated(1, 8, 121.0, kl=-0.01)]
    roomier = [repeated(2, 4, 100.0, kl=-0.05), repeated(3, 4, 101.0, kl=-0.05)]
    best = best_feasible([*near, *roomier], THROUGHPUT)
    assert best is not None and best.setting["ppo_micro_batch_size_per_gpu"] == 4


def test_a_setting_whose_mean_breaks_a_limit_is_not_feasible_however_lucky_once() -> None:
    records = [repeated(0, 8, 120.0, kl=-0.05), repeated(1, 8, 121.0, kl=0.3)]
    assert best_feasible(records, THROUGHPUT) is None


def test_a_front_has_a_repeated_setting_once_and_none_that_was_feasible_by_luck() -> None:
    records = [
        repeated(0, 1, 100.0),
        repeated(1, 1, 130.0),
        repeated(2, 1, 110.0),
        repeated(3, 8, 120.0, kl=-0.05),
        repeated(4, 8, 121.0, kl=0.3),
        repeated(5, 4, 50.0),
    ]
    sizes = [0.5, 0.5, 0.5, 0.3, 0.3, 0.4]
    told = [
        dataclasses.replace(r, metrics={**r.metrics, "peak_memory_ratio": size})
        for r, size in zip(records, sizes)
    ]
    front = pareto_front(told, (THROUGHPUT, "peak_memory_ratio"))
    assert [record.number for record in front] == [2, 5]


def test_a_setting_that_failed_when_it_was_repeated_does_not_win() -> None:
    broken = record(
        1,
        setting={"ppo_micro_batch_size_per_gpu": 8},
        state=TrialState.OUT_OF_MEMORY,
        metrics={},
        feasible=False,
    )
    records = [repeated(0, 8, 120.0), broken, repeated(2, 4, 90.0)]
    best = best_feasible(records, THROUGHPUT)
    assert best is not None and best.number == 2


def test_a_stopped_trial_is_evidence_and_no_failure() -> None:
    assert TrialState.STOPPED.is_setting_fault and not TrialState.STOPPED.is_failure
    assert TrialState.OUT_OF_MEMORY.is_failure and not TrialState.INFRASTRUCTURE.is_failure


def recovered(number: int) -> TrialRecord:
    """A trial whose setting ran out of memory, and ran with a recovery rule."""
    recovery = Recovery(rule="memory: x=true", overrides=["x=true"], asked=failed(number))
    earlier = JobOutcome(start=Start.HOT, state=TrialState.OUT_OF_MEMORY, cause="out of memory")
    return record(
        number,
        overrides=["a=1", "x=true"],
        start=Start.COLD,
        other_jobs=[earlier],
        recovery=recovery,
    )


def test_a_recovered_trial_survives_its_way_through_json() -> None:
    trial = recovered(3)
    assert TrialRecord.from_dict(json.loads(json.dumps(trial.to_dict()))) == trial


def test_a_record_without_the_newer_fields_is_that_of_one_cold_job() -> None:
    data = record(3).to_dict()
    for name in ("start", "other_jobs", "recovery"):
        del data[name]
    assert TrialRecord.from_dict(data) == record(3)


def test_a_recovered_trial_knows_what_its_setting_came_to_as_it_was_asked() -> None:
    assert recovered(3).as_asked() == failed(3)
    assert record(3).as_asked() == record(3)
