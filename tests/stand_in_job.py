"""A process that speaks the launcher's protocol and plays back known events: it runs no verl.

Its first argument is a JSON file: ``{"processes": [[run, ...], ...]}``. The n-th process started
with that file plays the n-th entry, one run a request; past the end a run is complete. A run is a
list of events; ``{"kind": "steps", "number": n, "metrics": {...}}`` stands for n steps. Besides the
protocol's there are the kinds ``sleep`` (``seconds``), ``print`` (``text``), ``kill`` (by SIGKILL),
``exit`` (``code``) and ``child`` (starts a process in a session of its own that outlives this one).
The line ``leave`` drops the steps of the run that are still to come.
Each request is appended to the file's neighbour ``.requests``; a neighbour ``.once`` holds the next
run instead, whichever process plays it.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from autotune.verl_bridge.job_processes import register_stack_dump
from autotune.verl_bridge.process import LEAVE

STEP = {
    "timing_s/step": 1.0,
    "perf/throughput": 100.0,
    "actor/grad_norm": 1.0,
    "autotune/peak_memory_ratio": 0.5,
    "autotune/kl_per_rank": [0.0, 0.0],
}


def process_number(script: Path) -> int:
    counter = script.with_suffix(".count")
    number = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(number + 1))
    return number


def expand(run: list[dict[str, Any]]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    steps = 0
    for event in run:
        if event["kind"] == "steps":
            for _ in range(event["number"]):
                steps += 1
                metrics = {**STEP, **event.get("metrics", {})}
                events.append({"kind": "step", "step": steps, "metrics": metrics, "absent": {}})
        else:
            events.append(event)
    return events


def play(event: dict[str, Any], write: Any) -> None:
    kind = event["kind"]
    if kind == "sleep":
        time.sleep(event["seconds"])
    elif kind == "print":
        print(event["text"], flush=True)
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exit":
        os._exit(event["code"])
    elif kind == "child":
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    else:
        write(json.dumps(event) + "\n")


def main(script: Path, events_fd: int) -> None:
    register_stack_dump()
    processes = json.loads(script.read_text())["processes"]
    number = process_number(script)
    runs = processes[number] if number < len(processes) else []
    complete: list[dict[str, Any]] = [
        {"kind": "ready"},
        {"kind": "steps", "number": 3},
        {"kind": "done"},
    ]
    lines: list[str] = []
    arrived = threading.Semaphore(0)
    is_left = threading.Event()
    once = script.with_suffix(".once")

    def read() -> None:
        for line in sys.stdin:
            if line.rstrip() == LEAVE:
                is_left.set()
                continue
            lines.append(line)
            arrived.release()
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    with os.fdopen(events_fd, "w") as stream:

        def write(text: str) -> None:
            stream.write(text)
            stream.flush()

        for index in range(1_000_000):
            arrived.acquire()
            is_left.clear()
            with script.with_suffix(".requests").open("a") as file:
                file.write(lines[index])
            run = runs[index] if index < len(runs) else complete
            if once.exists():
                run = json.loads(once.read_text())
                once.unlink()
            for event in expand(run):
                if not (event["kind"] == "step" and is_left.is_set()):
                    play(event, write)
                if event["kind"] == "failed":
                    os._exit(1)


if __name__ == "__main__":
    # script, address, placement group, events
    main(Path(sys.argv[1]), int(sys.argv[4]))
