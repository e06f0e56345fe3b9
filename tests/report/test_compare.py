"""Two trials side by side, of one sweep or of two."""

from pathlib import Path

import pytest
from sweep_maker import THROUGHPUT, SweepSpec, make_sweep

from autotune.errors import BadInputError
from autotune.report.compare import compare, differences, metric_pairs
from autotune.report.reading import read_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    make_sweep(folder, SweepSpec(name="first", num_trials=8))
    make_sweep(folder, SweepSpec(name="second", num_trials=8, seed=2, limits=(("kl_std", 1e-9),)))
    return folder


def test_a_trial_against_itself_differs_in_nothing(folder: Path) -> None:
    same = compare(f"{folder}/first:3", f"{folder}/first:3")
    assert same.settings == same.config == same.versions == ()
    assert {pair.ratio for pair in same.metrics if pair.ratio is not None} == {1.0}


def test_two_trials_differ_in_their_knobs_and_numbers(folder: Path) -> None:
    data = read_sweep(folder / "first")
    first, second = data.trials[:2]
    found = compare(f"{folder}/first:0", f"{folder}/first:1")
    assert found.a.trial == 0 and found.b.trial == 1 and found.a.outcome_of == "chosen"
    assert {entry.name: (entry.a, entry.b) for entry in found.settings} == {
        name: (value, second.setting[name])
        for name, value in first.setting.items()
        if second.setting[name] != value
    }
    [pair] = [pair for pair in found.metrics if pair.metric == THROUGHPUT]
    a, b = first.metrics[THROUGHPUT], second.metrics[THROUGHPUT]
    assert a and b and pair.ratio == pytest.approx(b / a)


def test_a_sweep_stands_for_its_winner_or_for_its_closest_trial(folder: Path) -> None:
    found = compare(f"{folder}/first", f"{folder}/second")
    assert found.a.outcome_of == "winner" and found.a.gain is not None
    assert found.b.outcome_of == "closest"


def test_two_sweeps_differ_in_their_files_but_not_in_their_names(folder: Path) -> None:
    names = {entry.name for entry in compare(f"{folder}/first", f"{folder}/second").config}
    assert names == {"constraints"}


def test_entries_of_one_side_only_differ_too() -> None:
    found = differences({"a": 1, "b": 2, "d": 5}, {"b": 3, "c": 4, "d": 5})
    assert [(entry.name, entry.a, entry.b) for entry in found] == [
        ("a", 1, None),
        ("b", 2, 3),
        ("c", None, 4),
    ]


def test_a_number_that_one_side_lacks_has_no_ratio(folder: Path) -> None:
    record = read_sweep(folder / "first").trial(0)
    other = record.from_dict({**record.to_dict(), "metrics": {**record.metrics, "step_s": None}})
    [pair] = [pair for pair in metric_pairs(record, other) if pair.metric == "step_s"]
    assert pair.b is None and pair.ratio is None


def test_what_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(BadInputError, match="trial 99 of"):
        compare(f"{folder}/first:99", f"{folder}/first")
    with pytest.raises(BadInputError, match="third is not the folder of a sweep"):
        compare(f"{folder}/first", f"{folder}/third")
