"""Real verl jobs on a placement group, without Ray Tune: settings one by one, cold or live."""

import os
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from autotune.config import Sweep
from autotune.job_run import JobRun
from autotune.objective import Start
from autotune.placement import bundles
from autotune.protocol import COLLECTIVE_SHARE, protocol_overrides
from autotune.settings import TrialConfig
from autotune.transition import cheapest_start, keeps_engines
from autotune.verl_bridge.job_processes import end_processes, job_name, processes_of
from autotune.verl_bridge.launcher import VerlProcess
from autotune.verl_bridge.nodes import TrialNodes
from autotune.verl_bridge.process import JobRequest

PROTOCOL = TrialConfig(
    warmup_steps=1,
    measured_steps=1,
    profiled_steps=0,
    seed=1,
    startup_timeout_s=900,
    step_timeout_s=300,
)


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

    def begin(self, setting: dict[str, Any], protocol: TrialConfig = PROTOCOL) -> JobRun:
        """Begin a setting, live where a job is."""
        start, are_engines_kept = Start.COLD, False
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
            are_engines_kept = keeps_engines(self._setting, setting)
        self._setting = setting
        request = JobRequest(
            config_name=self._sweep.config.base.config_name,
            overrides=[*self._sweep.job_overrides(setting), *protocol_overrides(protocol)],
            device="cpu",
            profiled_steps=[],
            probes=False,
            start=start.value,
            keeps_engines=are_engines_kept,
            collective_timeout_s=COLLECTIVE_SHARE * protocol.step_timeout_s,
            keeps_first=True,
            rollout_folder=None,
        )
        return JobRun(
            self.process,
            request,
            protocol=protocol,
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

    def processes_of(self, actor: str) -> list[psutil.Process]:
        """The processes of one of the job's actors."""
        return [found for found in processes_of(self.job) if actor in _command(found)]

    def footprint(self) -> dict[str, int]:
        """What transitions must not make grow."""
        processes = processes_of(self.job)
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
            "actors": len(live_actors()),
            "files": sum(process.num_fds() for process in ours),
            "threads": sum(process.num_threads() for process in ours),
            "plasma_objects": int(used[0].split(",")[1].split()[0]) if used else 0,
            "resident_mib": sum(process.memory_info().rss for process in ours) >> 20,
        }

    def close(self) -> None:
        self.end()
        remove_placement_group(self._group)


def live_actors() -> list[dict[str, str]]:
    """Ray's actors that have a name and live, of all jobs: namespace and name of each."""
    return ray.util.list_named_actors(all_namespaces=True)


def assert_not_grown(before: dict[str, int], after: dict[str, int]) -> None:
    """Fail where the second footprint is more than noise above the first."""
    assert after["processes"] <= before["processes"]
    assert after["actors"] <= before["actors"]
    assert after["files"] <= before["files"] + 4
    assert after["threads"] <= before["threads"] + 4
    assert after["plasma_objects"] <= before["plasma_objects"] + 10
    assert after["resident_mib"] <= 1.05 * before["resident_mib"]


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline())
