"""Why a job ended early, and whether its setting is to blame.

Runs in the trial actor. A pure function from evidence, which :mod:`autotune.job_run` collects, to
a verdict. Only the death of a node (or of the trial's own actor, which Tune reports), a full disk
and an installation that starts no job are nobody's setting. A process of the job that dies on a
living node is held to be the setting's doing, unless a second, cold job runs well: on an
accelerator a failed collective and a dead rollout engine look like that. From outside, a process
that was killed and one that left without a word look the same; the kernel's counter of processes
ended for lack of memory tells the third case.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.objective import TrialState

_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError"
    r"|(?:CUDA|HIP|NPU|NCCL|ncclUnhandledCudaError).{0,120}out of memory"
    r"|CUDA error: out of memory|cudaErrorMemoryAllocation"
    r"|Failed to CUDA (?:calloc|malloc)|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    # vLLM: too little memory left for its share, or for one block of its key-value cache.
    r"|Free memory on device .{0,200}is less than desired GPU memory utilization"
    r"|No available memory for the cache blocks"
    r"|larger than the available KV cache memory|KV cache is needed, which is larger"
    r"|larger than the maximum number of tokens that can be stored in KV cache"
    r"|out of memory when warming up sampler"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    # C++ code that got none, and ends its process.
    r"|std::bad_alloc"
    r"|running low on memory|Cannot allocate memory|\bMemoryError\b",
    re.IGNORECASE | re.DOTALL,
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|OutOfDiskError")
_CANNOT_START = re.compile(r"\bTrialStartError\b")
"""What this package finds wrong on a node before it runs a setting there."""
_NODE_LOST = re.compile(r"NodeDiedError|its node has died|node (?:was|is) (?:dead|terminated)")
_COLLECTIVE_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout"
    r"|Timed out waiting \d+ms for (?:recv|send) operation"
    r"|(?:collective|allreduce|allgather|barrier|Wait|wait).{0,80}timed? ?out after"
    r"|monitoredBarrier|heartbeat monitor timed out|DistStoreError"
    r"|RPC call to \w+ timed out",
    re.IGNORECASE,
)
_DIED = re.compile(
    r"ActorDiedError|ActorUnavailableError|WorkerCrashedError|died unexpectedly"
    r"|EngineDeadError|EngineCore (?:encountered|died)|Engine core initialization failed"
    # What the survivors of a collective see first when one of them dies.
    r"|Connection (?:closed|reset) by peer|remote process exited or there was a network error",
)
_ROLLOUT_FAILED = re.compile(
    r"RolloutFailedError|selected terminal groups with no materializable trajectories"
)
"""verl goes on without the responses that failed; why they did stands in the job's log only."""
_ERROR = re.compile(r"(?:^|[\s.])\w*(?:Error|Exception): ")
_FATAL_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]+) received|Fatal Python error: ([A-Za-z ]+)")
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about a job that broke."""

    causes: Sequence[str] = ()
    """Its chain of exceptions as ``Type: message``, outermost first; empty when it said nothing."""
    returncode: int | None = None
    """How verl's process ended by itself; None while it lived."""
    log: str = ""
    """What the job printed since this setting was started."""
    lost_nodes: Sequence[str] = ()
    """Nodes of the trial's placement group that are gone or do not answer."""
    oom_kills: int = 0
    """Processes that the kernel ended for lack of memory on the trial's nodes meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a job ended."""

    state: TrialState
    cause: str
    """One line."""
    has_died: bool = False
    """Whether a process of the job died without a reason that is known to be the setting's."""


def judge(evidence: Evidence) -> Verdict:
    """Return what became of a job that broke."""
    text = "\n".join(evidence.causes)
    said = innermost(evidence.causes)
    if evidence.lost_nodes or _NODE_LOST.search(text):
        lost = ", ".join(evidence.lost_nodes)
        return _verdict(TrialState.INFRASTRUCTURE, f"lost node {lost}" if lost else said)
    refused = [cause for cause in evidence.causes if _CANNOT_START.search(cause)]
    if refused:
        return _verdict(TrialState.INFRASTRUCTURE, innermost(refused))
    if _DISK_FULL.search(text):
        return _verdict(TrialState.INFRASTRUCTURE, said)
    if _OUT_OF_MEMORY.search(text):
        return _verdict(TrialState.OUT_OF_MEMORY, said)
    if evidence.returncode is not None or _DIED.search(text):
        return _judge_by_log(evidence, said, has_died=True)
    if _ROLLOUT_FAILED.search(text):
        has_died = _DIED.search(evidence.log) is not None
        return _judge_by_log(evidence, said, has_died=has_died)
    if _COLLECTIVE_TIMEOUT.search(text):
        return _verdict(TrialState.HANG, said)
    return _verdict(TrialState.CRASH, said)


def innermost(causes: Sequence[str]) -> str:
    """Return the innermost exception without its traceback, which Ray puts before the message of a
    task's error."""
    if not causes:
        return "no cause was reported"
    lines = [line for line in _TERMINAL_CODES.sub("", causes[-1]).splitlines() if line.strip()]
    return (lines[-1] if lines[0].startswith("RayTaskError") else lines[0]).strip()[:500]


def _judge_by_log(evidence: Evidence, said: str, *, has_died: bool) -> Verdict:
    """A process died or failed unseen: what it printed, and the kernel, say more than who missed
    it."""
    if evidence.returncode is not None:
        said = f"the verl process ended with {_exit_text(evidence.returncode)}"
    if evidence.oom_kills:
        return _verdict(
            TrialState.OUT_OF_MEMORY,
            f"the kernel ended {evidence.oom_kills} process(es) for lack of host memory; {said}",
        )
    for pattern, state in (
        (_DISK_FULL, TrialState.INFRASTRUCTURE),
        (_OUT_OF_MEMORY, TrialState.OUT_OF_MEMORY),
        (_COLLECTIVE_TIMEOUT, TrialState.HANG),
    ):
        line = _last_line_with(pattern, evidence.log)
        if line is not None:
            return _verdict(state, line)
    message = _last_line_with(_FATAL_SIGNAL if has_died else _ERROR, evidence.log)
    return Verdict(
        state=TrialState.CRASH,
        cause=f"{said}; {message}"[:500] if message else f"{said}; it left no message",
        has_died=has_died,
    )


def _verdict(state: TrialState, cause: str) -> Verdict:
    return Verdict(state=state, cause=cause[:500])


def _exit_text(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"code {returncode}"


def _last_line_with(pattern: re.Pattern[str], log: str) -> str | None:
    lines = [line for line in log.splitlines() if pattern.search(line)]
    return _TERMINAL_CODES.sub("", lines[-1]).strip()[:300] if lines else None
