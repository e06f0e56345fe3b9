"""Searching in recorded measurements: the optimum is found, through Tune as without it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autotune.landscape import Landscape, read_landscape
from autotune.objective import TrialState
from autotune.replay import judge, run_directly, run_in_tune, step_of
from autotune.settings import SearchConfig

LANDSCAPES = Path(__file__).parents[1] / "landscapes"
MICRO = "ppo_micro_batch_size_per_gpu"


def settings(**changes: Any) -> SearchConfig:
    values: dict[str, Any] = {
        "sampler": "model",
        "num_trials": 8,
        "max_concurrent": 1,
        "seed": 0,
        "num_startup_trials": 3,
    }
    return SearchConfig(**{**values, **changes})


def measured() -> Landscape:
    return read_landscape(LANDSCAPES / "2xh200_ppo_microbatch.json")


def simulated() -> Landscape:
    return read_landscape(LANDSCAPES / "simulated_a.json")


def test_the_best_micro_batch_of_a_measured_landscape_is_found() -> None:
    found = run_directly(measured(), settings(), seed=0)
    assert found.best is not None and found.best.setting == {MICRO: 64}
    assert found.optimum_ratio == 1.0


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_twenty_trials_come_near_the_optimum_of_two_thousand_settings() -> None:
    found = run_directly(simulated(), settings(num_trials=20, num_startup_trials=4), seed=1)
    assert found.is_feasible
    assert found.optimum_ratio > 0.9
    assert found.num_failed <= 2


def test_the_best_settings_are_measured_again_inside_the_budget() -> None:
    found = run_directly(measured(), settings(num_trials=6, confirm_ratio=0.4), seed=0)
    assert len(found.records) == 6
    sizes = [record.setting[MICRO] for record in found.records]
    assert len(set(sizes[:4])) == 4
    assert set(sizes[4:]) <= set(sizes[:4])


def test_a_search_goes_on_in_its_folder(tmp_path: Path) -> None:
    whole = run_directly(measured(), settings(num_trials=5), seed=3, folder=tmp_path / "a")
    assert len(whole.records) == 5
    again = run_directly(measured(), settings(num_trials=7), seed=3, folder=tmp_path / "a")
    assert again.records[:5] == whole.records


def test_a_space_with_one_setting_is_measured_and_measured_again() -> None:
    landscape = measured()
    alone = dataclasses.replace(landscape, rows=landscape.rows[:1])
    found = run_directly(alone, settings(num_trials=10, confirm_ratio=0.2), seed=0)
    assert [record.setting for record in found.records] == [landscape.baseline] * 3
    assert found.optimum_ratio == 1.0


def test_a_space_in_which_everything_fails_exports_nothing() -> None:
    landscape = measured()
    failing = [
        dataclasses.replace(row, state=TrialState.OUT_OF_MEMORY, repetitions=())
        for row in landscape.rows
    ]
    found = run_directly(dataclasses.replace(landscape, rows=tuple(failing)), settings(), seed=0)
    assert found.best is None and found.num_failed == 8


def test_a_sweep_without_a_feasible_trial_exports_nothing() -> None:
    landscape = measured()
    assert judge(landscape, []).optimum_ratio == 0.0
    assert judge(landscape, []).best is None


def test_a_played_back_step_scatters_around_its_trial() -> None:
    landscape = measured()
    suggestion = {"number": 4, "attempt": 0, "setting": {MICRO: 8}, "params": {}, "overrides": []}
    record = landscape.trial(suggestion, 0)
    speeds = [step_of(suggestion, record, step, 0).metrics["perf/throughput"] for step in (1, 2)]
    assert speeds[0] != speeds[1]
    assert speeds[0] == pytest.approx(record.value(landscape.objective), rel=0.15)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_tunes_controller_runs_the_same_search_and_stops_bad_trials_early(tmp_path: Path) -> None:
    found = run_in_tune(
        measured(),
        settings(
            num_trials=7, max_concurrent=2, confirm_ratio=0.0, first=[{MICRO: 64}, {MICRO: 2}]
        ),
        seed=0,
        folder=tmp_path / "sweep",
    )
    assert [record.number for record in found.records] == list(range(7))
    assert len({record.setting[MICRO] for record in found.records}) == 7
    stopped = [record for record in found.records if record.state is TrialState.STOPPED]
    assert stopped and all("beyond both intervals" in record.cause for record in stopped)
    assert found.best is not None and found.best.setting == {MICRO: 64}
