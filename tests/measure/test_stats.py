"""Medians and bootstrap intervals with answers worked out by hand."""

import math

import pytest

from autotune.measure.stats import bootstrap_interval, median, pooled_spread


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0], 3.0), ([5.0, 1.0, 3.0], 3.0), ([4.0, 1.0, 3.0, 100.0], 3.5)],
)
def test_median_is_the_middle(values: list[float], expected: float) -> None:
    assert median(values) == expected


def test_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_median_of_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="nan is not finite"):
        median([1.0, float("nan")])


def test_interval_of_equal_values_is_that_value() -> None:
    assert bootstrap_interval([2.5, 2.5, 2.5], seed=0) == (2.5, 2.5)


def test_interval_lies_within_the_values_and_around_the_median() -> None:
    low, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0], seed=0)
    assert 1.0 <= low < 3.0 < high <= 5.0


def test_interval_of_many_values_matches_the_normal_approximation() -> None:
    # 0..99 is uniform: standard error of the median 1 / (2 f sqrt(n)) = 100 / 20 = 5; 49.5 +- 9.8
    low, high = bootstrap_interval([float(i) for i in range(100)], seed=1)
    assert low == pytest.approx(49.5 - 9.8, abs=2.0)
    assert high == pytest.approx(49.5 + 9.8, abs=2.0)


def test_interval_of_given_values_stays_what_it_was() -> None:
    values = [100.0, 101.5, 99.25, 98.0, 100.2, 99.9, 100.7]
    assert bootstrap_interval(values, seed=3) == (99.25, 100.7)


def test_interval_is_the_same_for_the_same_seed() -> None:
    values = [3.0, 9.0, 4.0, 1.0]
    assert bootstrap_interval(values, seed=7) == bootstrap_interval(values, seed=7)


def test_more_confidence_never_narrows_the_interval() -> None:
    values = [3.0, 9.0, 4.0, 1.0, 7.0]
    narrow = bootstrap_interval(values, seed=7, confidence=0.5)
    wide = bootstrap_interval(values, seed=7, confidence=0.99)
    assert wide[0] <= narrow[0] and narrow[1] <= wide[1]


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0])
def test_confidence_outside_zero_and_one_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="confidence is"):
        bootstrap_interval([1.0], seed=0, confidence=confidence)


def test_a_belief_about_the_spread_counts_as_often_as_it_is_worth() -> None:
    spread = pooled_spread([[0.9, 1.1]], usual=0.08, worth=4)
    assert spread == pytest.approx(math.sqrt((4 * 0.0064 + 0.02) / 5))


def test_the_pooled_spread_is_that_of_repetitions_around_their_own_means() -> None:
    groups = [[100.0, 110.0, 90.0, 105.0, 95.0], [10.0, 11.0, 9.0, 10.5, 9.5], [7.0]]
    # both groups scatter by 0.0790569; 8 degrees of freedom and 2 of the usual 0.04
    assert pooled_spread(groups) == pytest.approx(math.sqrt((8 * 0.00625 + 2 * 0.0016) / 10))


def test_two_equal_repetitions_do_not_promise_a_spread_of_zero() -> None:
    assert pooled_spread([[5.0, 5.0]]) > 0.03
    assert pooled_spread([]) == pytest.approx(0.04)
