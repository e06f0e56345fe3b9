"""Consistency of log-probabilities with answers worked out by hand."""

import math

import pytest

from autotune.measure.kl import kl_bias, kl_from_start, kl_std, rank_divergence


def test_std_divides_by_n() -> None:
    # mean 2, squared distances 1 and 1, divided by 2
    assert kl_std([1.0, 3.0]) == 1.0


def test_std_ignores_a_common_offset() -> None:
    assert kl_std([5e-5, 7e-5]) == pytest.approx(kl_std([0.0, 2e-5]))


def test_std_of_identical_ranks_is_exactly_zero() -> None:
    assert kl_std([0.1] * 7) == 0.0


def test_one_value_has_no_scatter() -> None:
    with pytest.raises(ValueError, match="1 value"):
        kl_std([1e-5])


def test_bias_is_the_size_of_the_mean() -> None:
    assert kl_bias([-3.0, 1.0]) == 1.0


def test_opposite_errors_have_no_bias() -> None:
    assert kl_bias([-2e-4, 2e-4]) == 0.0


def test_bias_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        kl_bias([])


def test_a_policy_that_has_not_moved_has_no_kl_to_its_start() -> None:
    assert kl_from_start([-1.0, -2.0], [-1.0, -2.0]) == 0.0


def test_kl_from_the_start_is_the_mean_over_tokens() -> None:
    # d = 1 and 0: e - 2 and 0
    assert kl_from_start([0.0, 0.0], [-1.0, 0.0]) == pytest.approx((math.e - 2) / 2)


def test_a_tiny_kl_from_the_start_is_not_lost_to_rounding() -> None:
    assert kl_from_start([0.0], [1e-6]) == pytest.approx(0.5e-12, rel=1e-3)


def test_ranks_that_agree_diverge_by_nothing() -> None:
    assert rank_divergence([[-1.0, -2.0], [-1.0, -2.0]]) == 0.0


def test_one_rank_cannot_diverge() -> None:
    with pytest.raises(ValueError, match="1 rank"):
        rank_divergence([[-1.0]])
