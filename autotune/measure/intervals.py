"""Sets of intervals: union, length, difference and intersection.

Runs wherever intervals are measured. Pure functions; an interval is half-open, a merged set is an
array of rows (start, end) that are sorted and do not touch. The unit is the caller's.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]


def merge(intervals: Iterable[tuple[float, float]] | Intervals) -> Intervals:
    """Return the union as sorted rows that do not touch; empty intervals vanish."""
    rows = intervals if isinstance(intervals, np.ndarray) else list(intervals)
    array = np.asarray(rows, dtype=np.float64).reshape(-1, 2)
    array = array[array[:, 1] > array[:, 0]]
    if len(array) == 0:
        return array
    array = array[np.argsort(array[:, 0], kind="stable")]
    reach = np.maximum.accumulate(array[:, 1])
    first = np.concatenate([[True], array[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([array[first, 0], reach[last]])


def length(merged: Intervals) -> float:
    """Return the summed length of merged intervals, in their own unit."""
    return float(np.sum(merged[:, 1] - merged[:, 0]))


def subtract(merged: Intervals, removed: Intervals) -> Intervals:
    """Return the parts of the first merged set that the second does not cover."""
    return _covered(merged, removed, inside=(True, False))


def intersect(first: Intervals, second: Intervals) -> Intervals:
    """Return the parts that both merged sets cover."""
    return _covered(first, second, inside=(True, True))


def _covered(first: Intervals, second: Intervals, *, inside: tuple[bool, bool]) -> Intervals:
    """Return where the first set covers and the second does or does not, as asked."""
    edges = np.unique(np.concatenate([first.ravel(), second.ravel()]))
    if len(edges) < 2:
        return np.empty((0, 2))
    middles = (edges[:-1] + edges[1:]) / 2
    wanted = np.ones(len(middles), dtype=bool)
    for merged, is_inside in zip((first, second), inside, strict=True):
        # An odd number of edges to the left of a point means that it lies in an interval.
        wanted &= (np.searchsorted(merged.ravel(), middles) % 2 == 1) == is_inside
    return merge(np.column_stack([edges[:-1], edges[1:]])[wanted])
