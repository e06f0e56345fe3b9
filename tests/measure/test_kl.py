"""Scatter and bias of k(r,t) with answers worked out by hand."""

import pytest

from autotune.measure.kl import kl_bias, kl_std


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
