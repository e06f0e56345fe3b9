"""How a trial's verl process takes its requests, in a process of its own."""

import subprocess
import sys

from stand_in import REQUEST

FORKS_WHILE_IT_READS = """
import multiprocessing, queue, sys, threading, time
from autotune.verl_bridge import process

requests = queue.Queue()
stream = process.take_standard_input()
threading.Thread(target=process._read_requests, args=(stream, requests, None), daemon=True).start()
# The reader has taken one line and holds its stream while it waits for the next.
requests.get()
time.sleep(0.2)
child = multiprocessing.get_context("fork").Process(target=int)
child.start()
child.join(30)
print("child's exit code", child.exitcode, flush=True)
child.kill()
threading.Event().wait()
"""

LOGS_BESIDE_A_ROLLOUT_ENGINE = """
import logging
from autotune.verl_bridge import process

logging.basicConfig(level=logging.WARNING)
process.log_to_standard_error()
logger = logging.getLogger("autotune.verl_bridge.trainer")
logger.info("before")
for one in [logging.root, *logging.root.handlers]:
    one.setLevel(logging.ERROR)
logger.info("after")
logging.getLogger("another").warning("of somebody else")
"""


def test_what_is_logged_is_printed_once_whatever_quiets_the_root_logger() -> None:
    # model_hosting_container_standards does so when vLLM's server is imported.
    done = subprocess.run(
        [sys.executable, "-c", LOGS_BESIDE_A_ROLLOUT_ENGINE],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    printed = [line.rpartition(":")[2] for line in done.stderr.splitlines()]
    assert printed == ["before", "after"]


def test_a_forked_child_runs_while_requests_are_read_and_their_end_is_the_end() -> None:
    # As a data loader forks its workers in the verl process.
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS_WHILE_IT_READS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(REQUEST.to_json() + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    assert line == "child's exit code 0\n"
