"""Gains with their intervals, from steps and records whose gain is known by hand."""

import pytest
from report_cases import THROUGHPUT, measured, sweep_data, trial

from autotune.report.answer import answer
from autotune.report.gain import gain, step_interval, sweep_gain


def test_the_interval_comes_from_measured_steps_only() -> None:
    steps = {0: measured(0, [100.0, 100.0, 100.0]), 1: measured(1, [150.0, 150.0])}
    found = answer(sweep_data([trial(0), trial(1, 150.0)], steps)).gain
    assert found is not None and (found.low, found.high) == (1.5, 1.5)


def test_the_interval_holds_the_true_ratio_and_narrows_with_more_steps() -> None:
    noisy = [95.0, 104.0, 98.0, 101.0, 103.0, 97.0]
    few = step_interval(measured(1, noisy), measured(0, noisy[::-1]), objective=THROUGHPUT)
    many = step_interval(measured(1, noisy * 9), measured(0, noisy * 9), objective=THROUGHPUT)
    assert few is not None and many is not None
    assert few[0] < many[0] < 1 < many[1] < few[1]


def test_a_time_that_is_halved_is_a_gain_of_two() -> None:
    interval = step_interval(
        measured(1, [200.0, 200.0]), measured(0, [100.0, 100.0]), objective="step_s"
    )
    assert interval == (2.0, 2.0)


@pytest.mark.parametrize("throughputs", [[], [150.0]])
def test_a_single_step_gives_no_interval(throughputs: list[float]) -> None:
    baseline = measured(0, [100.0, 100.0])
    assert step_interval(measured(1, throughputs), baseline, objective=THROUGHPUT) is None


def test_an_objective_that_no_single_step_holds_gives_no_interval() -> None:
    steps = measured(0, [100.0, 100.0])
    assert step_interval(steps, steps, objective="kl_std") is None


def test_steps_of_an_attempt_that_was_lost_do_not_count() -> None:
    lost = measured(0, [1.0, 1.0])
    last = [
        step.from_dict({**step.to_dict(), "attempt": 1}) for step in measured(0, [100.0, 100.0])
    ]
    steps = {0: [*lost, *last], 1: measured(1, [150.0, 150.0])}
    found = answer(sweep_data([trial(0), trial(1, 150.0)], steps)).gain
    assert found is not None and found.low == 1.5


@pytest.mark.parametrize("number", [0, 2])
def test_the_baselines_own_setting_has_no_gain(number: int) -> None:
    again = trial(2, 110.0, setting=trial(0).setting)
    data = sweep_data([trial(0), trial(1, 150.0), again])
    assert gain(data, data.trial(number)) is None and gain(data, None) is None
    assert gain(data, data.trial(1)) == sweep_gain(data, data.trial(1)) is not None
