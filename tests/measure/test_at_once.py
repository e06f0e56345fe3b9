"""Jobs alone and beside others, worked out by hand."""

import math

import pytest

from autotune.measure.at_once import disturbance
from autotune.measure.stats import pooled_spread


def test_equal_jobs_are_undisturbed() -> None:
    found = disturbance([([100.0, 100.0], [100.0, 100.0])])
    assert found is not None
    assert found.ratio == pytest.approx(1.0)
    assert found.low < 1 < found.high
    assert (found.num_alone, found.num_beside) == (2, 2)


def test_jobs_at_half_the_speed_are_disturbed_beyond_doubt() -> None:
    found = disturbance([([100.0, 102.0, 98.0], [50.0, 51.0, 49.0])])
    assert found is not None
    assert found.ratio == pytest.approx(0.5)
    assert found.high < 0.6


def test_the_interval_is_two_standard_errors_of_the_pooled_spread() -> None:
    groups = [([100.0, 110.0], [100.0]), ([40.0], [38.0, 42.0])]
    found = disturbance(groups)
    assert found is not None
    # Each setting weighs 1 / (1/2 + 1); the first is 100 / 105, the second 40 / 40.
    assert found.ratio == pytest.approx(math.sqrt(100 / 105))
    error = pooled_spread([values for group in groups for values in group]) / math.sqrt(4 / 3)
    assert found.high / found.ratio == pytest.approx(math.exp(2 * error))
    assert found.ratio / found.low == pytest.approx(math.exp(2 * error))


def test_settings_that_were_measured_one_way_only_say_nothing() -> None:
    assert disturbance([([100.0], []), ([], [50.0])]) is None
