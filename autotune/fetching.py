"""A sweep's folder brought to this machine, from the cluster's dashboard or from storage.

Runs where the user is. Files replace those of an earlier fetch of the same sweep; a folder that
holds anything else is left alone.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from autotune.errors import BadInputError
from autotune.mirror import stored_files
from autotune.published import PublishedFolder
from autotune.store import LOG_FOLDER, TRIALS_FILE, SweepStore, write_atomic_bytes

Files = Iterable[tuple[str, Callable[[], bytes]]]


def fetch_published(published: PublishedFolder, out: Path, *, with_logs: bool) -> int:
    """Copy a published sweep; return the number of files.

    Raises:
        BadInputError: ``out`` holds something else than an earlier fetch of this sweep.
        SweepError: The cluster does not answer.
    """
    return _fetch(_files_of(published), out, with_logs=with_logs)


def fetch_stored(uri: str, out: Path, *, with_logs: bool) -> int:
    """Copy a sweep from storage; else as :func:`fetch_published`."""
    return _fetch(stored_files(uri), out, with_logs=with_logs)


@contextmanager
def fetched(published: PublishedFolder) -> Iterator[Path]:
    """Have a published sweep without its logs in a folder for a while."""
    with TemporaryDirectory(prefix="autotune_status_") as folder:
        fetch_published(published, Path(folder), with_logs=False)
        yield Path(folder)


def _files_of(published: PublishedFolder) -> Files:
    for path in published.files():

        def read(path: PurePosixPath = path) -> bytes:
            return b"".join(published.read(path))

        yield str(path), read


def _fetch(files: Files, out: Path, *, with_logs: bool) -> int:
    wanted = {
        name: read
        for name, read in files
        if with_logs or PurePosixPath(name).parts[0] != LOG_FOLDER
    }
    _check_target(out, wanted)
    for name, read in wanted.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic_bytes(path, read())
    return len(wanted)


def _check_target(out: Path, files: dict[str, Callable[[], bytes]]) -> None:
    if not out.exists() or not any(out.iterdir()):
        return
    if SweepStore(out).is_locked():
        raise BadInputError(f"{out} is the folder of a sweep that runs here.", "Give --out.")
    ours = out / TRIALS_FILE
    theirs = files[TRIALS_FILE]() if TRIALS_FILE in files else b""
    if not ours.exists() or not theirs.startswith(ours.read_bytes()):
        raise BadInputError(
            f"{out} holds something else than an earlier copy of this sweep.", "Give --out."
        )
