"""One real verl job after another on a real placement group: PPO with a critic on two gloo ranks.

A live job must compute what a cold one computes, grow in nothing, and say where it was when a
worker was killed. Four cold starts serve all of it.
"""

import dataclasses
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray
import yaml
from critic_case import with_critic
from job_bench import PROTOCOL, Bench, assert_not_grown
from local_ray import local_ray
from quickstart_case import QUICKSTART, load_quickstart, quickstart_files, values

from autotune.config import Sweep
from autotune.job_run import JobEnded, JobRun
from autotune.objective import Start, TrialState
from autotune.protocol import COLLECTIVE_SHARE
from autotune.settings import TrialConfig
from autotune.verl_bridge.job_processes import processes_of
from autotune.verl_bridge.launcher import VerlProcess
from autotune.verl_bridge.phases import PHASE_OF_METHOD
from autotune.verl_bridge.process import PHASE

MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
RESHARD, CHECKPOINTING = "reshard_after_forward", "enable_gradient_checkpointing"
A = {MICRO: 2, SCORING: 2, RESHARD: True, CHECKPOINTING: True}
NUM_TRANSITIONS = 50
SAME = ("actor/loss", "actor/grad_norm", "critic/loss", "critic/grad_norm", "critic/score/mean")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The quickstart's job, with a critic."""
    file = tmp_path_factory.mktemp("sweep") / "gae.yaml"
    file.write_text(yaml.safe_dump(with_critic(QUICKSTART.read_text())))
    with quickstart_files():
        return load_quickstart(file=file)


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
    cold, live = values(runs["cold"], key), values(runs[name], key)
    assert live == pytest.approx(cold, rel=1e-6, abs=2e-7)


def test_a_change_of_micro_batch_acts(runs: dict[str, JobRun]) -> None:
    # The same gradient, summed in other pieces.
    cold, changed = (values(runs[name], "actor/grad_norm")[0] for name in ("cold", "micro-batch"))
    assert changed == pytest.approx(cold, rel=1e-3)


@pytest.mark.parametrize("name", ["hot again", "engine again"])
def test_peak_memory_does_not_remember_earlier_trials(runs: dict[str, JobRun], name: str) -> None:
    key = "autotune/peak_memory_ratio"
    cold, live = max(values(runs["cold"], key)), max(values(runs[name], key))
    assert live == pytest.approx(cold, rel=0.15)


def test_many_transitions_leave_no_trace(bench: Bench, runs: dict[str, JobRun]) -> None:
    settings = [{**A, MICRO: 4}, {**A, RESHARD: False}, {**A, MICRO: 8}, A]
    for setting in settings:
        bench.run(setting)
    before = bench.footprint()
    for index in range(NUM_TRANSITIONS):
        bench.run(settings[index % len(settings)])
    assert_not_grown(before, bench.footprint())


class Saboteur:
    """The launcher, sending a process a signal when the job enters a phase."""

    def __init__(
        self, process: VerlProcess, victim: psutil.Process, phase: str, number: signal.Signals
    ) -> None:
        self._process = process
        self._victim = victim
        self._phase = phase
        self._signal = number
        self.is_done = False

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        event = self._process.next_event(timeout_s)
        is_it = event is not None and event["kind"] == PHASE and event["name"] == self._phase
        if is_it and not self.is_done:
            self.is_done = True
            self._victim.send_signal(self._signal)
        return event


def end_of(
    bench: Bench,
    actor: str,
    phase: str,
    number: signal.Signals = signal.SIGKILL,
    protocol: TrialConfig = PROTOCOL,
) -> JobEnded:
    """Run a job of which a process gets a signal in a phase of the second step."""
    run = bench.begin(A, protocol)
    run.next_step()
    assert bench.process is not None
    saboteur = Saboteur(bench.process, bench.processes_of(actor)[0], phase, number)
    run._process = saboteur  # type: ignore[assignment]
    with pytest.raises(JobEnded) as ended:
        while True:
            run.next_step()
    assert saboteur.is_done
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
    ended = end_of(bench, actor, phase)
    assert ended.verdict.state is TrialState.CRASH and ended.verdict.has_died
    # The phase may be over before the signal arrives; the next one then meets the dead process.
    names = list(PHASE_OF_METHOD.values())
    assert any(f"in phase {name}:" in ended.verdict.cause for name in names), ended.verdict.cause
    assert_nothing_is_left(bench)


def test_a_rank_that_stands_still_is_told_by_the_collective_that_waits_for_it(
    bench: Bench,
) -> None:
    hasty = dataclasses.replace(PROTOCOL, step_timeout_s=80)
    ended = end_of(bench, "WorkerDict", "update_actor", signal.SIGSTOP, hasty)
    assert ended.verdict.state is TrialState.HANG
    # Long before the step's own limit, which would say that no step was finished.
    assert f"imed out waiting {COLLECTIVE_SHARE * 80 * 1000:.0f}ms" in ended.verdict.cause
    assert "all stacks" in bench.log_path.read_text()
    assert_nothing_is_left(bench)


def assert_nothing_is_left(bench: Bench) -> None:
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
