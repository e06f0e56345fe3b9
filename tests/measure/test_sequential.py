"""Intervals of a comparison that is looked at more than once, with answers from tables."""

import math

import numpy as np
import pytest

from autotune.measure.sequential import (
    MIN_PAIRS,
    error_of_look,
    planned_looks,
    spent_error,
    t_interval,
)


@pytest.mark.parametrize(
    ("max_pairs", "looks"),
    [(3, (3,)), (4, (4,)), (5, (3, 5)), (8, (3, 8)), (9, (3, 6, 9)), (24, (3, 6, 12, 24))],
)
def test_looks_double_and_the_last_one_is_the_end(max_pairs: int, looks: tuple[int, ...]) -> None:
    assert planned_looks(max_pairs) == looks


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="2 pairs, at least 3"):
        planned_looks(MIN_PAIRS - 1)


def test_the_interval_of_three_values_is_the_one_of_the_t_table() -> None:
    # t with 2 degrees of freedom at 97.5 %: 4.3027; standard error 1 / sqrt(3).
    mean, low, high = t_interval([1.0, 2.0, 3.0], 0.05)
    assert mean == pytest.approx(2.0)
    assert high - mean == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert mean - low == pytest.approx(high - mean)


def test_equal_values_have_an_interval_without_width() -> None:
    assert t_interval([0.5, 0.5], 0.05) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("values", "message"), [([1.0], "1 values"), ([1.0, math.nan], "not all values are finite")]
)
def test_an_interval_needs_two_finite_values(values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        t_interval(values, 0.05)


def test_all_is_spent_at_the_end_and_next_to_nothing_at_the_start() -> None:
    assert spent_error(1.0, 0.05) == pytest.approx(0.05)
    # 2 x (1 - Phi(1.95996 / sqrt(0.25))) = 2 x (1 - Phi(3.9199))
    assert spent_error(0.25, 0.05) == pytest.approx(8.857e-5, rel=1e-3)


def test_the_looks_together_spend_exactly_the_error() -> None:
    looks = planned_looks(24)
    parts = [
        error_of_look(now, before=before, max_pairs=24, error=0.05, is_last=now == looks[-1])
        for before, now in zip((0, *looks), looks, strict=False)
    ]
    assert math.fsum(parts) == pytest.approx(0.05)
    assert parts == sorted(parts)


def test_a_comparison_that_ends_early_may_use_all_that_is_left() -> None:
    first = error_of_look(3, before=0, max_pairs=24, error=0.05, is_last=False)
    last = error_of_look(5, before=3, max_pairs=24, error=0.05, is_last=True)
    assert first + last == pytest.approx(0.05)


def test_intervals_hold_at_every_look_together() -> None:
    rng = np.random.default_rng(1)
    looks = planned_looks(12)
    errors = [
        error_of_look(now, before=before, max_pairs=12, error=0.05, is_last=now == 12)
        for before, now in zip((0, *looks), looks, strict=False)
    ]
    missed = 0
    for _ in range(1000):
        values = rng.normal(size=12)
        intervals = [
            t_interval(values[:now].tolist(), error)
            for now, error in zip(looks, errors, strict=True)
        ]
        missed += any(not low <= 0 <= high for _, low, high in intervals)
    # At most 50 are expected; 4 standard deviations above that is 77.
    assert missed <= 77
