"""What a job's last words, its log and the kernel say about its setting."""

import pytest

from autotune.failure import Evidence, innermost, judge
from autotune.objective import TrialState

DIED = (
    "ActorDiedError: The actor died unexpectedly before finishing this task. The actor is dead "
    "because its worker process has died. Worker exit type: SYSTEM_ERROR. Some common causes "
    "include: (1) the process was killed by the OOM killer due to high memory usage"
)
ABORTED = "(WorkerDict pid=7) *** SIGABRT received at time=1 on cpu 1 ***"
WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600081 milliseconds before timing out."
)


@pytest.mark.parametrize(
    "text",
    [
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: NCCL Error 1: ncclUnhandledCudaError: Failed to CUDA calloc async 4 bytes",
        "DistBackendError: NCCL error: Cuda failure 2 'out of memory'",
        "RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
        "ValueError: Free memory on device cuda:0 (3.25/23.43 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 21.1 GiB). Decrease GPU memory utilization",
        "ValueError: No available memory for the cache blocks. Try increasing it.",
        "ValueError: To serve at least one request, 5.62 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (4.50 GiB).",
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 requests.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 800000000000 bytes. Error code 12 (Cannot allocate memory)",
        "OutOfMemoryError: Task was killed due to the node running low on memory.",
        "MemoryError: ",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_running_out_of_memory_is_recognised(text: str) -> None:
    assert judge(Evidence(causes=["RayTaskError: x", text])).state is TrialState.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(causes=[DIED], lost_nodes=["10.0.0.7"]),
        Evidence(causes=["ActorDiedError: The actor died because its node has died. Node Id: 1"]),
        Evidence(causes=["OSError: [Errno 28] No space left on device"]),
        Evidence(causes=["TrialStartError: verl does not know plug-in x, an entry point of y."]),
        Evidence(causes=["RayTaskError(TrialStartError): ray::f()\nTrialStartError: verl 0.8"]),
        Evidence(causes=[DIED], log="OSError: [Errno 28] No space left on device: '/dev/shm'"),
        Evidence(returncode=-9, lost_nodes=["10.0.0.7"]),
    ],
)
def test_a_lost_node_a_full_disk_and_a_wrong_installation_are_nobodys_setting(
    evidence: Evidence,
) -> None:
    assert judge(evidence).state is TrialState.INFRASTRUCTURE


def test_what_a_job_refuses_to_start_with_is_the_cause_and_not_what_it_came_from() -> None:
    causes = ["TrialStartError: The trial's request cannot be read.", "TypeError: 'unknown'"]
    assert judge(Evidence(causes=causes)).cause == causes[0]


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(causes=[DIED]),
        Evidence(causes=[DIED], log=ABORTED),
        Evidence(causes=["ActorUnavailableError: The actor is temporarily unavailable"]),
        Evidence(causes=["RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1"]),
        Evidence(causes=["EngineDeadError: EngineCore encountered an issue."]),
        Evidence(returncode=-9),
        Evidence(returncode=-11),
    ],
)
def test_a_death_on_a_living_node_is_a_crash_that_wants_a_second_job(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert verdict.state is TrialState.CRASH and verdict.has_died


def test_the_signal_of_a_dead_worker_is_named() -> None:
    assert "SIGABRT" in judge(Evidence(causes=[DIED], log=f"x\n{ABORTED}\ny")).cause


@pytest.mark.parametrize("causes", [[DIED], []])
def test_the_kernels_own_count_makes_a_death_lack_of_memory(causes: list[str]) -> None:
    verdict = judge(Evidence(causes=causes, returncode=None if causes else -9, oom_kills=1))
    assert verdict.state is TrialState.OUT_OF_MEMORY and not verdict.has_died
    assert "host memory" in verdict.cause


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", "out_of_memory"),
        (WATCHDOG, "hang"),
    ],
)
def test_what_a_dead_worker_printed_says_why(line: str, state: str) -> None:
    verdict = judge(Evidence(causes=[DIED], log=f"{line}\n{ABORTED}"))
    assert verdict.state.value == state and not verdict.has_died


def test_lines_of_the_log_say_nothing_about_an_error_that_speaks_for_itself() -> None:
    evidence = Evidence(causes=["AssertionError: batch_size_per_dp=3"], log="CUDA out of memory")
    assert judge(evidence).state is TrialState.CRASH


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation",
        "DistBackendError: wait timeout after 60000ms, collective ALLREDUCE timed out after 60 s",
        "TimeoutError: RPC call to sample_tokens timed out.",
    ],
)
def test_a_collective_that_gave_up_is_a_hang(text: str) -> None:
    assert judge(Evidence(causes=["RayTaskError: x", text])).state is TrialState.HANG


def test_a_failed_rollout_is_explained_by_the_log() -> None:
    failed = ["RolloutFailedError: The rollout failed for 8 of 8 prompts of step 3."]
    verdict = judge(Evidence(causes=failed, log="(AgentLoop) KeyError: 'temperature'\nlater"))
    assert verdict.state is TrialState.CRASH and not verdict.has_died
    assert "KeyError: 'temperature'" in verdict.cause
    assert judge(Evidence(causes=failed, log=f"x {DIED}")).has_died


def test_an_error_of_the_settings_own_is_a_crash() -> None:
    verdict = judge(Evidence(causes=["AssertionError: batch_size_per_dp=3"]))
    assert (verdict.state, verdict.has_died) == (TrialState.CRASH, False)


def test_the_cause_is_the_innermost_error_without_its_traceback() -> None:
    ray_error = "RayTaskError: \x1b[36mray::f()\x1b[39m\n  File x\nValueError: bad value"
    assert innermost(["RuntimeError: outer", ray_error]) == "ValueError: bad value"
    assert innermost([]) == "no cause was reported"
