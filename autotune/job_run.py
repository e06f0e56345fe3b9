"""One job that runs one setting: its events, its time limits, and why it ended early.

Runs in the trial actor. Steps come from the job's process as events; a job that is silent for long
has its stacks saved to the log, one that outlasts its limit is a hang and named by the phase in
which it stands. Decides nothing about what follows.
"""

import math
import time
from collections.abc import Set
from pathlib import Path
from typing import Any, Protocol

from autotune import protocol as trial_protocol
from autotune.failure import Evidence, Verdict, judge
from autotune.objective import Start, StepRecord, TrialState
from autotune.settings import TrialConfig
from autotune.verl_bridge.job_processes import node_report, stack_dump
from autotune.verl_bridge.launcher import EXITED, VerlProcess
from autotune.verl_bridge.process import DONE, FAILED, PHASE, READY, STEP, JobRequest

MUST_BE_FINITE = (
    "actor/loss",
    "actor/pg_loss",
    "actor/grad_norm",
    "critic/loss",
    "critic/grad_norm",
)
"""verl's metrics whose NaN or infinity means that the setting broke the training."""

NODE_ANSWER_S = 30.0
"""A node that does not answer a Ray task for so long is lost."""
_LOG_TAIL_BYTES = 2 << 20


class Nodes(Protocol):
    """What is asked of :class:`autotune.verl_bridge.nodes.TrialNodes`."""

    def ask(self, function: Any, *arguments: Any, timeout_s: float) -> dict[str, Any]: ...

    def lost(self, answers: dict[str, Any]) -> list[str]: ...

    def dead(self, *, anywhere: bool = False) -> list[str]: ...


class JobEnded(Exception):
    """The job ended before its last step."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.cause)
        self.verdict = verdict


class JobRun:
    """Drives one job through one setting.

    Args:
        process: The live job.
        request: What it shall run.
        protocol: The sweep file's section ``trial``.
        number: The trial's.
        attempt: For its steps' records.
        nodes: The trial's nodes.
        job: Name of the job's processes.
        log_path: The job's log.
    """

    def __init__(
        self,
        process: VerlProcess,
        request: JobRequest,
        *,
        protocol: TrialConfig,
        number: int,
        attempt: int,
        nodes: Nodes,
        job: str,
        log_path: Path,
    ) -> None:
        self.start = Start(request.start)
        self.steps: list[StepRecord] = []
        self.startup_s: float | None = None
        self._process = process
        self._protocol = protocol
        self._number = number
        self._attempt = attempt
        self._nodes = nodes
        self._job = job
        self._log_path = log_path
        self._log_offset = log_path.stat().st_size if log_path.exists() else 0
        self._phase = "start"
        self._phase_since_s = self._started_s = time.monotonic()
        self._oom_kills = self._report()
        process.submit(request)

    @property
    def is_complete(self) -> bool:
        """Whether all steps ran."""
        return len(self.steps) == trial_protocol.num_steps(self._protocol)

    def next_step(self) -> StepRecord:
        """Return the next step's record.

        Raises:
            JobEnded: The job broke, hung, or produced a number that is not finite.
        """
        if self.startup_s is None:
            self._await({READY}, self._protocol.startup_timeout_s, "did not begin its first step")
            self.startup_s = time.monotonic() - self._started_s
        event = self._await({STEP}, self._protocol.step_timeout_s, "finished no step")
        for key in MUST_BE_FINITE:
            value = event["metrics"].get(key)
            if value is not None and not math.isfinite(value):
                cause = f"{key} is {value} in step {event['step']}"
                raise JobEnded(Verdict(state=TrialState.NAN, cause=cause))
        record = StepRecord(
            number=self._number,
            attempt=self._attempt,
            step=event["step"],
            kind=trial_protocol.kind_of_step(event["step"], self._protocol),
            metrics=event["metrics"],
            absent=event["absent"],
        )
        self.steps.append(record)
        if self.is_complete:
            self._await({DONE}, self._protocol.step_timeout_s, "did not end after its last step")
        return record

    def leave(self) -> None:
        """Give up the steps that are left, so that the job can take another setting.

        Raises:
            JobEnded: The job broke or hung in the step that it was still in.
        """
        self._process.leave()
        limit_s = self._protocol.step_timeout_s
        while self._await({STEP, DONE}, limit_s, "finished no step")["kind"] != DONE:
            pass

    # Events and time limits.

    def _await(self, kinds: Set[str], limit_s: float, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        has_dumped = False
        while True:
            left_s = deadline - time.monotonic()
            patience_s = left_s if has_dumped else min(left_s, self._stall_s(limit_s))
            event = self._process.next_event(max(0.0, patience_s))
            if event is None:
                if not has_dumped:
                    self._save_stacks()
                    has_dumped = True
                self._end_on_lost_node()
                if time.monotonic() >= deadline:
                    raise JobEnded(self._hang(what, limit_s))
                continue
            if event["kind"] == PHASE:
                self._enter(event["name"])
                has_dumped = False
                continue
            if event["kind"] in (FAILED, EXITED):
                raise JobEnded(self._broken(event))
            assert event["kind"] in kinds, event
            self._enter("next step")
            return event

    def _end_on_lost_node(self) -> None:
        """End the job where it is silent because a node is gone: verl waits for its answers."""
        lost = self._nodes.dead()
        if lost:
            raise JobEnded(self._verdict(Evidence(lost_nodes=lost)))

    def _stall_s(self, limit_s: float) -> float:
        return trial_protocol.STALL_SHARE * limit_s

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._phase_since_s = time.monotonic()

    def _hang(self, what: str, limit_s: float) -> Verdict:
        lost = self._nodes.dead(anywhere=True)
        if lost:
            return self._verdict(Evidence(lost_nodes=lost))
        in_phase_s = time.monotonic() - self._phase_since_s
        return Verdict(
            state=TrialState.HANG,
            cause=f"the job {what} for {limit_s:g} s; it has been in phase {self._phase} for "
            f"{in_phase_s:.0f} s (stacks of all its processes are in {self._log_path.name})",
        )

    def _broken(self, event: dict[str, Any]) -> Verdict:
        reports = self._report()
        return self._verdict(
            Evidence(
                causes=event.get("causes", ()),
                returncode=event.get("returncode"),
                log=self._log_tail(),
                lost_nodes=self._nodes.lost(reports) or self._nodes.dead(anywhere=True),
                oom_kills=_grown(self._oom_kills, reports),
            )
        )

    def _verdict(self, evidence: Evidence) -> Verdict:
        verdict = judge(evidence)
        cause = f"in phase {self._phase}: {verdict.cause}"
        return Verdict(state=verdict.state, cause=cause, has_died=verdict.has_died)

    # Evidence.

    def _report(self) -> dict[str, Any]:
        return self._nodes.ask(node_report, timeout_s=NODE_ANSWER_S)

    def _log_tail(self) -> str:
        with self._log_path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(self._log_offset, end - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")

    def _save_stacks(self) -> None:
        """Append the stacks of all processes of the job to its log."""
        answers = self._nodes.ask(stack_dump, self._job, timeout_s=NODE_ANSWER_S)
        with self._log_path.open("a", encoding="utf-8") as log:
            silent_s = time.monotonic() - self._phase_since_s
            log.write(f"\n=== autotune: {silent_s:.0f} s in phase {self._phase}; all stacks ===\n")
            for node_id, text in answers.items():
                log.write(f"--- node {node_id}: ")
                log.write("no answer\n" if text is None else f"{text or 'no process'}\n")


def _grown(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Return how many more processes the kernel ended, over the nodes that count them."""
    total = 0
    for node_id, report in after.items():
        first, last = (before.get(node_id) or {}).get("oom_kills"), (report or {}).get("oom_kills")
        if first is not None and last is not None:
            total += last - first
    return total
