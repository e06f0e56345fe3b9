"""Many trials in one live job, with faults among them: do all recover, rightly labelled?

Runs real verl trials (`--job tiny`, the quickstart's job) or a stand-in that plays events (`--job
stand-in`, a second a trial) on one placement group, over random settings, of the rollout too.
Faults of real trials are injected for real, in their second step: a worker is killed by SIGKILL,
may allocate nothing more, or is stopped. Prints a table, and exits 1 if a trial was mislabelled or
anything is left.

    python scripts/soak.py --trials 60 --job stand-in
    python scripts/soak.py --trials 100 --job tiny
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
from ray import tune
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.config import Sweep, load_sweep
from autotune.objective import RECORD, STEP_RECORD, TrialRecord, TrialState
from autotune.placement import bundles
from autotune.trial import TrialSpec, VerlTrial
from autotune.verl_bridge.job_processes import processes_of

ROOT = Path(__file__).parents[1]
STAND_IN = ROOT / "tests" / "stand_in_job.py"
NO_FAULT = "none"
FIRST_STATE = {
    NO_FAULT: "",
    "worker killed": "crash",
    "out of memory": "out_of_memory",
    "hang": "hang",
}
"""Fault -> the label of the job that it is done to. That job started live, so the setting is run
again in a fresh one, and completes."""
ROLLOUT_KNOB = "knobs.rollout_max_num_seqs={choices: [8, 256]}"
GONE_S = 10.0
SWEEP_ID = "soak"

_READY: list[dict[str, Any]] = [{"kind": "ready"}, {"kind": "steps", "number": 1}]
_NO_MEMORY: dict[str, Any] = {"kind": "failed", "causes": ["OutOfMemoryError: CUDA out of memory."]}
PLAYED: dict[str, list[dict[str, Any]]] = {
    "worker killed": [*_READY, {"kind": "kill"}],
    "out of memory": [*_READY, _NO_MEMORY],
    "hang": [*_READY, {"kind": "sleep", "seconds": 1000}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial."""

    fault: str
    state: TrialState
    retries: int
    first: str
    """State of the job that broke."""
    starts: tuple[str, ...]
    """How each job of the trial was started."""
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether the trial has the label that its fault must have."""
        retries = int(self.fault != NO_FAULT)
        expected = (TrialState.COMPLETE, retries, FIRST_STATE[self.fault])
        return (self.state, self.retries, self.first) == expected


class Soak:
    """A trial actor and the faults that are done to its jobs.

    Args:
        sweep: The job and its settings.
        folder: For logs.
        is_real: Whether verl runs, and not the stand-in.
    """

    def __init__(self, sweep: Sweep, folder: Path, *, is_real: bool) -> None:
        self._sweep = sweep
        self._spec = TrialSpec.of(sweep, folder / "logs", SWEEP_ID)
        self._script: Path | None = None
        if not is_real:
            self._script = folder / "script.json"
            self._script.write_text(json.dumps({"processes": []}))
            command = (sys.executable, str(STAND_IN), str(self._script))
            self._spec = replace(self._spec, command=command)
        self._group = placement_group(bundles(sweep.config.resources))
        ray.get(self._group.ready())
        self._actor: Any = None

    def run(self, number: int, setting: dict[str, Any], fault: str) -> Row:
        """Run one trial, with a fault in its second step."""
        started_s = time.monotonic()
        config = {
            "number": number,
            "attempt": 0,
            "setting": setting,
            "params": self._sweep.space.active(setting),
            "overrides": self._sweep.space.overrides(setting),
        }
        if self._script is not None and fault != NO_FAULT:
            self._script.with_suffix(".once").write_text(json.dumps(PLAYED[fault]))
        self._begin(config)
        num_steps = 0
        while True:
            future = self._actor.train.remote()
            if num_steps == 1 and self._script is None and fault != NO_FAULT:
                inject(fault)
            result = ray.get(future)
            num_steps += STEP_RECORD in result
            if result["done"]:
                record = TrialRecord.from_dict(json.loads(result[RECORD]))
                first = record.other_jobs[0].state.value if record.other_jobs else ""
                return Row(
                    fault=fault,
                    state=record.state,
                    retries=record.retries,
                    first=first,
                    starts=(*(job.start.value for job in record.other_jobs), record.start.value),
                    seconds=time.monotonic() - started_s,
                )

    def _begin(self, config: dict[str, Any]) -> None:
        if self._actor is not None:
            assert ray.get(self._actor.reset.remote(config))
            return
        trainable = tune.with_parameters(VerlTrial, spec=self._spec)
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=0)
        # The bundle's CPUs are the ranks'.
        self._actor = (
            ray.remote(trainable).options(num_cpus=0, scheduling_strategy=strategy).remote(config)
        )

    def close(self) -> list[str]:
        """End everything; return what is left after 10 s, in words."""
        ray.get(self._actor.stop.remote())
        ray.kill(self._actor)
        remove_placement_group(self._group)
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and remains():
            time.sleep(0.2)
        return remains()


def remains() -> list[str]:
    """Return the soak's processes and placement groups that are still there."""
    groups = [
        f"placement group {key}"
        for key, entry in placement_group_table().items()
        if entry["state"] != "REMOVED"
    ]
    return [f"process {found.pid}" for found in processes_of(SWEEP_ID)] + groups


def inject(fault: str) -> None:
    """Do a fault to a worker of the running job."""
    victim = next(found for found in processes_of(SWEEP_ID) if "WorkerDict" in found.cmdline()[0])
    if fault == "hang":
        victim.send_signal(signal.SIGSTOP)
    elif fault == "worker killed":
        victim.send_signal(signal.SIGKILL)
    else:
        victim.rlimit(psutil.RLIMIT_AS, (1 << 20, 1 << 20))


def table(rows: list[Row], left: list[str]) -> str:
    """Return the result as a table."""
    lines = [f"{'fault':<15}{'trials':>8}{'recovered':>11}{'mislabelled':>13}{'median s':>10}"]
    for fault, count in Counter(row.fault for row in rows).items():
        own = [row for row in rows if row.fault == fault]
        recovered = sum(row.state is TrialState.COMPLETE for row in own)
        wrong = sum(not row.is_right for row in own)
        seconds = sorted(row.seconds for row in own)[len(own) // 2]
        lines.append(f"{fault:<15}{count:>8}{recovered:>11}{wrong:>13}{seconds:>10.1f}")
    starts = Counter(start for row in rows for start in row.starts)
    lines.append(f"starts: {', '.join(f'{count} {start}' for start, count in starts.items())}")
    return "\n".join([*lines, f"left behind: {', '.join(left) if left else 'nothing'}"])


def main() -> int:
    """Run the soak, and print its table."""
    parser = argparse.ArgumentParser(description="Live trials with injected faults.")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--job", choices=("stand-in", "tiny"), default="stand-in")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=3, help="one trial in so many gets a fault")
    options = parser.parse_args()
    is_real = options.job == "tiny"
    protocol = ["trial.warmup_steps=1", "trial.measured_steps=2", "trial.profiled_steps=0"]
    limit = "trial.step_timeout_s=60" if is_real else "trial.step_timeout_s=5"
    sweep = load_sweep(
        ROOT / "search_spaces" / "quickstart_cpu.yaml", [*protocol, limit, ROLLOUT_KNOB]
    )
    ray.init(
        address="local",
        num_cpus=12,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    with tempfile.TemporaryDirectory(prefix="autotune_soak_") as folder:
        rows, left = soak(sweep, Path(folder), options, is_real=is_real)
    print(table(rows, left))
    return int(bool(left) or not all(row.is_right for row in rows))


def soak(
    sweep: Sweep, folder: Path, options: argparse.Namespace, *, is_real: bool
) -> tuple[list[Row], list[str]]:
    """Run the trials; return a row for each, and what is left afterwards."""
    bench = Soak(sweep, folder, is_real=is_real)
    draw = np.random.default_rng(options.seed)
    faults = [fault for fault in FIRST_STATE if fault != NO_FAULT]
    rows = []
    for number in range(1, options.trials + 1):
        setting = sweep.space.random_valid(draw)
        assert setting is not None
        # The trial after a fault is cold no more, so that each fault meets a live job.
        index, rest = divmod(number, options.every)
        fault = NO_FAULT if rest else faults[index % len(faults)]
        rows.append(bench.run(number, setting, fault))
        print(f"trial {number}: {rows[-1]}", flush=True)
    return rows, bench.close()


if __name__ == "__main__":
    sys.exit(main())
