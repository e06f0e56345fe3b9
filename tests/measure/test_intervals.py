"""Sets of intervals with answers worked out by hand."""

import pytest

from autotune.measure.intervals import intersect, length, merge, subtract

Spans = list[tuple[float, float]]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(0, 10), (10, 20)], [[0, 20]]),
        ([(30, 40), (0, 10), (5, 12)], [[0, 12], [30, 40]]),
        ([(0, 100), (10, 20), (30, 40)], [[0, 100]]),
    ],
)
def test_merge_gives_sorted_intervals_that_do_not_touch(
    spans: Spans, expected: list[list[float]]
) -> None:
    assert merge(spans).tolist() == expected


@pytest.mark.parametrize(
    ("first", "second", "left", "common"),
    [
        ([(0, 10)], [], [[0, 10]], []),
        ([(0, 10)], [(0, 10)], [], [[0, 10]]),
        ([(0, 10)], [(3, 5)], [[0, 3], [5, 10]], [[3, 5]]),
        ([(0, 10), (20, 30)], [(5, 25)], [[0, 5], [25, 30]], [[5, 10], [20, 25]]),
        ([(0, 10)], [(10, 20)], [[0, 10]], []),
        ([], [(0, 10)], [], []),
    ],
)
def test_subtract_and_intersect_share_out_the_first_set(
    first: Spans, second: Spans, left: list[list[float]], common: list[list[float]]
) -> None:
    assert subtract(merge(first), merge(second)).tolist() == left
    assert intersect(merge(first), merge(second)).tolist() == common


def test_length_adds_up_the_intervals() -> None:
    assert length(merge([(0, 10), (20, 25)])) == 15
