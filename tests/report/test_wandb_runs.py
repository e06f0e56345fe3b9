"""What goes into wandb, before wandb sees it."""

from dataclasses import replace

from report_cases import MICRO, failed, measured, sweep_data, trial
from test_answer import verification

from autotune.objective import TrialState
from autotune.report.answer import answer
from autotune.report.wandb_runs import (
    limits_table,
    proof_table,
    report_run,
    step_numbers,
    trial_run,
    trials_table,
)
from autotune.verification import Decision


def test_a_trial_has_its_knobs_as_config_and_its_steps_as_history() -> None:
    data = sweep_data([trial(0), trial(1, 150.0)], {1: measured(1, [149.0, 151.0])})
    run = trial_run(data, data.trials[1])
    assert run.key == "trial-0001" and run.job_type == "trial" and not run.failed
    assert run.config[MICRO] == 8 and run.config["trial"] == 1
    assert [step for step, _ in run.history] == [1, 2, 3]
    assert [numbers["perf/throughput"] for _, numbers in run.history] == [1.0, 149.0, 151.0]
    kinds = [numbers["step_kind"] for _, numbers in run.history]
    assert kinds == ["warmup", "measured", "measured"]


def test_what_was_not_measured_is_a_reason_and_never_a_number() -> None:
    data = sweep_data([trial(0)])
    summary = trial_run(data, data.trials[0]).summary
    assert "exposed_comm_ratio" not in summary
    assert summary["absent/exposed_comm_ratio"] == "no profiled step finished"


def test_a_failed_trial_is_a_failed_run_with_its_cause() -> None:
    data = sweep_data([trial(0), failed(1)])
    run = trial_run(data, data.trials[1])
    assert run.failed and run.tags == ("out_of_memory",)
    assert run.summary["cause"] == "rank 1 ran out of memory"


def test_a_trial_that_was_stopped_early_is_no_failed_run() -> None:
    data = sweep_data([trial(0), failed(1, TrialState.STOPPED)])
    run = trial_run(data, data.trials[1])
    assert not run.failed and run.tags == ("stopped",)


def test_a_number_of_every_rank_becomes_one_number_a_rank() -> None:
    [_, step] = measured(0, [1.0])
    step = replace(step, metrics={"autotune/kl_per_rank": [1e-9, 2e-9], "x": None, "y": 3.0})
    assert step_numbers(step) == {
        "step_kind": "measured",
        "autotune/kl_per_rank/rank_0": 1e-9,
        "autotune/kl_per_rank/rank_1": 2e-9,
        "y": 3.0,
    }


def test_the_sweep_has_the_answer_as_summary() -> None:
    data = sweep_data([trial(0), trial(1, 150.0)])
    run = report_run(data, answer(data))
    assert run.key == "report" and run.tags == ("not_verified",)
    assert run.summary["winner"] == 1 and run.summary["gain/ratio"] == 1.5
    assert run.summary["winner/step_s"] == 200.0 / 150.0
    assert run.summary["production"].endswith("--config-name best")


def test_tables_hold_every_trial_and_every_constraint() -> None:
    data = sweep_data([trial(0), failed(1)])
    columns, rows = trials_table(data, answer(data))
    assert [row[0] for row in rows] == [0, 1] and {len(row) for row in rows} == {len(columns)}
    assert rows[1][columns.index("cause")] == "rank 1 ran out of memory"
    columns, rows = limits_table(answer(data))
    assert [row[0] for row in rows] == ["peak_memory_ratio", "exposed_comm_ratio"]
    assert {len(row) for row in rows} == {len(columns)}


def test_the_proof_has_a_row_for_each_verified_setting() -> None:
    proof = verification(Decision.PROVEN, 1.5, 1.7)
    lost = replace(proof.candidates[0], number=2, decision=Decision.WORSE, gain_ratio=None)
    columns, rows = proof_table(replace(proof, candidates=[*proof.candidates, lost]))
    assert [dict(zip(columns, row, strict=True))["low"] for row in rows] == [1.5, None]
    assert [row[:2] for row in rows] == [[1, "proven"], [2, "worse"]]
    data = sweep_data([trial(0), trial(1, 150.0)], verification=proof)
    assert "proof" in report_run(data, answer(data)).tables
    assert "proof" not in report_run(sweep_data([trial(0)]), answer(data)).tables
