"""Run many toy trials on a small Ray cluster with a fault in every third one, and count the losses.

Runs by hand, on CPU, without verl: the trials are a real child process each that plays a job's
events, on a real placement group, through the sweep's own searcher, store and Tune run. Faults take
turns: the trial's actor is killed, its process is killed, a node is killed and replaced, the
process hangs until its time limit, the process breaks. Prints one table; exits with 1 when a record
was lost or something was left over::

    python scripts/soak_service.py --trials 60
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import tune
from ray.cluster_utils import Cluster
from ray.util import list_named_actors
from ray.util.placement_group import placement_group_table

from autotune.config import Sweep, load_sweep
from autotune.errors import SweepError
from autotune.objective import RECORD, TrialRecord, TrialState, timestamp
from autotune.placement import bundles
from autotune.search import SweepSearcher
from autotune.store import SweepStore
from autotune.tuning import connection, run_tuner

ROOT = Path(__file__).parents[1]
SWEEP_FILE = ROOT / "search_spaces" / "quickstart_cpu.yaml"
FAULTS = ("actor", "process", "node", "hang", "break")
FAULT_EVERY = 3
HANG_S = 2.0
GONE_S = 30.0
MARK = "autotune_soak_child"

CHILD = f"""
import sys, time  # {MARK}
fault = sys.argv[1]
if fault in ("actor", "process", "node", "hang"):
    time.sleep(120)
if fault == "break":
    sys.exit(3)
time.sleep(0.05)
print("done", flush=True)
"""


class SoakTrial(tune.Trainable):
    """One trial: starts a child, waits for it, reports a record."""

    def setup(self, config: dict[str, Any], notes: Path | None = None) -> None:
        assert notes is not None
        self._notes = notes
        self._config = config

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._config = new_config
        return True

    def step(self) -> dict[str, Any]:
        number, attempt = self._config["number"], self._config["attempt"]
        fault = fault_of(number) if attempt == 0 else ""
        started_at = timestamp()
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, fault], stdout=subprocess.DEVNULL, start_new_session=True
        )
        self._write_note(fault, child.pid)
        try:
            code: int | None = child.wait(HANG_S if fault == "hang" else 60)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = None
        state = {0: TrialState.COMPLETE, None: TrialState.HANG, 3: TrialState.CRASH}.get(
            code, TrialState.INFRASTRUCTURE
        )
        record = TrialRecord(
            number=number,
            state=state,
            params=self._config["params"],
            setting=self._config["setting"],
            overrides=self._config["overrides"],
            metrics={"throughput_tokens_per_s_per_gpu": 100.0 + number},
            absent={},
            violations={},
            feasible=state is TrialState.COMPLETE,
            cause="" if state is TrialState.COMPLETE else f"the child ended with {code}",
            started_at=started_at,
            ended_at=timestamp(),
            retries=0,
        )
        return {"done": True, RECORD: json.dumps(record.to_dict())}

    def _write_note(self, fault: str, child: int) -> None:
        note = {
            "fault": fault,
            "child": child,
            "actor": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
        }
        number = self._config["number"]
        temporary = self._notes / f".{number}"
        temporary.write_text(json.dumps(note))
        temporary.rename(self._notes / f"{number}.json")


def fault_of(number: int) -> str:
    """Return the fault of a trial: every third has one, they take turns."""
    if number % FAULT_EVERY != FAULT_EVERY - 1:
        return ""
    return FAULTS[number // FAULT_EVERY % len(FAULTS)]


class Saboteur:
    """Kills what the trials' notes name; works in the main thread, where Ray can start nodes."""

    def __init__(self, notes: Path, cluster: Cluster) -> None:
        self._notes = notes
        self._cluster = cluster
        self.children: set[int] = set()
        self.done: Counter[str] = Counter()

    def work_while(self, run: threading.Thread) -> None:
        """Commit faults until the run ends."""
        while run.is_alive():
            for path in self._notes.glob("*.json"):
                note = json.loads(path.read_text())
                path.unlink()
                self.children.add(note["child"])
                if note["fault"]:
                    self._commit(note)
            time.sleep(0.1)

    def _commit(self, note: dict[str, Any]) -> None:
        fault = note["fault"]
        self.done[fault] += 1
        if fault == "process":
            _kill(note["child"])
        if fault == "actor":
            _kill(note["actor"])
        if fault == "node":
            self._replace(note["node"])
        if fault in ("actor", "node"):
            # A trial's child dies with its actor, because it reads from it; this one only sleeps.
            _kill(note["child"])

    def _replace(self, node_id: str) -> None:
        for node in list(self._cluster.worker_nodes):
            if node.node_id == node_id:
                self._cluster.remove_node(node, allow_graceful=False)
                self._cluster.add_node(num_cpus=2)


def _kill(pid: int) -> None:
    """Kill a process that may have gone already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def small_cluster(sweep: Sweep) -> Iterator[Cluster]:
    """A head for the driver and two nodes for the trials."""
    # Workers import the toy trial from this file.
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        with connection(sweep, cluster.address):
            yield cluster
    finally:
        cluster.shutdown()


def left_over(children: set[int]) -> dict[str, int]:
    """Count what the run has left, once it had time to go."""
    deadline_s = time.monotonic() + GONE_S
    while True:
        groups = [g for g in placement_group_table().values() if g["state"] != "REMOVED"]
        counts = {
            "placement groups": len(groups),
            "named actors": len(list_named_actors(all_namespaces=True)),
            "processes": sum(_is_alive(child) for child in children),
        }
        if not any(counts.values()) or time.monotonic() > deadline_s:
            return counts
        time.sleep(0.5)


def _is_alive(pid: int) -> bool:
    try:
        return MARK in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what a sweep loses to faults.")
    parser.add_argument("--trials", type=int, default=60)
    num_trials: int = parser.parse_args().trials
    random.seed(0)
    sweep = load_sweep(
        SWEEP_FILE,
        [
            f"search.num_trials={num_trials}",
            "search.max_concurrent=2",
            "search.sampler=random",
            "resources.nodes=1",
            "trial.max_retries=2",
        ],
        is_elsewhere=True,
    )
    with tempfile.TemporaryDirectory() as folder, small_cluster(sweep) as cluster:
        notes = Path(folder) / "notes"
        notes.mkdir()
        saboteur = Saboteur(notes, cluster)
        store = SweepStore(Path(folder) / "soak")
        with store.locked():
            searcher = SweepSearcher(
                sweep.space,
                sweep.config.search,
                objective=sweep.config.objective.metric,
                constraints=sweep.config.constraints,
                max_retries=sweep.config.trial.max_retries,
                records=store,
            )
            trainable = tune.with_resources(
                tune.with_parameters(SoakTrial, notes=notes),
                tune.PlacementGroupFactory([{}, *bundles(sweep.config.resources)]),
            )
            run = threading.Thread(
                target=run_tuner,
                args=(searcher, trainable),
                kwargs={"max_concurrent": 2, "callbacks": [], "has_next": searcher.has_next},
            )
            run.start()
            saboteur.work_while(run)
        records = store.read_trials()
        counts = left_over(saboteur.children)
    sys.exit(report(num_trials, records, saboteur.done, counts, searcher.failure))


def report(
    num_trials: int,
    records: list[TrialRecord],
    faults: Counter[str],
    counts: dict[str, int],
    failure: str | None,
) -> int:
    """Print the table; return 1 when something was lost or left over."""
    states = Counter(record.state.value for record in records)
    lost = num_trials - len({record.number for record in records})
    wrong = sum(record.state is not expected_state(record.number) for record in records)
    rows = {
        "trials asked for": num_trials,
        **{f"faults: {name}": faults[name] for name in FAULTS},
        **{f"records: {name}": count for name, count in sorted(states.items())},
        "trials tried again": sum(record.retries > 0 for record in records),
        "records lost": lost,
        "records with a wrong state": wrong,
        **{f"left over: {name}": count for name, count in counts.items()},
    }
    for name, value in rows.items():
        print(f"{name:<32}{value:>6}")
    if failure is not None:
        print(f"The search ended early: {failure}")
    return int(bool(lost or wrong or any(counts.values()) or failure))


def expected_state(number: int) -> TrialState:
    """Return how a trial must end: only what is the setting's own fault stays with it."""
    own = {"hang": TrialState.HANG, "break": TrialState.CRASH}
    return own.get(fault_of(number), TrialState.COMPLETE)


if __name__ == "__main__":
    try:
        main()
    except SweepError as error:
        sys.exit(str(error))
