"""A sweep's folder brought here from storage."""

from pathlib import Path

import pytest
from test_mirror import make_folder

from autotune.errors import BadInputError
from autotune.fetching import fetch_stored
from autotune.mirror import mirrored
from autotune.store import TRIALS_FILE, SweepStore


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "storage")
    with mirrored(make_folder(tmp_path / "sweep"), uri):
        pass
    return uri


def test_a_copy_is_fetched_with_and_without_logs(tmp_path: Path, uri: str) -> None:
    assert fetch_stored(uri, tmp_path / "all", with_logs=True) == 3
    assert fetch_stored(uri, tmp_path / "few", with_logs=False) == 2
    assert (tmp_path / "all" / "logs" / "trial_0000.log").exists()
    assert not (tmp_path / "few" / "logs").exists()


def test_fetching_again_brings_what_was_added(tmp_path: Path, uri: str) -> None:
    out = tmp_path / "out"
    fetch_stored(uri, out, with_logs=True)
    with Path(uri, TRIALS_FILE).open("a") as file:
        file.write('{"number": 1}\n')
    fetch_stored(uri, out, with_logs=True)
    assert (out / TRIALS_FILE).read_text() == '{"number": 0}\n{"number": 1}\n'


@pytest.mark.parametrize("name", ["notes.txt", TRIALS_FILE])
def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, uri: str, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(BadInputError, match="holds something else"):
        fetch_stored(uri, out, with_logs=True)
    assert [path.name for path in out.iterdir()] == [name]
    assert (out / name).read_text() == "mine"


def test_the_folder_of_a_sweep_that_runs_here_is_left_alone(tmp_path: Path, uri: str) -> None:
    out = tmp_path / "out"
    with SweepStore(out).locked():
        with pytest.raises(BadInputError, match="a sweep that runs here"):
            fetch_stored(uri, out, with_logs=True)
