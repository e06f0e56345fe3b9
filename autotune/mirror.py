"""A copy of the sweep's folder in storage that outlives the node: any path that Ray takes.

Runs in the driver, in a thread of its own. The local folder stays the one that counts, because its
files are locked and appended to; whatever changes there is copied as a whole within seconds, logs
once they rest. On a node without the folder, :func:`restore` brings the copy back before the sweep
goes on. Storage that does not answer costs the copy, never the sweep.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from autotune.errors import BadInputError, SweepError
from autotune.store import (
    LOCK_FILE,
    LOG_FOLDER,
    STOP_FILE,
    TRIALS_FILE,
    is_hidden,
    write_atomic_bytes,
)

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
_LOG_REST_S = 60.0
"""A log is copied when it has not grown for so long, and at the end."""
_LEFT_OUT = (LOCK_FILE, STOP_FILE)


class Mirror:
    """Copies the files of one folder to storage.

    Args:
        folder: The sweep's folder.
        uri: Where the sweep's copy lies, e.g. ``s3://bucket/sweeps/name``, or a plain path.

    Raises:
        BadInputError: No file system is known for the URI.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder = folder
        self._fs, self._root = file_system(uri)
        self._copied: dict[Path, tuple[int, int]] = {}
        self.problem: str | None = None
        """Why the last round failed; None when it did not."""

    def copy_changes(self, *, with_logs: bool, now_s: float = 0.0) -> int:
        """Copy what has changed since the last call; return the number of files.

        Args:
            with_logs: Whether logs are copied even while they grow.
            now_s: Wall-clock time, to see which logs rest.
        """
        num_copied = 0
        for path in sorted(self._folder.rglob("*")):
            relative = path.relative_to(self._folder)
            if not path.is_file() or relative.name in _LEFT_OUT or is_hidden(relative):
                continue
            stat = path.stat()
            version = (stat.st_size, stat.st_mtime_ns)
            is_log = relative.parts[0] == LOG_FOLDER
            grows = is_log and now_s - stat.st_mtime < _LOG_REST_S
            if self._copied.get(relative) == version or (grows and not with_logs):
                continue
            self._write(relative, path.read_bytes())
            self._copied[relative] = version
            num_copied += 1
        return num_copied

    def _write(self, relative: Path, content: bytes) -> None:
        target = f"{self._root}/{relative.as_posix()}"
        self._fs.create_dir(str(PurePosixPath(target).parent), recursive=True)
        # A reader of a plain folder must not see half a file; object stores show whole ones only.
        temporary = f"{target}.part" if self._fs.type_name == "local" else target
        with self._fs.open_output_stream(temporary) as stream:
            stream.write(content)
        if temporary != target:
            self._fs.move(temporary, target)


@contextlib.contextmanager
def mirrored(folder: Path, uri: str | None) -> Iterator[None]:
    """Keep a copy of a folder up to date while the context lasts; None copies nothing."""
    if uri is None:
        yield
        return
    mirror = Mirror(folder, uri)
    ended = threading.Event()
    thread = threading.Thread(target=_keep, args=(mirror, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _try_copy(mirror, with_logs=True)
        if mirror.problem is not None:
            logger.error(
                "output_uri %s could not be written: %s. The records are in %s.",
                uri,
                mirror.problem,
                folder,
            )


def restore(folder: Path, uri: str | None) -> int:
    """Bring a sweep's copy back where this node has fewer records; return the number of files.

    Raises:
        SweepError: Copy and folder hold records of different sweeps, or storage does not answer.
    """
    if uri is None:
        return 0
    files = dict(stored_files(uri))
    if TRIALS_FILE not in files:
        return 0
    try:
        theirs = files[TRIALS_FILE]()
        ours = folder / TRIALS_FILE
        kept = ours.read_bytes() if ours.exists() else b""
        if kept.startswith(theirs):
            return 0
        if not theirs.startswith(kept):
            raise SweepError(
                f"{folder} and output_uri {uri} hold records of different runs.",
                "Move one of them away, or give the sweep another name.",
            )
        for name, read in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic_bytes(path, read())
    except OSError as error:
        raise SweepError(f"output_uri {uri} cannot be read: {error}.") from error
    return len(files)


def stored_files(uri: str) -> Iterator[tuple[str, Any]]:
    """Yield the files of a copy: name relative to the sweep's folder, and a function that reads it.

    Raises:
        BadInputError: No file system is known for the URI.
    """
    from pyarrow.fs import FileSelector, FileType

    fs, root = file_system(uri)
    selector = FileSelector(root, recursive=True, allow_not_found=True)
    for info in fs.get_file_info(selector):
        if info.type == FileType.File and not info.path.endswith(".part"):

            def read(path: str = info.path) -> bytes:
                with fs.open_input_stream(path) as stream:
                    return bytes(stream.read())

            yield str(PurePosixPath(info.path).relative_to(root)), read


def file_system(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI and the path in it; Arrow's own first, then fsspec's.

    Raises:
        BadInputError: Neither knows the scheme, or it needs a package that is not installed.
    """
    import pyarrow
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    if "://" not in uri:
        uri = Path(uri).expanduser().absolute().as_uri()
    try:
        fs, path = FileSystem.from_uri(uri)
        return fs, path
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, ValueError):
        pass
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise BadInputError(
            f"output_uri is {uri!r}: {error}.",
            "Give a path that Ray's storage takes, e.g. s3://bucket/folder or /shared/folder.",
        ) from error
    return PyFileSystem(FSSpecHandler(fs)), path


def _keep(mirror: Mirror, ended: threading.Event) -> None:
    while not ended.wait(INTERVAL_S):
        _try_copy(mirror, with_logs=False)


def _try_copy(mirror: Mirror, *, with_logs: bool) -> None:
    import time

    try:
        mirror.copy_changes(with_logs=with_logs, now_s=time.time())
    except OSError as error:
        if mirror.problem is None:
            logger.warning("output_uri cannot be written, trying again: %s", error)
        mirror.problem = str(error)
    else:
        mirror.problem = None
