"""Sketches of gradients: by hand, and of real FSDP2 gradients on gloo ranks."""

import math

import pytest

from autotune.measure.gradients import cosine_deviation


def test_equal_directions_deviate_by_nothing_whatever_their_length() -> None:
    assert cosine_deviation([3.0, 4.0], [6.0, 8.0]) == 0.0


@pytest.mark.parametrize(
    ("second", "deviation"),
    [([0.0, 2.0], 1.0), ([-1.0, 0.0], 2.0), ([1.0, 1.0], 1 - math.sqrt(0.5))],
)
def test_deviation_is_one_minus_the_cosine(second: list[float], deviation: float) -> None:
    assert cosine_deviation([1.0, 0.0], second) == pytest.approx(deviation)


def test_a_deviation_far_below_rounding_of_a_cosine_is_kept() -> None:
    assert cosine_deviation([1.0, 0.0], [1.0, 1e-9]) == pytest.approx(0.5e-18)


def test_a_vector_of_zeros_has_no_direction() -> None:
    assert cosine_deviation([0.0, 0.0], [1.0, 0.0]) is None
