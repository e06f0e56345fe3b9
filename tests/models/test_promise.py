"""What is worth a trial: fast, likely feasible, and predicted to fit."""

import math
from typing import Any

import numpy as np
import pytest
from model_cases import (
    BASELINE,
    ENCODER,
    EXPOSED,
    MICRO,
    PEAK,
    THROUGHPUT,
    every_setting,
    setting,
    trial,
)

from autotune.models.evidence import Evidence
from autotune.models.promise import Goal, Promise
from autotune.objective import TrialState

GOAL = Goal(objectives=(THROUGHPUT,), limits={PEAK: 0.9, EXPOSED: 0.2})


def measured(size: int, exposed: float = 0.1, reshard: bool = True) -> Evidence:
    metrics = {THROUGHPUT: 10.0 * math.sqrt(size), PEAK: 0.1 + 0.02 * size, EXPOSED: exposed}
    return trial(size, reshard, **metrics)


def promise(*evidence: Evidence, goal: Goal = GOAL, **more: object) -> Promise:
    return Promise(ENCODER, BASELINE, evidence, goal, **more)  # type: ignore[arg-type]


def new_settings(*evidence: Evidence) -> list[dict[str, Any]]:
    taken = [one.setting for one in evidence]
    return [candidate for candidate in every_setting() if candidate not in taken]


def test_the_faster_of_two_feasible_directions_is_followed() -> None:
    seen = [measured(size) for size in (1, 2, 4)]
    candidates = new_settings(*seen)
    assert candidates[promise(*seen).choose(candidates)][MICRO] >= 8


def test_a_setting_that_is_predicted_not_to_fit_is_refused() -> None:
    seen = [measured(1), measured(2), trial(8, state=TrialState.OUT_OF_MEMORY)]
    candidates = new_settings(*seen)
    assert candidates[promise(*seen).choose(candidates)][MICRO] <= 4


def test_where_nothing_is_likely_to_fit_the_likeliest_is_taken() -> None:
    models = promise(trial(2, state=TrialState.OUT_OF_MEMORY))
    candidates = [setting(32), setting(1), setting(4)]
    assert models.choose(candidates) == 1


def test_a_setting_that_breaks_a_limit_is_not_feasible_however_fast() -> None:
    models = promise(*(measured(size, exposed=0.02 * size) for size in (1, 4, 8, 16, 32)))
    outlook = models.outlook([setting(1), setting(32)])
    assert outlook.feasible[0] > 0.8 and outlook.feasible[1] < 0.05
    assert outlook.score[1] > outlook.score[0]


def test_neighbours_of_a_setting_that_hangs_are_avoided() -> None:
    models = promise(measured(1), measured(2), trial(32, state=TrialState.HANG))
    outlook = models.outlook([setting(32), setting(1)])
    assert outlook.feasible[0] < 0.3 < outlook.feasible[1]


def test_contenders_are_measured_settings_that_may_be_the_best() -> None:
    seen = [measured(1), measured(8), measured(16), measured(32, exposed=0.6)]
    assert promise(*seen).contenders()[0] == setting(16)


def test_another_trial_promises_less_the_more_is_known() -> None:
    few, many = [measured(1)], [measured(s, reshard=r) for s in (1, 2, 4, 8, 16, 32)
                                for r in (True, False)]
    assert promise(*many).expected_gain([setting(16)]) < 0.02
    gain = promise(*few).expected_gain(new_settings(*few))
    assert gain > 0.02


def test_without_anything_feasible_the_expected_gain_is_infinite() -> None:
    assert promise(measured(1, exposed=0.9)).expected_gain([setting(2)]) == math.inf
    assert promise(trial(1, state=TrialState.CRASH)).expected_gain([setting(2)]) == math.inf


def test_without_anything_feasible_a_faster_setting_is_worth_some_doubt() -> None:
    seen = [measured(1, exposed=0.21), measured(2, exposed=0.21)]
    models = promise(*seen)
    candidates = [setting(1, False), setting(4)]
    likely = models.outlook(candidates).feasible
    assert 0.5 < likely[1] / likely[0] < 2
    assert models.choose(candidates) == 1


def test_a_running_trial_is_taken_as_predicted() -> None:
    seen = [measured(1), measured(4)]
    alone = promise(*seen).outlook([setting(16)]).spread[0]
    beside = promise(*seen, running=[setting(16)]).outlook([setting(16)]).spread[0]
    assert beside < alone


def test_the_weight_moves_the_choice_towards_the_second_objective() -> None:
    goal = Goal(objectives=(THROUGHPUT, PEAK), limits={})
    seen = [measured(size) for size in (1, 4, 16)]
    first = promise(*seen, goal=goal, weight=0.05).outlook([setting(1), setting(16)])
    second = promise(*seen, goal=goal, weight=0.95).outlook([setting(1), setting(16)])
    assert np.argmax(first.score) == 1 and np.argmax(second.score) == 0


@pytest.mark.parametrize("metric", ["step_s", "startup_s"])
def test_a_minimised_objective_is_better_when_it_is_smaller(metric: str) -> None:
    goal = Goal(objectives=(metric,), limits={})
    models = promise(trial(1, **{metric: 9.0}), trial(32, **{metric: 3.0}), goal=goal)
    outlook = models.outlook([setting(1), setting(32)])
    assert outlook.score[1] > outlook.score[0]
