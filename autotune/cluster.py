"""A sweep as a job of a Ray cluster: submitting it, finding it again, stopping it.

Runs wherever the user is; speaks with the cluster's dashboard (Ray's Jobs API) and nothing else, so
that the user's machine may go away at any time. A sweep's first job bears the sweep's id as its
submission id, every resumed one the same with ``-r2``, ``-r3`` behind it; so the same sweep is
recognised whoever asks. The sweep itself runs on the head node through ``autotune sweep``.
"""

import logging
import re
import shlex
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from autotune.config import Sweep, load_sweep
from autotune.errors import BadInputError, ExitCode, SweepError
from autotune.published import PublishedFolder
from autotune.store import STOP_FILE
from autotune.submission import DISTRIBUTION, SWEEP_FILE, pack, sweep_id

logger = logging.getLogger(__name__)

CLUSTER_HOME = '"$HOME"/autotune'
"""Where relative output folders start on the cluster, for its shell."""

STOP_WAIT_S = 180
"""How long a stopped driver may take to end its trials and write its report."""

_REQUEST_TIMEOUT_S = 120
_AGENT_TIMEOUT_S = 60.0
_NO_AGENT = "No available agent"
_AGENT_HINT = (
    "The head node's agent, which starts jobs, does not run: another Ray cluster on that machine "
    "may hold its port (52365 unless said otherwise). Stop that one, or start the head with "
    "`ray start --head --dashboard-agent-listen-port=0`; dashboard_agent.log on the head says more."
)
_FOLDER = "autotune_folder"
_ATTEMPT = re.compile(r"(?P<sweep>autotune-.+-[0-9a-f]{8})(-r(?P<number>[0-9]+))?")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One job of a sweep."""

    submission_id: str
    sweep_id: str
    number: int
    """1 for the first job, counted up with every resumption."""
    status: str
    """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED (Ray's words)."""
    message: str
    exit_code: int | None
    folder: str
    """The sweep's folder on the cluster, for its shell."""

    @property
    def is_over(self) -> bool:
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")

    def describe(self) -> str:
        """Return what happened to it, in our words."""
        if self.status == "SUCCEEDED":
            return "finished"
        if self.status == "STOPPED" or self.exit_code == ExitCode.INTERRUPTED:
            return "stopped; its finished trials are kept"
        if self.exit_code == ExitCode.BAD_INPUT:
            return "refused its sweep file; `autotune logs` says why"
        if self.status == "FAILED":
            return f"failed ({self.message.splitlines()[0] if self.message else 'no message'})"
        return self.status.lower()


class SweepJobs:
    """The sweeps of one cluster.

    Args:
        address: The dashboard, ``http://head:8265``.
        agent_timeout_s: How long a head that has just come up may take to start jobs.

    Raises:
        SweepError: Nothing answers there, or it refuses the token.
    """

    def __init__(self, address: str, *, agent_timeout_s: float = _AGENT_TIMEOUT_S) -> None:
        from ray.job_submission import JobSubmissionClient

        if not address.startswith(("http://", "https://")):
            raise BadInputError(
                f"--address is {address!r}.", "Give the cluster's dashboard: http://HEAD:8265."
            )
        self.address = address
        self._agent_timeout_s = agent_timeout_s
        try:
            self.client = JobSubmissionClient(address, create_cluster_if_needed=False)
        except (ConnectionError, RuntimeError) as error:
            raise SweepError(
                f"No Ray dashboard answers at {address}: {str(error).splitlines()[0]}",
                "Is it reachable from here, and RAY_AUTH_TOKEN (or ~/.ray/auth_token) the "
                "cluster's?",
            ) from error

    def attempts(self, sweep: str | None = None) -> list[Attempt]:
        """Return the jobs of one sweep, or of all, each sweep's in the order of submission."""
        found = []
        for job in self.client.list_jobs():
            match = _ATTEMPT.fullmatch(job.submission_id or "")
            if match is None or (sweep is not None and match["sweep"] != sweep):
                continue
            found.append(
                Attempt(
                    submission_id=match[0],
                    sweep_id=match["sweep"],
                    number=int(match["number"] or 1),
                    status=str(job.status.value),
                    message=job.message or "",
                    exit_code=job.driver_exit_code,
                    folder=(job.metadata or {}).get(_FOLDER, ""),
                )
            )
        return sorted(found, key=lambda attempt: (attempt.sweep_id, attempt.number))

    def last_attempt(self, sweep: str) -> Attempt:
        """Return a sweep's latest job.

        Raises:
            BadInputError: The cluster knows no such sweep.
        """
        attempts = self.attempts(sweep)
        if not attempts:
            known = sorted({attempt.sweep_id for attempt in self.attempts()})
            raise BadInputError(
                f"{self.address} knows no sweep '{sweep}'.",
                f"It knows: {', '.join(known)}." if known else "Submit it first.",
            )
        return attempts[-1]

    def submit(self, sweep: Sweep, *, python: str, resume: bool) -> tuple[Attempt, bool]:
        """Start a sweep once, or go on with one that has ended.

        Args:
            sweep: Loaded with ``is_elsewhere``.
            python: The interpreter on the cluster that has verl.
            resume: Whether a sweep that has ended goes on; otherwise it is left alone.

        Returns:
            The sweep's latest job, and whether it was started by this call.

        Raises:
            SweepError: The cluster did not take it.
        """
        name = sweep_id(sweep)
        attempts = self.attempts(name)
        if attempts and not (resume and attempts[-1].is_over):
            return attempts[-1], False
        with tempfile.TemporaryDirectory(prefix="autotune_submit_") as folder:
            pack(sweep, Path.cwd(), Path(folder))
            self.start(
                entrypoint=entrypoint(sweep, python=python),
                submission_id=attempt_id(name, attempts[-1].number + 1 if attempts else 1),
                runtime_env={"working_dir": folder, "env_vars": job_environment()},
                metadata={
                    _FOLDER: f"{_output_dir(sweep)}/{sweep.config.name}",
                    "autotune_version": version(DISTRIBUTION),
                },
            )
        return self.last_attempt(name), True

    def start(self, **job: Any) -> str:
        """Start a job of the Ray Jobs API; return its submission id.

        Raises:
            SweepError: The cluster did not take it.
        """
        deadline_s = time.monotonic() + self._agent_timeout_s
        has_said = False
        while True:
            try:
                return str(self.client.submit_job(**job))
            except RuntimeError as error:
                has_agent = _NO_AGENT not in str(error)
                if has_agent or time.monotonic() > deadline_s:
                    reason = str(error).rstrip(".")
                    raise SweepError(
                        f"The cluster at {self.address} did not take the job: {reason}.",
                        "" if has_agent else _AGENT_HINT,
                    ) from error
                # A head that has just come up answers before it can run anything.
                if not has_said:
                    has_said = True
                    limit_s = self._agent_timeout_s
                    logger.warning("the head node starts no jobs yet; asking for %g s", limit_s)
            time.sleep(1.0)

    def stop(self, attempt: Attempt, *, now: bool) -> None:
        """Stop a job: once its running trials have ended, or at once.

        Args:
            attempt: A job that is not over.
            now: Break off the running trials; the finished ones are kept in both cases.

        Raises:
            SweepError: The driver could not be told.
        """
        if now:
            self.client.stop_job(attempt.submission_id)
            return
        # The driver looks for this file; both run on the head node, as one user.
        request = self.start(entrypoint=f"touch {attempt.folder}/{STOP_FILE}")
        deadline_s = time.monotonic() + _REQUEST_TIMEOUT_S
        while time.monotonic() < deadline_s:
            info = self.client.get_job_info(request)
            if info.status.is_terminal():
                break
            time.sleep(0.5)
        if info.status.value != "SUCCEEDED":
            raise SweepError(
                f"The driver of {attempt.submission_id} could not be told to stop: "
                f"{info.message or info.status.value}.",
                "`autotune stop --now` breaks off its running trials.",
            )

    def follow_log(self, attempt: Attempt) -> AsyncIterator[str]:
        """Yield what the driver prints, from the beginning until it ends."""
        log: AsyncIterator[str] = self.client.tail_job_logs(attempt.submission_id)
        return log

    def log(self, attempt: Attempt) -> str:
        """Return what the driver has printed so far."""
        return str(self.client.get_job_logs(attempt.submission_id))

    def published(self, sweep: str) -> PublishedFolder:
        """Return the sweep's folder for reading.

        Raises:
            SweepError: No living node holds it.
        """
        return PublishedFolder(self.client, sweep)


def attempt_id(sweep: str, number: int) -> str:
    """Return the submission id of a sweep's job."""
    return sweep if number == 1 else f"{sweep}-r{number}"


def entrypoint(sweep: Sweep, *, python: str, sweep_file: str = SWEEP_FILE) -> str:
    """Return the shell command that runs a submitted sweep on the cluster."""
    words = [python, "-m", "autotune.cli", "sweep", sweep_file]
    options = f"--address auto --publish {sweep_id(sweep)} output_dir={_output_dir(sweep)}"
    return f"{' '.join(shlex.quote(word) for word in words)} {options}"


def job_environment() -> dict[str, str]:
    """Return the variables of the sweep's job: how Ray stops it, and nothing of the user's."""
    return {
        "RAY_JOB_STOP_SIGNAL": "SIGINT",
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S),
        "PYTHONUNBUFFERED": "1",
    }


def _output_dir(sweep: Sweep) -> str:
    """Return the output folder on the cluster as one word for its shell."""
    folder = sweep.config.output_dir
    quoted = shlex.quote(folder)
    return quoted if PurePosixPath(folder).is_absolute() else f'{CLUSTER_HOME}/{quoted}'


def id_of(sweep: str) -> str:
    """Return the id of a sweep that is named by its file, or by its id as it is.

    Raises:
        BadInputError: The file is wrong, or the id is none.
    """
    if sweep.endswith((".yaml", ".yml")):
        return sweep_id(load_sweep(sweep, is_elsewhere=True))
    match = _ATTEMPT.fullmatch(sweep)
    if match is None:
        raise BadInputError(
            f"'{sweep}' is neither a sweep file (*.yaml) nor the id of a submitted sweep.",
            "`autotune status` lists the ids.",
        )
    return match["sweep"]


def name_of(sweep: str) -> str:
    """Return the sweep's name in its id."""
    return sweep.removeprefix("autotune-").rpartition("-")[0]
