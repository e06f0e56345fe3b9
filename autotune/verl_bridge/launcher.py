"""Starting, driving and ending the trial's verl process from outside.

Runs in the trial actor. Holds one child process and its two pipes; knows nothing of Tune or of
metrics. The child's output goes to a log file.
"""

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import TrialStartError
from autotune.redaction import redact
from autotune.verl_bridge.job_processes import JOB_ENV
from autotune.verl_bridge.process import LEAVE, JobRequest

logger = logging.getLogger(__name__)

EXITED = "exited"
"""Kind of the last event: the child is gone; ``returncode`` says how."""

VERL_COMMAND = (sys.executable, "-m", "autotune.verl_bridge.process")
"""The child of a real trial; its arguments are address, placement group and events' file
descriptor."""

LAST_OUTPUT_S = 2.0
"""How long the last output of a child that is gone may take to reach the log."""

DEATH_S = 20.0
"""How long the kernel may take to end a killed process."""


class VerlProcess:
    """One child process that runs verl.

    Args:
        address: Ray cluster to join, ``host:port`` of its GCS.
        placement_group_id: Hexadecimal id of the trial's placement group.
        job: Name of the job, in the environment of all of its processes.
        log_path: File that gets everything the job prints, secrets masked, appended.
        working_dir: Ray's address of the folder that a submitted sweep's code and files lie in, for
            verl's workers on all nodes; empty when there is none.
        command: The program to run, without its arguments.
    """

    def __init__(
        self,
        *,
        address: str,
        placement_group_id: str,
        job: str,
        log_path: Path,
        working_dir: str = "",
        command: Sequence[str] = VERL_COMMAND,
    ) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        read_fd, write_fd = os.pipe()
        self._child = subprocess.Popen(
            [*command, address, placement_group_id, str(write_fd), working_dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_fd,),
            start_new_session=True,
            env={**os.environ, JOB_ENV: job},
        )
        os.close(write_fd)
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._log_thread = threading.Thread(
            target=self._write_log, args=(log_path,), daemon=True
        )
        self._log_thread.start()
        threading.Thread(target=self._read_events, args=(read_fd,), daemon=True).start()

    def is_alive(self) -> bool:
        return self._child.poll() is None

    def submit(self, request: JobRequest) -> None:
        """Have the child run a setting; a child that is gone says so with its next event."""
        self._write(request.to_json())

    def leave(self) -> None:
        """Have the child end the setting that it runs with its current step."""
        self._write(LEAVE)

    def _write(self, line: str) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(line.encode() + b"\n")
            self._child.stdin.flush()

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next event, or None when none came in time."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def kill(self) -> None:
        """End the child and all of its children at once; Ray then frees every actor of the job.

        Raises:
            TrialStartError: The kernel does not end it.
        """
        # The child leads its session: the group may outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        try:
            self._child.wait(timeout=DEATH_S)
        except subprocess.TimeoutExpired as error:
            raise TrialStartError(
                f"The verl process {self._child.pid} is still there {DEATH_S:g} s after SIGKILL.",
                "It waits in the kernel for a device or a file system; see dmesg on its node.",
            ) from error

    def _write_log(self, path: Path) -> None:
        """Copy what the child prints, without the environment's secrets."""
        assert self._child.stdout is not None
        with path.open("ab", buffering=0) as log, self._child.stdout as output:
            is_whole = True
            for line in output:
                try:
                    log.write(redact(line.decode(errors="replace")).encode())
                except OSError as error:
                    # The job must not stall or die because nobody reads what it prints.
                    if is_whole:
                        logger.warning("%s has gaps: %s", path, error)
                    is_whole = False

    def _read_events(self, read_fd: int) -> None:
        with os.fdopen(read_fd, encoding="utf-8") as stream:
            for line in stream:
                if line.endswith("\n"):
                    self._events.put(json.loads(line))
        returncode = self._child.wait()
        # Why it ended is in what it printed last; a child of it may hold its output open.
        self._log_thread.join(LAST_OUTPUT_S)
        self._events.put({"kind": EXITED, "returncode": returncode})
