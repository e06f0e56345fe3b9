"""Metrics of a trial from its steps, violations, and the choice of the best, worked out by hand."""

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from autotune.metrics import METRICS
from autotune.objective import (
    StepKind,
    StepRecord,
    StepValue,
    TrialRecord,
    TrialState,
    best_feasible,
    evaluate,
    is_better,
    least_infeasible,
    summarise,
)
from autotune.settings import ConstraintConfig

THROUGHPUT = "throughput_tokens_per_s_per_gpu"


def step(number: int, kind: StepKind, attempt: int = 0, **more: Any) -> StepRecord:
    return StepRecord(number=0, attempt=attempt, step=number, kind=kind, **more)


def measured(*values: Mapping[str, StepValue], attempt: int = 0) -> list[StepRecord]:
    return [
        step(index, StepKind.MEASURED, attempt=attempt, metrics=dict(metrics))
        for index, metrics in enumerate(values, start=2)
    ]


def summary(steps: list[StepRecord]) -> tuple[dict[str, float | None], dict[str, str]]:
    return summarise(steps, startup_s=60.0, gpu_seconds=240.0)


def record(number: int, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "number": number,
        "state": TrialState.COMPLETE,
        "params": {"ppo_micro_batch_size_per_gpu": number},
        "setting": {"ppo_micro_batch_size_per_gpu": number, "reshard_after_forward": True},
        "overrides": [],
        "metrics": {THROUGHPUT: 100.0},
        "absent": {},
        "violations": {},
        "feasible": True,
        "cause": "",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:00+00:00",
        "retries": 0,
    }
    return TrialRecord(**{**values, **changes})


def infeasible(number: int, **violations: float | None) -> TrialRecord:
    return record(number, violations=violations, feasible=False)


def failed(number: int, state: TrialState = TrialState.OUT_OF_MEMORY) -> TrialRecord:
    return record(number, state=state, metrics={}, feasible=False, cause="out of memory")


def test_every_metric_of_the_catalogue_is_a_number_or_has_a_reason() -> None:
    metrics, absent = summary([])
    assert set(metrics) == set(METRICS)
    assert set(absent) == {name for name, value in metrics.items() if value is None}


def test_throughput_is_the_median_of_measured_steps_alone() -> None:
    steps = [
        step(1, StepKind.WARMUP, metrics={"perf/throughput": 1.0}),
        *measured(*({"perf/throughput": value} for value in (10.0, 30.0, 20.0))),
        step(5, StepKind.PROFILED, metrics={"perf/throughput": 2.0}),
    ]
    assert summary(steps)[0][THROUGHPUT] == 20.0


def test_phases_are_medians_and_only_those_that_ran_are_listed() -> None:
    steps = measured({"timing_s/gen": 1.0}, {"timing_s/gen": 2.0})
    metrics, _ = summary(steps)
    assert metrics["phase_gen_s"] == 1.5
    assert "phase_values_s" not in metrics


def test_an_interrupted_attempt_does_not_mix_with_the_next_one() -> None:
    steps = measured({"perf/throughput": 5.0}) + measured({"perf/throughput": 9.0}, attempt=1)
    assert summary(steps)[0][THROUGHPUT] == 9.0


def test_kl_scatter_runs_over_all_ranks_and_measured_steps() -> None:
    # values 1, 3, 1, 3: mean 2, standard deviation 1
    steps = measured(*[{"autotune/kl_per_rank": [1.0, 3.0]}] * 2)
    metrics, _ = summary(steps)
    assert (metrics["kl_std"], metrics["kl_bias"]) == (1.0, 2.0)


def test_one_kl_value_has_a_bias_and_no_scatter() -> None:
    metrics, absent = summary(measured({"autotune/kl_per_rank": [-2e-5]}))
    assert metrics["kl_bias"] == 2e-5
    assert metrics["kl_std"] is None
    assert absent["kl_std"] == "one rank and one measured step have no scatter"


def test_reward_is_a_mean_and_kl_in_the_loss_wins_over_kl_in_the_reward() -> None:
    steps = measured(
        {"critic/score/mean": 1.0, "actor/kl_loss": 0.1, "actor/reward_kl_penalty": 9.0},
        {"critic/score/mean": 0.0, "actor/kl_loss": 0.3, "actor/reward_kl_penalty": 9.0},
    )
    metrics, _ = summary(steps)
    assert metrics["reward_mean"] == 0.5
    assert metrics["kl_to_reference"] == pytest.approx(0.2)


def test_kl_in_the_reward_is_taken_when_the_loss_has_none() -> None:
    metrics, _ = summary(measured({"actor/reward_kl_penalty": 0.25}))
    assert metrics["kl_to_reference"] == 0.25


def test_a_job_without_a_reference_says_so() -> None:
    _, absent = summary(measured({"perf/throughput": 1.0}))
    assert absent["kl_to_reference"] == "the job has no reference policy"


def test_zero_mfu_means_an_unknown_device() -> None:
    metrics, absent = summary(measured({"perf/mfu/actor": 0.0}))
    assert metrics["mfu_ratio"] is None
    assert absent["mfu_ratio"] == "verl knows no peak FLOP/s of this device"


def test_communication_is_the_median_of_profiled_steps() -> None:
    steps = [
        *measured({"autotune/comm_ratio": 0.9}),
        *(
            step(index, StepKind.PROFILED, metrics={"autotune/comm_ratio": value})
            for index, value in enumerate((0.1, 0.2, 0.6))
        ),
    ]
    assert summary(steps)[0]["comm_ratio"] == 0.2


def test_without_a_profiled_step_communication_is_absent_with_a_reason() -> None:
    metrics, absent = summary(measured({"perf/throughput": 1.0}))
    assert metrics["exposed_comm_ratio"] is None
    assert absent["exposed_comm_ratio"] == "no profiled step finished"


def test_the_reason_of_a_worker_is_passed_on() -> None:
    steps = [
        step(
            6,
            StepKind.PROFILED,
            metrics={"autotune/comm_overlap_ratio": None},
            absent={"autotune/comm_overlap_ratio": "there was no communication"},
        )
    ]
    assert summary(steps)[1]["comm_overlap_ratio"] == "step 6: there was no communication"


def test_peak_memory_is_the_largest_of_all_steps() -> None:
    steps = [
        step(1, StepKind.WARMUP, metrics={"autotune/peak_memory_ratio": 0.7}),
        *measured({"autotune/peak_memory_ratio": 0.5}),
    ]
    assert summary(steps)[0]["peak_memory_ratio"] == 0.7


def test_one_nan_spoils_a_metric_and_names_its_step() -> None:
    metrics, absent = summary(measured({"perf/throughput": 5.0}, {"perf/throughput": math.nan}))
    assert metrics[THROUGHPUT] is None
    assert absent[THROUGHPUT] == "step 3: not a finite number (nan)"


def test_a_step_without_a_value_leaves_the_others() -> None:
    metrics, _ = summary(measured({"timing_s/ref": 5.0}, {}))
    assert metrics["phase_ref_s"] == 5.0


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
