"""The records of one sweep on disk, written so that a kill at any moment loses nothing finished.

Runs in the driver only. A sweep's folder holds ``trials.jsonl`` and ``steps.jsonl`` (one JSON
object a line, only ever appended to), Optuna's ``study.journal``, ``sweep.lock``, and files that
are replaced as a whole. A line counts once its newline is on disk: a torn last line is passed over
by readers and cut off before the next append. Non-finite numbers never enter a file, nor do the
secrets of the environment (:mod:`autotune.redaction`).
"""

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, TypeVar

from autotune.errors import SweepError, WriteError
from autotune.objective import StepRecord, TrialRecord
from autotune.redaction import mask, redact
from autotune.verification import VerifyJob

SCHEMA_VERSION = 1
"""Version of a line's fields; a reader refuses any other."""

TRIALS_FILE = "trials.jsonl"
CONFIG_FILE, VERSIONS_FILE, BEST_FILE = "config.yaml", "versions.yaml", "best.yaml"
CALIBRATION_FILE, BASE_JOB_FILE = "calibration.json", "base_job.json"
VERIFY_FILE, VERIFICATION_FILE = "verify.jsonl", "verification.json"
STUDY_FILE, LOCK_FILE, LOG_FOLDER = "study.journal", "sweep.lock", "logs"
WANDB_FOLDER = "wandb"
STUDY_NAME_FILE = "study.name"
ROLLOUT_FOLDER = "kept_rollout"
"""The rollout that trials replay, see :mod:`autotune.verl_bridge.kept_rollout`."""
STOP_FILE = "stop.request"
"""Whoever makes it asks the running driver to start no more trials and to end."""

Record = TypeVar("Record", StepRecord, TrialRecord, VerifyJob)


class SweepStore:
    """The folder of one sweep.

    Reading needs nothing; whoever writes holds the lock, see :meth:`locked`.

    Args:
        folder: The sweep's folder; made when the lock is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock_fd: int | None = None

    @property
    def trials_path(self) -> Path:
        return self.folder / TRIALS_FILE

    @property
    def steps_path(self) -> Path:
        return self.folder / "steps.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the sweep's lock; the kernel frees it when this process dies, however it dies.

        Raises:
            SweepError: Another process holds it.
            WriteError: The folder cannot be made or written.
        """
        make_folder(self.folder)
        with _writing(self.folder / LOCK_FILE):
            fd = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(fd)
            self._lock_fd = fd
            yield
        finally:
            self._lock_fd = None
            os.close(fd)

    def is_locked(self) -> bool:
        """Say whether a process on this machine runs the sweep now."""
        try:
            fd = os.open(self.folder / LOCK_FILE, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def append_trial(self, record: TrialRecord) -> None:
        """Write a finished trial; it is on disk when this returns.

        Raises:
            WriteError: It is not on disk.
        """
        self._append(self.trials_path, record.to_dict())

    def append_step(self, record: StepRecord) -> None:
        """Write a step; it is on disk when this returns."""
        self._append(self.steps_path, record.to_dict())

    def append_verify_job(self, job: VerifyJob) -> None:
        """Write a finished job of a verification; it is on disk when this returns."""
        self._append(self.folder / VERIFY_FILE, job.to_dict())

    def read_verify_jobs(self) -> list[VerifyJob]:
        """Return the jobs of all verifications in the order in which they ran.

        Raises:
            SweepError: A line other than a torn last one cannot be read.
        """
        return list(_read_lines(self.folder / VERIFY_FILE, VerifyJob))

    def write(self, name: str, text: str) -> None:
        """Replace a file of the sweep's folder as a whole, see :func:`write_atomic`."""
        assert self._lock_fd is not None, "the sweep is not locked"
        write_atomic(self.folder / name, text)

    def read_trials(self) -> list[TrialRecord]:
        """Return the finished trials by number; the last line of a number counts.

        Raises:
            SweepError: A line other than a torn last one cannot be read.
        """
        records = {record.number: record for record in _read_lines(self.trials_path, TrialRecord)}
        return [records[number] for number in sorted(records)]

    def read_steps(self, number: int) -> list[StepRecord]:
        """Return the steps of one trial in the order in which they ran, all attempts.

        Raises:
            SweepError: A line other than a torn last one cannot be read.
        """
        return [step for step in _read_lines(self.steps_path, StepRecord) if step.number == number]

    def read_all_steps(self) -> dict[int, list[StepRecord]]:
        """Return trial number -> its steps, else as :meth:`read_steps`; reads the file once."""
        steps: dict[int, list[StepRecord]] = {}
        for step in _read_lines(self.steps_path, StepRecord):
            steps.setdefault(step.number, []).append(step)
        return steps

    def study_name(self) -> str:
        """Return the name of this sweep's study in a database that several sweeps share: the
        folder's name and a random part, made once and kept in the folder."""
        assert self._lock_fd is not None, "the sweep is not locked"
        path = self.folder / STUDY_NAME_FILE
        if not path.exists():
            self.write(STUDY_NAME_FILE, f"{self.folder.name}-{uuid.uuid4().hex[:8]}\n")
        return path.read_text(encoding="utf-8").strip()

    def study_journal(self) -> Path:
        """Return the path of Optuna's journal, with a torn last line cut off.

        Optuna passes over a torn line too, but appends to it: the line after it is then lost.
        """
        assert self._lock_fd is not None, "the sweep is not locked"
        path = self.folder / STUDY_FILE
        with path.open("a+b") as file:
            _cut_torn_line(file.fileno())
        return path

    def _take(self, fd: int) -> None:
        if not _lock(fd):
            holder = os.pread(fd, 1000, 0).decode(errors="replace").strip()
            raise SweepError(
                f"The sweep in {self.folder} is being run by {holder or 'another process'}.",
                "Wait until it ends, or stop it; its finished trials are kept.",
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _append(self, path: Path, data: Mapping[str, Any]) -> None:
        assert self._lock_fd is not None, "the sweep is not locked"
        line = json.dumps(
            mask({"schema_version": SCHEMA_VERSION, **data}), allow_nan=False
        ).encode()
        with _writing(path):
            is_new = not path.exists()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                _cut_torn_line(fd)
                _write_all(fd, line + b"\n")
                os.fsync(fd)
            finally:
                os.close(fd)
            if is_new:
                _sync_folder(path.parent)


def is_hidden(relative: PurePath) -> bool:
    """Say whether a path below the sweep's folder is no file of the sweep: a draft, for one."""
    return any(part.startswith(".") for part in relative.parts)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, unless it is there.

    Raises:
        WriteError: A file is in its way, for one.
    """
    with _writing(path):
        path.mkdir(parents=True, exist_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """As :func:`write_atomic_bytes`, without the environment's secrets."""
    write_atomic_bytes(path, redact(text).encode())


def write_atomic_bytes(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a crash, sees either the old or the new one whole.

    Raises:
        WriteError: The disk is full, for one; the old file is there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _writing(path):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            try:
                _write_all(fd, content)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"{path} could not be written: {error.strerror}.",
            "What was finished before is kept: free the disk, or see to its permissions, and run "
            "the same command again.",
        ) from error


def _lock(fd: int) -> bool:
    """Take the lock; a reader that just looks, see :meth:`SweepStore.is_locked`, is waited for."""
    for _ in range(10):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.02)
    return False


def _read_lines(path: Path, kind: type[Record]) -> Iterator[Record]:
    if not path.exists():
        return
    *complete, _torn = path.read_bytes().split(b"\n")
    for index, line in enumerate(complete, start=1):
        try:
            record = kind.from_dict(_parse(line))
        except (ValueError, TypeError, KeyError) as error:
            raise SweepError(
                f"{path}, line {index}, cannot be read: {error}.",
                "Restore the file from a copy, or start a new sweep under another name.",
            ) from error
        yield record


def _parse(line: bytes) -> dict[str, Any]:
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    version = data.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version}, not {SCHEMA_VERSION}")
    return data


def _cut_torn_line(fd: int) -> None:
    """Cut off what stands behind a file's last newline: the rest of an interrupted write."""
    size = os.fstat(fd).st_size
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return
    os.ftruncate(fd, os.pread(fd, size, 0).rfind(b"\n") + 1)


def _write_all(fd: int, data: bytes) -> None:
    """Write with one call; a device that takes less (disk full) raises on the rest."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
