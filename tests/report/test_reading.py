"""Reading the folder of a sweep, whole or in the making."""

from pathlib import Path

import pytest
from sweep_maker import SweepSpec, make_sweep

from autotune.errors import BadInputError
from autotune.report.reading import find_sweeps, read_sweep
from autotune.store import SweepStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SweepStore:
    return make_sweep(tmp_path_factory.mktemp("sweeps"), SweepSpec(name="six", num_trials=6))


def test_a_sweep_is_read_as_it_was_written(store: SweepStore) -> None:
    data = read_sweep(store.folder)
    assert data.config.name == "six" and data.versions["verl"] == "0.9.1"
    assert list(data.trials) == store.read_trials()
    assert data.steps[0] == store.read_steps(0)
    assert data.baseline == data.trials[0] and data.exported is not None
    assert data.calibration is None and not data.is_running


def test_a_running_sweep_is_read_without_its_lock(store: SweepStore) -> None:
    with store.locked():
        assert read_sweep(store.folder).is_running


def test_a_relative_folder_becomes_absolute(
    store: SweepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.folder.parent)
    assert read_sweep("six").folder == store.folder


def test_another_folder_is_refused_with_the_sweeps_near_it(store: SweepStore) -> None:
    with pytest.raises(BadInputError, match=f"is not the folder of a sweep.*{store.folder}"):
        read_sweep(store.folder.parent)
    with pytest.raises(BadInputError, match="/six"):
        read_sweep(store.folder / "missing")


def test_a_trial_that_is_not_there_is_refused_with_those_that_are(store: SweepStore) -> None:
    with pytest.raises(BadInputError, match="trial 17 of .*Finished: 0-5."):
        read_sweep(store.folder).trial(17)


def test_a_trial_has_the_log_of_the_job_that_ran_it(store: SweepStore, tmp_path: Path) -> None:
    data = read_sweep(make_sweep(tmp_path, SweepSpec(num_trials=4)).folder)
    logs = data.folder / "logs"
    (logs / "trial_0002.log").write_text("another job\n")
    assert [data.log_path(number) for number in range(4)] == [
        logs / "trial_0000.log",
        logs / "trial_0000.log",
        logs / "trial_0002.log",
        logs / "trial_0002.log",
    ]


def test_sweeps_are_found_in_a_folder_and_as_the_folder(store: SweepStore) -> None:
    assert find_sweeps(store.folder.parent) == [store.folder]
    assert find_sweeps(store.folder) == [store.folder]
    assert find_sweeps(store.folder / "nothing") == []
