"""Finding, ending and questioning a job's processes: real processes, real signals."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import psutil
import pytest

from autotune.verl_bridge.job_processes import (
    JOB_ENV,
    end_processes,
    end_tree,
    job_name,
    node_report,
    oom_kills,
    own_tree,
    processes_of,
    stack_dump,
)

REGISTERED = (
    "import time\n"
    "from autotune.verl_bridge.job_processes import register_stack_dump\n"
    "register_stack_dump()\n"
    "register_stack_dump()\n"
    "def waits_for_nothing():\n"
    "    print('up', flush=True)\n"
    "    time.sleep(300)\n"
    "waits_for_nothing()\n"
)
SILENT = "print('up', flush=True); import time; time.sleep(300)"
OUTLIVED_BY_A_THREAD = (
    "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(300,)).start()\n"
    "print('up', flush=True)\n"
    "ctypes.CDLL(None).pthread_exit(None)\n"
)
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SILENT!r}])"

Starter = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def sweep_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start a process of a job, and wait until it is up."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, job: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, JOB_ENV: job},
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_a_job_is_found_by_its_name_and_by_its_sweep(start: Starter, sweep_id: str) -> None:
    job = job_name(sweep_id, "group")
    process = start(SILENT, job)
    other = start(SILENT, job_name(sweep_id, "other"))
    assert [found.pid for found in processes_of(job)] == [process.pid]
    assert {found.pid for found in processes_of(sweep_id)} == {process.pid, other.pid}


def test_a_name_that_only_begins_alike_is_another_sweep(start: Starter, sweep_id: str) -> None:
    start(SILENT, job_name(f"{sweep_id}0", "group"))
    assert processes_of(sweep_id) == []


def test_what_does_not_go_by_itself_is_killed(start: Starter, sweep_id: str) -> None:
    process = start(SILENT, job_name(sweep_id, "group"))
    (killed,) = end_processes(sweep_id, 0.2)
    assert killed.startswith(str(process.pid))
    assert process.wait(timeout=5) == -signal.SIGKILL


def test_nothing_left_is_nothing_killed(sweep_id: str) -> None:
    assert end_processes(sweep_id, 0.2) == []


def test_a_tree_is_this_process_and_what_it_started(start: Starter, sweep_id: str) -> None:
    child = start(PARENT, job_name(sweep_id, "group"))
    grandchildren = [found.pid for found in psutil.Process(child.pid).children()]
    assert len(grandchildren) == 1
    assert {os.getpid(), child.pid, *grandchildren} <= {pid for pid, _ in own_tree()}


def test_a_tree_whose_root_is_gone_is_ended_to_the_last_process(
    start: Starter, sweep_id: str
) -> None:
    child = start(PARENT, job_name(sweep_id, "group"))
    tree = [key for key in own_tree() if key[0] != os.getpid()]
    child.kill()
    child.wait()
    assert any(psutil.pid_exists(pid) for pid, _ in tree)
    assert end_tree(tree, 0.2) == []
    left = [pid for pid, _ in tree if psutil.pid_exists(pid)]
    assert all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in left)


def test_a_process_with_a_thread_that_goes_on_is_not_gone(start: Starter, sweep_id: str) -> None:
    process = psutil.Process(start(OUTLIVED_BY_A_THREAD, job_name(sweep_id, "group")).pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert process.num_threads() == 2
    assert end_tree([(process.pid, process.create_time())], 0.2) == []
    assert process.num_threads() <= 1


def test_a_process_that_got_the_id_of_another_is_left_alone(start: Starter, sweep_id: str) -> None:
    process = start(SILENT, job_name(sweep_id, "group"))
    created = psutil.Process(process.pid).create_time()
    assert end_tree([(process.pid, created - 100)], 0.2) == []
    assert process.poll() is None


def test_a_process_writes_where_it_stands(start: Starter, sweep_id: str) -> None:
    start(REGISTERED, job_name(sweep_id, "group"))
    for _ in range(2):
        text = stack_dump(sweep_id)
        assert text.count("in waits_for_nothing") == 1


def test_a_process_that_cannot_answer_is_named_with_its_state(
    start: Starter, sweep_id: str
) -> None:
    process = start(REGISTERED, job_name(sweep_id, "group"))
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    text = stack_dump(sweep_id)
    assert f"process {process.pid}, stopped" in text and "no answer" in text


def test_a_process_without_a_handler_is_asked_nothing_and_lives(
    start: Starter, sweep_id: str
) -> None:
    process = start(SILENT, job_name(sweep_id, "group"))
    assert "does not write its stacks" in stack_dump(sweep_id)
    assert psutil.pid_exists(process.pid) and process.poll() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux counts them")
def test_the_kernels_count_of_processes_ended_for_memory_is_a_number() -> None:
    count = oom_kills()
    assert count is not None and count >= 0
    assert node_report() == {"oom_kills": count}
