"""The copy of a sweep in storage: a plain folder, and an in-memory file system of fsspec."""

from pathlib import Path

import pytest

from autotune.errors import BadInputError, SweepError
from autotune.mirror import Mirror, mirrored, restore, stored_files
from autotune.store import LOCK_FILE, TRIALS_FILE


def make_folder(folder: Path) -> Path:
    (folder / "logs").mkdir(parents=True)
    (folder / TRIALS_FILE).write_text('{"number": 0}\n')
    (folder / "best.yaml").write_text("a: 1\n")
    (folder / "logs" / "trial_0000.log").write_text("loading\n")
    (folder / LOCK_FILE).touch()
    (folder / ".best.yaml.1.tmp").touch()
    (folder / "kept_rollout" / ".draft_1").mkdir(parents=True)
    (folder / "kept_rollout" / ".draft_1" / "step_0001.safetensors").touch()
    return folder


@pytest.fixture(params=["folder", "memory"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    plain = str(tmp_path / "storage" / "tiny")
    return plain if request.param == "folder" else f"memory://{request.node.name}/tiny"


def contents(uri: str) -> dict[str, bytes]:
    return {name: read() for name, read in stored_files(uri)}


def test_a_context_leaves_a_whole_copy(tmp_path: Path, uri: str) -> None:
    folder = make_folder(tmp_path / "tiny")
    with mirrored(folder, uri):
        pass
    assert contents(uri) == {
        TRIALS_FILE: b'{"number": 0}\n',
        "best.yaml": b"a: 1\n",
        "logs/trial_0000.log": b"loading\n",
    }


def test_only_what_has_changed_is_copied(tmp_path: Path, uri: str) -> None:
    folder = make_folder(tmp_path / "tiny")
    mirror = Mirror(folder, uri)
    assert mirror.copy_changes(with_logs=True) == 3
    assert mirror.copy_changes(with_logs=True) == 0
    (folder / TRIALS_FILE).write_text('{"number": 0}\n{"number": 1}\n')
    assert mirror.copy_changes(with_logs=True) == 1
    assert contents(uri)[TRIALS_FILE] == b'{"number": 0}\n{"number": 1}\n'


def test_a_log_that_grows_is_not_copied_again_and_again(tmp_path: Path, uri: str) -> None:
    folder = make_folder(tmp_path / "tiny")
    written_s = (folder / "logs" / "trial_0000.log").stat().st_mtime
    mirror = Mirror(folder, uri)
    assert mirror.copy_changes(with_logs=False, now_s=written_s + 1) == 2
    assert mirror.copy_changes(with_logs=False, now_s=written_s + 61) == 1


def test_another_node_gets_the_copy_back(tmp_path: Path, uri: str) -> None:
    with mirrored(make_folder(tmp_path / "lost"), uri):
        pass
    folder = tmp_path / "new"
    assert restore(folder, uri) == 3
    assert (folder / TRIALS_FILE).read_text() == '{"number": 0}\n'
    assert (folder / "logs" / "trial_0000.log").read_text() == "loading\n"


def test_a_folder_that_is_ahead_of_its_copy_is_left_alone(tmp_path: Path, uri: str) -> None:
    folder = make_folder(tmp_path / "tiny")
    with mirrored(folder, uri):
        pass
    (folder / TRIALS_FILE).write_text('{"number": 0}\n{"number": 1}\n')
    (folder / "best.yaml").write_text("a: 2\n")
    assert restore(folder, uri) == 0
    assert (folder / "best.yaml").read_text() == "a: 2\n"


def test_records_of_another_run_are_not_mixed(tmp_path: Path, uri: str) -> None:
    with mirrored(make_folder(tmp_path / "one"), uri):
        pass
    other = make_folder(tmp_path / "other")
    (other / TRIALS_FILE).write_text('{"number": 0, "state": "nan"}\n')
    with pytest.raises(SweepError, match="hold records of different runs"):
        restore(other, uri)


def test_nothing_is_restored_from_empty_storage(tmp_path: Path, uri: str) -> None:
    assert restore(tmp_path / "new", uri) == 0
    assert restore(tmp_path / "new", None) == 0


def test_storage_that_fails_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "storage").write_text("a file where the folder should be")
    folder = make_folder(tmp_path / "tiny")
    with mirrored(folder, str(tmp_path / "storage" / "tiny")):
        (folder / "best.yaml").write_text("a: 2\n")
    assert "could not be written" in caplog.text
    assert (folder / "best.yaml").read_text() == "a: 2\n"


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="output_uri is 'nosuch://bucket'"):
        Mirror(tmp_path, "nosuch://bucket")
