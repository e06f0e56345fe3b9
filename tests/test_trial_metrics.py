"""Metrics of a trial from its steps, and against the baseline, worked out by hand."""

import dataclasses
import math
from collections.abc import Mapping

import pytest
from objective_cases import THROUGHPUT, record, step

from autotune.metrics import DETAILS, METRICS
from autotune.objective import StepKind, StepRecord, StepValue, TrialRecord
from autotune.settings import ConstraintConfig
from autotune.trial_metrics import against_baseline, summarise


def measured(*values: Mapping[str, StepValue], attempt: int = 0) -> list[StepRecord]:
    return [
        step(index, StepKind.MEASURED, attempt=attempt, metrics=dict(metrics))
        for index, metrics in enumerate(values, start=2)
    ]


def summary(steps: list[StepRecord]) -> tuple[dict[str, float | None], dict[str, str]]:
    own = summarise(steps, startup_s=60.0, gpu_seconds=240.0)
    return own.metrics, own.absent


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


def test_a_trial_whose_rollout_was_replayed_has_the_speed_of_training_alone() -> None:
    speed, time_s = "update_only_tokens_per_s_per_gpu", "update_only_s"
    replayed = [
        {"perf/throughput": None, "timing_s/step": None, f"autotune/{speed}": 8.0 * number}
        for number in (1, 3, 2)
    ]
    steps = [
        dataclasses.replace(one, absent=dict.fromkeys(("perf/throughput", "timing_s/step"), "why"))
        for one in measured(*({**metrics, f"autotune/{time_s}": 2.0} for metrics in replayed))
    ]
    own = summarise(steps, startup_s=1.0, gpu_seconds=1.0)
    assert (own.metrics[speed], own.metrics[time_s]) == (16.0, 2.0)
    assert own.intervals.keys() == {speed, time_s}
    assert (own.metrics[THROUGHPUT], own.metrics["step_s"]) == (None, None)
    assert own.absent[THROUGHPUT] == own.absent["step_s"] == "step 2: why"
    assert own.absent["profiler_slowdown_ratio"] == "step 2: why"


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


def test_the_memory_of_a_profiled_step_is_the_profilers() -> None:
    steps = [
        *measured({"autotune/peak_reserved_gib": [3.0, 4.0]}),
        step(5, StepKind.PROFILED, metrics={"autotune/peak_reserved_gib": [9.0, 9.0]}),
    ]
    assert summary(steps)[0]["peak_reserved_gib"] == 4.0


def test_memory_and_communication_of_a_phase_are_kept_where_it_ran() -> None:
    memory, share = "phase_ref_peak_allocated_gib", "phase_ref_exposed_comm_ratio"
    profiled = {f"autotune/{share}": 0.25, f"autotune/{memory}": [7.0]}
    steps = [
        *measured({f"autotune/{memory}": [1.0, 2.0]}, {f"autotune/{memory}": [1.5, 1.5]}),
        step(5, StepKind.PROFILED, metrics=profiled),
    ]
    metrics, _ = summary(steps)
    details = {name: metrics[name] for name in DETAILS if name in metrics}
    assert details == {memory: 2.0, share: 0.25}


def test_a_kind_of_collective_is_kept_where_it_occurred() -> None:
    metrics, _ = summary([step(5, StepKind.PROFILED, metrics={"autotune/comm_all_gather_s": 0.5})])
    assert metrics["comm_all_gather_s"] == 0.5
    assert "comm_broadcast_s" not in metrics


def test_the_cost_of_recording_is_held_against_measured_steps() -> None:
    steps = [
        *measured({"timing_s/step": 2.0}),
        step(5, StepKind.PROFILED, metrics={"autotune/profiled_step_s": 2.5}),
    ]
    assert summary(steps)[0]["profiler_slowdown_ratio"] == 0.25


def test_repeated_measurements_have_an_interval_that_holds_their_median() -> None:
    steps = measured(*({"perf/throughput": value} for value in (10.0, 12.0, 11.0, 30.0)))
    own = summarise(steps, startup_s=60.0, gpu_seconds=240.0)
    low, high = own.intervals[THROUGHPUT]
    middle = own.metrics[THROUGHPUT]
    assert middle is not None and 10.0 <= low < middle < high <= 30.0
    assert own.intervals.keys() == {THROUGHPUT}


PROBE = {
    "autotune/probe_kl": 3e-6,
    "autotune/probe_kl_again": 3.5e-6,
    "autotune/grad_sketch": [1.0, 0.0],
    "autotune/grad_sketch_again": [1.0, 1e-4],
}


def probed(number: int, probe_kl: float, sketch: list[float]) -> TrialRecord:
    """A completed trial whose probe was run."""
    values = {"autotune/probe_kl": probe_kl, "autotune/grad_sketch": sketch}
    steps = [step(1, StepKind.WARMUP, metrics={**PROBE, **values})]
    own = summarise(steps, startup_s=60.0, gpu_seconds=240.0)
    return record(number, metrics=own.metrics, absent=own.absent, grad_sketch=own.grad_sketch)


def test_the_baselines_own_consistency_is_the_noise_floor() -> None:
    metrics = against_baseline(probed(0, 3e-6, [1.0, 0.0]), None, []).metrics
    assert metrics["kl_drift"] == pytest.approx(0.5e-6)
    assert metrics["grad_deviation"] == pytest.approx(0.5e-8, rel=1e-6)


def test_a_trial_is_compared_with_the_baseline_and_judged_again() -> None:
    trial = probed(1, 2e-6, [0.0, 2.0])
    limit = ConstraintConfig(metric="grad_deviation", max=0.005)
    judged = against_baseline(trial, probed(0, 3e-6, [1.0, 0.0]), [limit])
    assert judged.metrics["kl_drift"] == pytest.approx(1e-6)
    assert judged.metrics["grad_cosine"] == pytest.approx(0.0)
    assert judged.violations == {"grad_deviation": pytest.approx(199.0)}
    assert not judged.feasible


def test_without_a_baseline_the_comparison_is_absent_with_a_reason() -> None:
    judged = against_baseline(probed(1, 2e-6, [0.0, 2.0]), None, [])
    assert judged.metrics["grad_deviation"] is None and judged.metrics["kl_drift"] is None
    assert judged.absent["grad_deviation"] == "the baseline has not finished"


def test_a_trial_that_could_not_be_probed_says_why() -> None:
    reason = "FSDP1 has no parameters of its own"
    steps = [
        step(
            1,
            StepKind.WARMUP,
            metrics={"autotune/grad_sketch": None},
            absent={"autotune/grad_sketch": reason},
        )
    ]
    own = summarise(steps, startup_s=60.0, gpu_seconds=240.0)
    trial = record(1, metrics=own.metrics, absent=own.absent)
    judged = against_baseline(trial, probed(0, 3e-6, [1.0, 0.0]), [])
    assert judged.absent["grad_cosine"] == f"step 1: {reason}"


def test_one_nan_spoils_a_metric_and_names_its_step() -> None:
    metrics, absent = summary(measured({"perf/throughput": 5.0}, {"perf/throughput": math.nan}))
    assert metrics[THROUGHPUT] is None
    assert absent[THROUGHPUT] == "step 3: not a finite number (nan)"


def test_a_step_without_a_value_leaves_the_others() -> None:
    metrics, _ = summary(measured({"timing_s/ref": 5.0}, {}))
    assert metrics["phase_ref_s"] == 5.0
