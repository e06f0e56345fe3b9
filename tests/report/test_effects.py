"""What the knobs do, on trials whose effects are known by hand."""

import dataclasses

import pytest
from report_cases import MICRO, THROUGHPUT, failed, trial

from autotune.objective import TrialRecord
from autotune.report.effects import (
    MIN_SETTINGS,
    MIN_SETTINGS_OF_PAIRS,
    completed,
    importances,
    pair_of,
    slice_of,
    top_pairs,
    varied_knobs,
    why_no_importance,
)


def at(number: int, throughput: float, **setting: bool | float | str) -> TrialRecord:
    return dataclasses.replace(trial(number, throughput), setting=setting)


GRID = [
    at(4 * i + j, 100.0 * i + j + 1, big=i, small=j, fixed=True) for i in range(4) for j in range(4)
]


LARGER = [
    at(4 * i + j, 100.0 * i + j + 1, big=i, small=j, fixed=True) for i in range(5) for j in range(4)
]


def test_only_completed_trials_with_an_objective_count() -> None:
    assert completed([trial(0), failed(1)], THROUGHPUT) == [trial(0)]


def test_the_knob_that_decides_comes_first_and_all_sum_to_one() -> None:
    found = importances(GRID, THROUGHPUT)
    assert list(found) == ["big", "small"] and found["big"] > 0.7
    assert sum(found.values()) == pytest.approx(1.0)


def test_too_few_or_equal_trials_have_no_importance() -> None:
    assert importances(GRID[: MIN_SETTINGS - 1], THROUGHPUT) == {}
    assert importances(GRID[:MIN_SETTINGS], THROUGHPUT) != {}
    assert importances([at(i, 5.0, big=i) for i in range(20)], THROUGHPUT) == {}
    assert importances([], THROUGHPUT) == {}


def test_repetitions_are_no_further_settings() -> None:
    few = GRID[: MIN_SETTINGS - 1]
    assert importances([*few, *few], THROUGHPUT) == {}
    assert why_no_importance([*few, *few]) == (
        "The knobs' importance is not shown: 9 settings completed, and below 10 it would be noise."
    )
    assert why_no_importance(GRID) == ""


def test_switches_and_texts_have_importance_too() -> None:
    records = [
        at(i, 100.0 * (i % 2) + i % 8 + 1, on=bool(i % 2), kind="abcdef"[(i // 2) % 6])
        for i in range(1, 25)
    ]
    found = importances(records, THROUGHPUT)
    assert set(found) == {"on", "kind"} and min(found.values()) > 0


def test_a_knob_with_one_value_is_not_varied() -> None:
    assert varied_knobs(GRID) == ["big", "small"] and varied_knobs([]) == []


def test_a_slice_has_the_median_at_each_value_in_order() -> None:
    records = [at(0, 5.0, k=8), at(1, 1.0, k=2), at(2, 3.0, k=8), at(3, 9.0, k=8)]
    found = slice_of(records, "k", THROUGHPUT)
    assert found.labels == ("2", "8") and found.medians == (1.0, 5.0)
    assert found.positions == (1, 0, 1, 1)


def test_many_numbers_are_put_into_bins_that_hold_all_trials() -> None:
    records = [at(i, float(i + 1), share=i / 100) for i in range(50)]
    found = slice_of(records, "share", THROUGHPUT)
    assert len(found.labels) == 5 and found.labels[0] == "0 to 0.098"
    assert [found.positions.count(i) for i in range(5)] == [10] * 5
    assert found.medians == tuple(sorted(found.medians))


def test_a_pair_has_an_empty_cell_where_nothing_was_tried() -> None:
    records = [at(0, 1.0, x=1, y=1), at(1, 3.0, x=1, y=1), at(2, 7.0, x=2, y=2)]
    x, y = (slice_of(records, knob, THROUGHPUT) for knob in ("x", "y"))
    found = pair_of(records, x, y, THROUGHPUT)
    assert found.medians == ((2.0, None), (None, 7.0))
    assert found.counts == ((2, 0), (0, 1))


def test_pairs_are_of_the_most_important_knobs() -> None:
    pairs = top_pairs(LARGER, ["big", "small", "fixed"], THROUGHPUT, num_knobs=2)
    assert [(pair.x.knob, pair.y.knob) for pair in pairs] == [("big", "small")]
    assert MICRO not in varied_knobs(GRID)


def test_few_settings_make_no_maps_of_pairs() -> None:
    assert len(LARGER) == MIN_SETTINGS_OF_PAIRS
    assert top_pairs(LARGER[:-1], ["big", "small"], THROUGHPUT) == []
