"""One real verl job after another on a real placement group: PPO with a critic on two gloo ranks.

A live job must compute what a cold one computes, grow in nothing, and say where it was when a
worker was killed. Four cold starts serve all of it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import yaml
from critic_case import with_critic
from local_ray import local_ray
from ray.util.placement_group import placement_group, remove_placement_group

from autotune.config import Sweep, load_sweep
from autotune.job_run import JobEnded, JobRun
from autotune.objective import Start, TrialState
from autotune.placement import bundles
from autotune.protocol import COLLECTIVE_SHARE, protocol_overrides
from autotune.settings import TrialConfig
from autotune.transition import cheapest_start
from autotune.verl_bridge.job_processes import end_processes, job_name, processes_of
from autotune.verl_bridge.launcher import VerlProcess
from autotune.verl_bridge.nodes import TrialNodes
from autotune.verl_bridge.phases import PHASE_OF_METHOD
from autotune.verl_bridge.process import PHASE, JobRequest

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"
MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
RESHARD, CHECKPOINTING = "reshard_after_forward", "enable_gradient_checkpointing"
A = {MICRO: 2, SCORING: 2, RESHARD: True, CHECKPOINTING: True}
PROTOCOL = TrialConfig(
    warmup_steps=1,
    measured_steps=1,
    profiled_steps=0,
    seed=1,
    startup_timeout_s=900,
    step_timeout_s=300,
)
NUM_TRANSITIONS = 20
SAME = ("actor/loss", "actor/grad_norm", "critic/loss", "critic/grad_norm", "critic/score/mean")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The quickstart's job, with a critic."""
    subprocess.run(
        [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"], cwd=ROOT, check=True
    )
    content = with_critic(QUICKSTART.read_text())
    file = tmp_path_factory.mktemp("sweep") / "gae.yaml"
    file.write_text(yaml.safe_dump(content))
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        return load_sweep(file)
    finally:
        os.chdir(before)


class Bench:
    """A placement group and the jobs on it."""

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        self._sweep = sweep
        self._folder = folder
        self._group = placement_group(bundles(sweep.config.resources))
        ray.get(self._group.ready())
        self._nodes = TrialNodes(self._group)
        self._num_jobs = 0
        self._setting: dict[str, Any] | None = None
        self.process: VerlProcess | None = None
        self.job = job_name(f"bench{os.getpid()}", self._group.id.hex())

    @property
    def log_path(self) -> Path:
        return self._folder / f"job_{self._num_jobs}.log"

    def begin(self, setting: dict[str, Any]) -> JobRun:
        """Begin a setting, live where a job is."""
        start = Start.COLD
        if self.process is None:
            self._num_jobs += 1
            self.process = VerlProcess(
                address=ray.get_runtime_context().gcs_address,
                placement_group_id=self._group.id.hex(),
                job=self.job,
                log_path=self.log_path,
            )
        else:
            assert self._setting is not None
            start = cheapest_start(self._setting, setting)
        self._setting = setting
        request = JobRequest(
            config_name=self._sweep.config.base.config_name,
            overrides=[*self._sweep.job_overrides(setting), *protocol_overrides(PROTOCOL)],
            device="cpu",
            profiled_steps=[],
            probes=False,
            start=start.value,
            collective_timeout_s=COLLECTIVE_SHARE * PROTOCOL.step_timeout_s,
            keeps_first=True,
            rollout_folder=None,
        )
        return JobRun(
            self.process,
            request,
            protocol=PROTOCOL,
            number=1,
            attempt=0,
            nodes=self._nodes,
            job=self.job,
            log_path=self.log_path,
        )

    def run(self, setting: dict[str, Any]) -> JobRun:
        """Run a setting to its end."""
        run = self.begin(setting)
        while not run.is_complete:
            run.next_step()
        return run

    def end(self) -> None:
        """End the job."""
        if self.process is not None:
            self.process.kill()
            self.process = None
            end_processes(self.job, 5)

    def process_of(self, actor: str) -> psutil.Process:
        """A process of one of the job's actors."""
        return next(found for found in processes_of(self.job) if actor in _command(found))

    def close(self) -> None:
        self.end()
        remove_placement_group(self._group)


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


@pytest.fixture(scope="module")
def bench(sweep: Sweep, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with local_ray(num_cpus=9):
        bench = Bench(sweep, tmp_path_factory.mktemp("logs"))
        yield bench
        bench.close()


@pytest.fixture(scope="module")
def runs(bench: Bench) -> dict[str, JobRun]:
    """One setting cold, then through others, then again."""
    done = {"cold": bench.run(A)}
    done["micro-batch"] = bench.run({**A, MICRO: 8, SCORING: 16})
    done["hot again"] = bench.run(A)
    done["engine"] = bench.run({**A, RESHARD: False, CHECKPOINTING: False})
    done["engine again"] = bench.run(A)
    left = bench.begin({**A, MICRO: 8})
    left.next_step()
    left.leave()
    assert len(left.steps) == 1
    done["after one that was left"] = bench.run(A)
    return done


def of_steps(run: JobRun, key: str) -> list[float]:
    return [float(step.metrics[key]) for step in run.steps]  # type: ignore[arg-type]


def test_each_change_takes_its_cheapest_start(runs: dict[str, JobRun]) -> None:
    assert [run.start for run in runs.values()] == [
        Start.COLD,
        Start.HOT,
        Start.HOT,
        Start.ENGINE,
        Start.ENGINE,
        Start.HOT,
    ]


@pytest.mark.parametrize("name", ["hot again", "engine again", "after one that was left"])
@pytest.mark.parametrize("key", SAME)
def test_a_live_job_computes_what_a_cold_one_computes(
    runs: dict[str, JobRun], name: str, key: str
) -> None:
    cold, live = of_steps(runs["cold"], key), of_steps(runs[name], key)
    assert live == pytest.approx(cold, rel=1e-6, abs=2e-7)


def test_a_change_of_micro_batch_acts(runs: dict[str, JobRun]) -> None:
    # The same gradient, summed in other pieces.
    cold, changed = (of_steps(runs[name], "actor/grad_norm")[0] for name in ("cold", "micro-batch"))
    assert changed == pytest.approx(cold, rel=1e-3)


@pytest.mark.parametrize("name", ["hot again", "engine again"])
def test_peak_memory_does_not_remember_earlier_trials(runs: dict[str, JobRun], name: str) -> None:
    key = "autotune/peak_memory_ratio"
    cold, live = max(of_steps(runs["cold"], key)), max(of_steps(runs[name], key))
    assert live == pytest.approx(cold, rel=0.15)


def footprint(bench: Bench) -> dict[str, int]:
    """What twenty transitions must not make grow."""
    processes = processes_of(bench.job)
    ours = [
        process
        for process in processes
        if "WorkerDict" in _command(process) or "verl_bridge.process" in _command(process)
    ]
    from ray._private.internal_api import memory_summary

    # Without an address it asks the cluster that this machine started last.
    address = ray.get_runtime_context().gcs_address
    objects = memory_summary(address, stats_only=True, group_by="NODE_ADDRESS")
    used = [line for line in objects.splitlines() if "Plasma memory usage" in line]
    return {
        "processes": len(processes),
        "files": sum(process.num_fds() for process in ours),
        "threads": sum(process.num_threads() for process in ours),
        "plasma_objects": int(used[0].split(",")[1].split()[0]) if used else 0,
        "resident_mib": sum(process.memory_info().rss for process in ours) >> 20,
    }


def test_many_transitions_leave_no_trace(bench: Bench, runs: dict[str, JobRun]) -> None:
    settings = [{**A, MICRO: 4}, {**A, RESHARD: False}, {**A, MICRO: 8}, A]
    for setting in settings:
        bench.run(setting)
    before = footprint(bench)
    for index in range(NUM_TRANSITIONS):
        bench.run(settings[index % len(settings)])
    after = footprint(bench)
    assert after["processes"] <= before["processes"]
    assert after["files"] <= before["files"] + 4
    assert after["threads"] <= before["threads"] + 4
    assert after["plasma_objects"] <= before["plasma_objects"] + 10
    assert after["resident_mib"] <= 1.05 * before["resident_mib"]


class Killer:
    """The launcher, killing a process by SIGKILL when the job enters a phase."""

    def __init__(self, process: VerlProcess, victim: psutil.Process, phase: str) -> None:
        self._process = process
        self._victim = victim
        self._phase = phase
        self.has_killed = False

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        event = self._process.next_event(timeout_s)
        is_it = event is not None and event["kind"] == PHASE and event["name"] == self._phase
        if is_it and not self.has_killed:
            self.has_killed = True
            self._victim.send_signal(signal.SIGKILL)
        return event


def end_of_killed(bench: Bench, actor: str, phase: str) -> JobEnded:
    """Run a job of which a process is killed in a phase of the second step."""
    run = bench.begin(A)
    run.next_step()
    assert bench.process is not None
    killer = Killer(bench.process, bench.process_of(actor), phase)
    run._process = killer  # type: ignore[assignment]
    with pytest.raises(JobEnded) as ended:
        while True:
            run.next_step()
    assert killer.has_killed
    return ended.value


@pytest.mark.parametrize(
    ("actor", "phase"),
    [
        ("HFServer", "gen"),
        ("WorkerDict", "old_log_prob"),
        ("WorkerDict", "update_actor"),
        ("WorkerDict", "update_weights"),
    ],
)
def test_a_process_that_is_killed_ends_the_job_in_that_phase_and_nothing_is_left(
    bench: Bench, runs: dict[str, JobRun], actor: str, phase: str
) -> None:
    ended = end_of_killed(bench, actor, phase)
    assert ended.verdict.state is TrialState.CRASH and ended.verdict.has_died
    # The phase may be over before the signal arrives; the next one then meets the dead process.
    names = list(PHASE_OF_METHOD.values())
    assert any(f"in phase {name}:" in ended.verdict.cause for name in names), ended.verdict.cause
    bench.end()
    deadline = time.monotonic() + 10
    while processes_of(bench.job) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(bench.job) == []
    # All but the placement group's own, which stays for the next job.
    wanted = ray.cluster_resources()["CPU"] - 2
    while ray.available_resources().get("CPU", 0) < wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == wanted
