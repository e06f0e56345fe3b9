"""Rollout servers that are ended and started again in a live job, real ones on two gloo ranks.

Such a job must compute what a cold one computes, in every token, and leave nothing of the servers
before. A restart that fails costs a cold start and no setting its name.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import yaml
from job_bench import Bench, assert_not_grown, live_actors
from quickstart_case import QUICKSTART, load_quickstart, quickstart_files, values

from autotune.config import Sweep
from autotune.in_order import run_live
from autotune.job_run import JobRun
from autotune.leftovers import identity_of
from autotune.objective import Start, TrialState
from autotune.tuning import cluster
from autotune.verl_bridge.job_processes import processes_of

MICRO, RESHARD = "ppo_micro_batch_size_per_gpu", "reshard_after_forward"
BATCH, RANKS = "rollout_max_num_seqs", "rollout_tensor_model_parallel_size"
BUCKET = "rollout_update_weights_bucket_megabytes"
A = {MICRO: 2, RESHARD: True, BATCH: 8, RANKS: 2, BUCKET: 64}
CHOICES = {
    MICRO: [2, 8],
    RESHARD: [True, False],
    BATCH: [4, 8, 256],
    RANKS: [1, 2],
    BUCKET: [1, 64, 2048],
}
NUM_RESTARTS = 10
SAME = (
    "actor/loss",
    "actor/grad_norm",
    "actor/kl_loss",
    "critic/score/mean",
    "response_length/mean",
)

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    content = yaml.safe_load(QUICKSTART.read_text())
    content["knobs"] = {name: {"choices": choices} for name, choices in CHOICES.items()}
    content["trial"] |= {"measured_steps": 1, "profiled_steps": 0, "consistency_probe": False}
    file = tmp_path_factory.mktemp("sweep") / "rollout.yaml"
    file.write_text(yaml.safe_dump(content))
    with quickstart_files():
        loaded = load_quickstart(file=file)
        with cluster(loaded, None):
            yield loaded


@pytest.fixture(scope="module")
def bench(sweep: Sweep, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(sweep, tmp_path_factory.mktemp("logs"))
    yield bench
    bench.close()


def settings_of_servers() -> list[dict[str, Any]]:
    """What the job's rollout servers were started with, asked of themselves."""
    found = [actor for actor in live_actors() if actor["name"].startswith("hf_server_")]
    servers = [ray.get_actor(actor["name"], actor["namespace"]) for actor in found]
    settings = [server.__ray_call__.remote(lambda self: vars(self._settings)) for server in servers]
    return ray.get(settings)


@pytest.fixture(scope="module")
def runs(bench: Bench) -> dict[str, tuple[JobRun, list[dict[str, Any]]]]:
    """One setting cold, then through restarts of the rollout, with the servers that it had."""
    changes: dict[str, dict[str, Any]] = {
        "cold": {},
        "other servers": {BATCH: 4, BUCKET: 1},
        "again": {},
        "a server a rank": {RANKS: 1, MICRO: 8},
        "again from two servers": {},
        "other engines too": {BATCH: 4, RESHARD: False},
        "again with engines rebuilt": {},
    }
    return {
        name: (bench.run({**A, **change}), settings_of_servers())
        for name, change in changes.items()
    }


AGAIN = ("again", "again from two servers", "again with engines rebuilt")


def test_the_job_lives_through_all_of_it(
    runs: dict[str, tuple[JobRun, list[dict[str, Any]]]],
) -> None:
    starts = [run.start for run, _ in runs.values()]
    assert starts == [Start.COLD, *[Start.ROLLOUT] * 6]


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("metric", SAME)
def test_a_restarted_rollout_serves_a_job_as_in_a_cold_one(
    runs: dict[str, tuple[JobRun, list[dict[str, Any]]]], name: str, metric: str
) -> None:
    cold, live = values(runs["cold"][0], metric), values(runs[name][0], metric)
    assert live == pytest.approx(cold, rel=1e-6, abs=2e-7)


@pytest.mark.parametrize("name", AGAIN)
def test_the_servers_are_configured_as_in_a_cold_job(
    runs: dict[str, tuple[JobRun, list[dict[str, Any]]]], name: str
) -> None:
    assert len(runs[name][1]) == 1
    assert runs[name][1] == runs["cold"][1]


def test_what_the_servers_read_is_the_new_setting(
    runs: dict[str, tuple[JobRun, list[dict[str, Any]]]],
) -> None:
    batches = {
        name: [one["max_num_seqs"] for one in servers] for name, (_, servers) in runs.items()
    }
    assert batches["cold"] == [8]
    assert batches["other servers"] == [4]
    assert batches["a server a rank"] == [8, 8]
    assert batches["other engines too"] == [4]


def test_the_first_step_says_what_the_restart_took(
    runs: dict[str, tuple[JobRun, list[dict[str, Any]]]],
) -> None:
    parts = {f"autotune/startup_rollout_{part}_s" for part in ("end", "memory", "start")}
    assert not parts & runs["cold"][0].steps[0].metrics.keys()
    for name in AGAIN:
        assert parts <= runs[name][0].steps[0].metrics.keys()


def test_restarts_leave_nothing_behind(
    bench: Bench, runs: dict[str, tuple[JobRun, list[dict[str, Any]]]]
) -> None:
    settings = [{**A, BATCH: 4}, A]
    for setting in settings:
        bench.run(setting)
    (server,) = bench.processes_of("HFServer")
    before = bench.footprint()
    for index in range(NUM_RESTARTS):
        assert bench.run(settings[index % len(settings)]).start is Start.ROLLOUT
    assert_not_grown(before, bench.footprint())
    assert not server.is_running() and len(bench.processes_of("HFServer")) == 1
    bench.end()


class KillerOfSecondServer(threading.Thread):
    """Kills the second rollout server of a sweep, as soon as it is there."""

    def __init__(self, sweep_id: str) -> None:
        super().__init__(daemon=True)
        self._sweep_id = sweep_id
        self.has_killed = False

    def run(self) -> None:
        first: psutil.Process | None = None
        while not self.has_killed:
            servers = [one for one in processes_of(self._sweep_id) if _is_server(one)]
            first = first or next(iter(servers), None)
            for server in servers:
                if server != first:
                    server.kill()
                    self.has_killed = True
            time.sleep(0.02)


def _is_server(process: psutil.Process) -> bool:
    try:
        return "HFServer" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def test_a_restart_that_fails_costs_a_cold_start(sweep: Sweep, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    killer = KillerOfSecondServer(identity_of(logs.parent))
    killer.start()
    first, second = run_live(sweep, [A, {**A, BATCH: 4}], logs)
    assert killer.has_killed
    assert (first.record.state, first.record.start) == (TrialState.COMPLETE, Start.COLD)
    assert (second.record.state, second.record.start) == (TrialState.COMPLETE, Start.COLD)
    (failed,) = second.record.other_jobs
    assert (failed.start, failed.state) == (Start.ROLLOUT, TrialState.CRASH), failed.cause
    assert second.record.retries == 1
