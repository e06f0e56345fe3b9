"""Which processes of a node belong to one trial's job: finding, ending and questioning them.

Runs on every node of a trial, called by the trial actor. Every process of a job carries
:data:`JOB_ENV` in its environment, children of Ray's actors included (a rollout engine's are no
actors and survive them), so that nothing is found by name and nothing of anybody else is touched.
Standard library and psutil only. Linux; elsewhere the stacks are not available.
"""

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

JOB_ENV = "AUTOTUNE_JOB"
"""Set for all processes of a job: its name, see :func:`job_name`."""

_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7
"""A real-time signal: nothing of verl, vLLM, Ray or torch uses those."""
_STACKS = "autotune_stacks"
_ANSWER_S = 3.0
_HAS_STACKS = hasattr(os, "memfd_create") and hasattr(faulthandler, "register")


def job_name(sweep_id: str, placement_group_id: str) -> str:
    """Return the name of the jobs of one placement group, see :data:`JOB_ENV`."""
    return f"{sweep_id}/{placement_group_id}"


def register_stack_dump() -> None:
    """Let this process write the stacks of all its threads when it is asked to.

    The handler is C code that needs no interpreter lock, so that a process that hangs in a system
    call or holds the lock answers too. The text goes to an anonymous file in memory that others
    read through ``/proc``: nothing is left on disk.
    """
    is_registered = _stack_file(os.getpid()) is not None
    if _HAS_STACKS and not is_registered:
        faulthandler.register(_SIGNAL, file=os.memfd_create(_STACKS), all_threads=True)


def processes_of(job: str) -> list[psutil.Process]:
    """Return this node's processes of one job, or of a whole sweep where ``job`` is its id."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            name = process.environ().get(JOB_ENV)
            is_its = name is not None and (name == job or name.split("/")[0] == job)
            if is_its and process.pid != os.getpid():
                found.append(process)
    return found


def end_processes(job: str, patience_s: float) -> list[str]:
    """Wait until a job's processes are gone; kill those that are left after ``patience_s``.

    Returns:
        The processes that had to be killed, in words.
    """
    return _end(lambda: processes_of(job), patience_s)[0]


ProcessKey = tuple[int, float]
"""A process's id and when it was created: ids are used again."""


def own_tree() -> list[ProcessKey]:
    """Return this process and everything that it has started."""
    own = psutil.Process()
    return [(one.pid, one.create_time()) for one in (own, *own.children(recursive=True))]


def end_tree(keys: Sequence[ProcessKey], patience_s: float) -> list[str]:
    """Wait until these processes are gone; kill those that are left after ``patience_s``.

    Returns:
        The processes that are still there, in words.
    """
    return _end(lambda: _alive(keys), patience_s)[1]


def _alive(keys: Sequence[ProcessKey]) -> list[psutil.Process]:
    found = []
    for pid, created in keys:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.create_time() == created and not _holds_nothing(process):
                found.append(process)
    return found


def _holds_nothing(process: psutil.Process) -> bool:
    """Whether a process is dead to its last thread: those that outlive the first one have its
    memory and its devices still."""
    return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1


def _end(
    find: Callable[[], list[psutil.Process]], patience_s: float
) -> tuple[list[str], list[str]]:
    """Return the processes that had to be killed, and those that survived even that, in words."""
    killed = []
    for process in _wait_for_none(find, patience_s):
        with contextlib.suppress(psutil.Error):
            killed.append(_name(process))
            process.kill()
    survivors = []
    for process in _wait_for_none(find, patience_s) if killed else []:
        with contextlib.suppress(psutil.Error):
            survivors.append(_name(process))
    return killed, survivors


def _wait_for_none(
    find: Callable[[], list[psutil.Process]], patience_s: float
) -> list[psutil.Process]:
    """Return the processes that are left after ``patience_s``."""
    deadline = time.monotonic() + patience_s
    while (left := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def stack_dump(job: str) -> str:
    """Return the stacks of all of a job's processes on this node, and how each of them stands."""
    parts = []
    for process in processes_of(job):
        with contextlib.suppress(psutil.Error, OSError):
            head = f"--- process {process.pid}, {process.status()}: {_title(process)}"
            parts.append(f"{head}\n{_stacks_of(process.pid)}")
    return "\n".join(parts)


def node_report() -> dict[str, int | None]:
    """Return what this node says about itself; that it answers is the other half."""
    return {"oom_kills": oom_kills()}


def oom_kills() -> int | None:
    """Return how many processes the kernel has ended for lack of memory so far, as this process's
    control group counts them, else as the machine does; None where neither can be read."""
    for path, key in _oom_counters():
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text(encoding="ascii").splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    return None


def _oom_counters() -> list[tuple[Path, str]]:
    root, found = Path("/sys/fs/cgroup"), []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found.append((root / path.lstrip("/") / "memory.events", "oom_kill"))
            elif "memory" in controllers.split(","):
                # In a container the path is the host's, while the mount shows its own group.
                for folder in (root / "memory" / path.lstrip("/"), root / "memory"):
                    found.append((folder / "memory.oom_control", "oom_kill"))
    return [*found, (Path("/proc/vmstat"), "oom_kill")]


def _name(process: psutil.Process) -> str:
    return f"{process.pid} ({_title(process)})"


def _title(process: psutil.Process) -> str:
    command: list[str] = []
    with contextlib.suppress(psutil.ZombieProcess):
        command = process.cmdline()
    return " ".join(command)[:120] or process.name()


def _stacks_of(pid: int) -> str:
    path = _stack_file(pid)
    if path is None or not _catches_signal(pid):
        return "  (it does not write its stacks)"
    before = os.stat(path).st_size
    os.kill(pid, _SIGNAL)
    deadline, size = time.monotonic() + _ANSWER_S, before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        last, size = size, os.stat(path).st_size
        if size > before and size == last:
            break
    if size == before:
        return f"  (no answer in {_ANSWER_S:g} s)"
    with path.open("rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace").rstrip()


def _stack_file(pid: int) -> Path | None:
    folder = Path(f"/proc/{pid}/fd")
    for path in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(f"/memfd:{_STACKS}"):
                return path
    return None


def _catches_signal(pid: int) -> bool:
    """Whether a process has a handler: without one the signal would end it."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (_SIGNAL - 1) & 1)
    return False
