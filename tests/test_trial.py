"""What a trial reports for jobs that end in every way: a real trial actor on a real placement
group, a real child process that plays back known events."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from local_ray import local_ray
from ray import tune
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.objective import (
    RECORD,
    START,
    STEP_RECORD,
    Start,
    StepRecord,
    TrialRecord,
    TrialState,
)
from autotune.settings import ConstraintConfig, RecoveryRuleConfig, TrialConfig
from autotune.trial import TrialSpec, VerlTrial
from autotune.verl_bridge.job_processes import processes_of

STAND_IN = Path(__file__).with_name("stand_in_job.py")
ROOT = Path(__file__).parents[1]
MICRO, RESHARD = "ppo_micro_batch_size_per_gpu", "reshard_after_forward"
SETTING = {MICRO: 2, RESHARD: True, "rollout_max_num_seqs": 8, "fsdp_size": 2}
PROTOCOL = TrialConfig(
    warmup_steps=1,
    measured_steps=2,
    profiled_steps=0,
    seed=7,
    startup_timeout_s=20,
    step_timeout_s=20,
)
CHECKPOINTING = "enable_gradient_checkpointing"
RULES = [
    RecoveryRuleConfig(when="nan", knobs={"clip_ratio": 0.1}),
    RecoveryRuleConfig(when="memory", above=0.9, knobs={CHECKPOINTING: False}),
]
PROTOCOLS = {
    "plain": PROTOCOL,
    "hasty": dataclasses.replace(PROTOCOL, startup_timeout_s=5, step_timeout_s=3),
    "recovering": dataclasses.replace(PROTOCOL, recovery=RULES),
    "proving": dataclasses.replace(PROTOCOL, recovery=RULES),
    "replaying": dataclasses.replace(PROTOCOL, fidelity="update"),
}
READY: dict[str, Any] = {"kind": "ready"}
DONE: dict[str, Any] = {"kind": "done"}
KILLED: dict[str, Any] = {"kind": "kill"}

pytestmark = pytest.mark.timeout(600)

Event = dict[str, Any]
Played = tuple[list[StepRecord], TrialRecord]


def phase(name: str) -> Event:
    return {"kind": "phase", "name": name}


def steps(number: int, **metrics: Any) -> Event:
    names = {key.replace("__", "/"): value for key, value in metrics.items()}
    return {"kind": "steps", "number": number, "metrics": names}


def failed(*causes: str) -> Event:
    return {"kind": "failed", "causes": list(causes)}


def sleep(seconds: float) -> Event:
    return {"kind": "sleep", "seconds": seconds}


def prints(text: str) -> Event:
    return {"kind": "print", "text": text}


COMPLETE = [READY, steps(3), DONE]
OUT_OF_MEMORY = failed("RayTaskError: x", "OutOfMemoryError: CUDA out of memory.")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    # Each actor keeps its placement group to the end.
    with local_ray(num_cpus=2 * len(PROTOCOLS)):
        yield


class Actor:
    """A trial actor, driven as Tune drives it; it serves several tests, each from a cold start."""

    def __init__(
        self, folder: Path, protocol: TrialConfig, *, always_cold: bool = False
    ) -> None:
        self.folder = folder
        self.script = folder / "script.json"
        self.spec = TrialSpec(
            config_name="ppo_trainer",
            base_overrides=("trainer.device=cpu", "trainer.n_gpus_per_node=2"),
            device="cpu",
            num_ranks=2,
            protocol=protocol,
            constraints=(ConstraintConfig(metric="peak_memory_ratio", max=0.9),),
            log_folder=folder / "logs",
            sweep_id=folder.name,
            always_cold=always_cold,
            rollout_folder=folder / "kept_rollout" if protocol.replays_rollout else None,
            command=(sys.executable, str(STAND_IN), str(self.script)),
        )
        self._group = placement_group([{"CPU": 1}, {"CPU": 1}])
        self._actor: Any = None

    def forget(self) -> None:
        """End the job, and forget what was played."""
        if self._actor is not None:
            ray.get(self._actor.cleanup.remote())
        for path in (*self.folder.glob("script.*"), *self.spec.log_folder.glob("*")):
            path.unlink()

    def plays(self, *processes: list[list[Event]]) -> None:
        """Set what the jobs do: for each process a list of runs."""
        self.script.write_text(json.dumps({"processes": list(processes)}))

    def run(self, number: int = 1, **changes: Any) -> Played:
        """Run one trial to its end."""
        self._begin(number, changes)
        found: list[StepRecord] = []
        while True:
            result = ray.get(self._actor.train.remote(), timeout=300)
            if STEP_RECORD in result:
                found.append(StepRecord.from_dict(json.loads(result[STEP_RECORD])))
            if result["done"]:
                return found, TrialRecord.from_dict(json.loads(result[RECORD]))

    def stop_after_first_step(self) -> None:
        """Run one step of a trial, as Tune does with one that its scheduler stops."""
        self._begin(1, {})
        result = ray.get(self._actor.train.remote(), timeout=300)
        assert not result["done"] and result[START] == Start.COLD.value

    def _begin(self, number: int, changes: dict[str, Any]) -> None:
        setting = {**SETTING, **changes}
        config = {
            "number": number,
            "attempt": 0,
            "setting": setting,
            "params": setting,
            "overrides": [],
        }
        if self._actor is None:
            trainable = tune.with_parameters(VerlTrial, spec=self.spec)
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=0)
            self._actor = (
                ray.remote(trainable)
                .options(num_cpus=1, scheduling_strategy=strategy)
                .remote(config)
            )
        else:
            assert ray.get(self._actor.reset.remote(config))

    def requests(self) -> list[dict[str, Any]]:
        lines = self.script.with_suffix(".requests").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def log(self, number: int = 1) -> str:
        return (self.spec.log_folder / f"trial_{number:04d}.log").read_text()

    def processes(self) -> list[psutil.Process]:
        return processes_of(self.spec.sweep_id)

    def kill(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


@pytest.fixture(scope="module")
def actor_of(
    cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Actor]]:
    """Make or reuse the actor of one protocol."""
    made: dict[str, Actor] = {}

    def get(name: str) -> Actor:
        if name not in made:
            made[name] = Actor(
                tmp_path_factory.mktemp(name), PROTOCOLS[name], always_cold=name == "proving"
            )
        made[name].forget()
        return made[name]

    yield get
    for actor in made.values():
        actor.kill()


@pytest.fixture
def actor(actor_of: Callable[[str], Actor]) -> Actor:
    return actor_of("plain")


@pytest.fixture
def hasty(actor_of: Callable[[str], Actor]) -> Actor:
    return actor_of("hasty")


@pytest.fixture
def recovering(actor_of: Callable[[str], Actor]) -> Actor:
    return actor_of("recovering")


def test_a_job_that_ends_well_is_one_cold_start(actor: Actor) -> None:
    actor.plays([COMPLETE])
    found, record = actor.run()
    assert [step.step for step in found] == [1, 2, 3]
    assert (record.state, record.start, record.retries) == (TrialState.COMPLETE, Start.COLD, 0)
    assert record.other_jobs == [] and record.recovery is None


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({MICRO: 4}, Start.HOT),
        ({}, Start.HOT),
        ({RESHARD: False}, Start.ENGINE),
        ({MICRO: 4, RESHARD: False}, Start.ENGINE),
        ({MICRO: 4, "rollout_max_num_seqs": 16}, Start.ROLLOUT),
        ({MICRO: 4, "fsdp_size": 1}, Start.COLD),
    ],
)
def test_the_next_setting_takes_the_cheapest_start(
    actor: Actor, change: dict[str, Any], start: Start
) -> None:
    actor.plays([COMPLETE, COMPLETE])
    actor.run()
    _, record = actor.run(number=2, **change)
    assert record.state is TrialState.COMPLETE
    assert record.start is start
    assert actor.requests()[1]["start"] == start.value


def test_the_job_of_a_trial_that_was_stopped_early_serves_the_next_one(actor: Actor) -> None:
    stopped = [READY, steps(1), sleep(0.5), *[steps(1)] * 2, DONE]
    actor.plays([stopped, COMPLETE])
    actor.stop_after_first_step()
    found, record = actor.run(number=2)
    assert [step.step for step in found] == [1, 2, 3]
    assert (record.state, record.start) == (TrialState.COMPLETE, Start.HOT)


@pytest.mark.parametrize(
    "rest", [[OUT_OF_MEMORY], [{"kind": "kill"}], [sleep(60)]], ids=["failed", "killed", "hangs"]
)
def test_what_breaks_after_a_trial_was_stopped_costs_the_next_one_a_cold_start_only(
    hasty: Actor, rest: list[Event]
) -> None:
    hasty.plays([[READY, steps(1), sleep(0.5), *rest]], [COMPLETE])
    hasty.stop_after_first_step()
    _, record = hasty.run(number=2)
    assert (record.state, record.start) == (TrialState.COMPLETE, Start.COLD)
    assert (record.retries, record.other_jobs) == (0, [])


def test_a_failure_of_a_cold_job_is_believed(actor: Actor) -> None:
    actor.plays([[READY, OUT_OF_MEMORY]])
    _, record = actor.run()
    assert record.state is TrialState.OUT_OF_MEMORY
    assert "CUDA out of memory" in record.cause
    assert (record.retries, record.other_jobs) == (0, [])


def test_a_failure_of_a_live_job_is_confirmed_cold_and_refuted(actor: Actor) -> None:
    actor.plays([COMPLETE, [READY, OUT_OF_MEMORY]], [COMPLETE])
    actor.run()
    found, record = actor.run(number=2, **{MICRO: 4})
    assert (record.state, record.start, record.retries) == (TrialState.COMPLETE, Start.COLD, 1)
    (first,) = record.other_jobs
    assert (first.start, first.state) == (Start.HOT, TrialState.OUT_OF_MEMORY)
    assert {step.attempt for step in found} == {1}


def test_a_failure_of_a_live_job_that_is_confirmed_cold_counts(actor: Actor) -> None:
    actor.plays([COMPLETE, [READY, OUT_OF_MEMORY]], [[READY, OUT_OF_MEMORY]])
    actor.run()
    _, record = actor.run(number=2, **{MICRO: 4})
    assert (record.state, record.start) == (TrialState.OUT_OF_MEMORY, Start.COLD)
    assert [job.start for job in record.other_jobs] == [Start.HOT]


def test_a_death_is_tried_again_once(actor: Actor) -> None:
    actor.plays([[READY, steps(1), KILLED]], [COMPLETE])
    found, record = actor.run()
    assert (record.state, record.retries) == (TrialState.COMPLETE, 1)
    assert [(step.attempt, step.step) for step in found] == [(0, 1), (1, 1), (1, 2), (1, 3)]
    assert record.other_jobs[0].state is TrialState.CRASH
    assert "signal 9" in record.other_jobs[0].cause


def test_the_second_death_is_the_settings(actor: Actor) -> None:
    died = failed("RayTaskError: x", "ActorDiedError: The actor died unexpectedly")
    actor.plays([[READY, phase("gen"), died]], [[READY, phase("gen"), died]])
    _, record = actor.run()
    assert record.state is TrialState.CRASH
    assert "in phase gen" in record.cause
    assert len(record.other_jobs) == 1


def test_a_full_disk_is_nobodys_setting_and_ends_the_trial(actor: Actor) -> None:
    actor.plays([[READY, failed("OSError: [Errno 28] No space left on device")]])
    _, record = actor.run()
    assert record.state is TrialState.INFRASTRUCTURE
    assert len(actor.requests()) == 1


def test_what_a_dead_worker_printed_says_why(actor: Actor) -> None:
    said = "(EngineCore pid=7) ValueError: No available memory for the cache blocks."
    failure = failed("RuntimeError: Engine core initialization failed. See root cause above.")
    actor.plays([[READY, prints(said), sleep(0.5), failure]])
    _, record = actor.run()
    assert record.state is TrialState.OUT_OF_MEMORY
    assert "cache blocks" in record.cause


def test_what_an_earlier_setting_printed_says_nothing(actor: Actor) -> None:
    said = prints("CUDA out of memory. Tried to allocate 2 GiB")
    actor.plays([[READY, said, sleep(0.5), *COMPLETE[1:]], [READY, KILLED]], [[READY, KILLED]])
    actor.run()
    _, record = actor.run(number=2, **{MICRO: 4})
    assert record.state is TrialState.CRASH


def test_a_hang_names_its_phase_and_leaves_all_stacks_in_the_log(hasty: Actor) -> None:
    actor = hasty
    actor.plays([[READY, steps(1), phase("gen"), phase("update_actor"), sleep(100)]])
    _, record = actor.run()
    assert record.state is TrialState.HANG
    assert "in phase update_actor" in record.cause and "finished no step for 3 s" in record.cause
    assert "in play" in actor.log() and "stand_in_job.py" in actor.log()
    assert actor.processes() == []


def test_a_step_that_only_changes_phases_is_a_hang_too(hasty: Actor) -> None:
    hasty.plays([[READY, *([phase("gen"), sleep(0.4)] * 100)]])
    _, record = hasty.run()
    assert record.state is TrialState.HANG


def test_a_start_that_hangs_names_its_phase(hasty: Actor) -> None:
    hasty.plays([[phase("workers"), sleep(100)]])
    _, record = hasty.run()
    assert record.state is TrialState.HANG
    assert "did not begin its first step" in record.cause and "in phase workers" in record.cause
    assert record.metrics["startup_s"] is None


def test_a_number_that_is_not_finite_ends_the_trial(actor: Actor) -> None:
    actor.plays([[READY, steps(1, actor__grad_norm=float("nan"))]])
    _, record = actor.run()
    assert record.state is TrialState.NAN
    assert record.cause == "actor/grad_norm is nan in step 1"


def test_processes_that_are_no_actors_go_with_their_job(actor: Actor) -> None:
    actor.plays([[{"kind": "child"}, READY, OUT_OF_MEMORY]])
    _, record = actor.run()
    assert record.state is TrialState.OUT_OF_MEMORY
    assert actor.processes() == []


def test_a_stopped_trial_leaves_no_process(actor: Actor) -> None:
    actor.plays([COMPLETE])
    actor.run()
    assert len(actor.processes()) == 1
    ray.get(actor._actor.stop.remote())
    assert actor.processes() == []


def test_a_trial_actor_that_is_killed_leaves_no_process(actor: Actor) -> None:
    actor.plays([COMPLETE])
    actor.run()
    actor.kill()
    deadline = time.monotonic() + 10
    while actor.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert actor.processes() == []


def test_a_rule_that_fires_is_recorded_with_what_the_setting_itself_came_to(
    recovering: Actor,
) -> None:
    recovering.plays([[READY, steps(1, actor__loss=float("inf"))]], [COMPLETE])
    _, record = recovering.run()
    assert (record.state, record.feasible) == (TrialState.COMPLETE, True)
    assert record.recovery is not None and record.recovery.rule == "nan: clip_ratio=0.1"
    assert record.overrides == record.recovery.overrides
    assert "actor_rollout_ref.actor.clip_ratio=0.1" in recovering.requests()[1]["overrides"]
    asked = record.as_asked()
    assert (asked.state, asked.overrides, asked.feasible) == (TrialState.NAN, [], False)


def test_memory_above_the_limit_is_tried_with_less(recovering: Actor) -> None:
    full = [READY, steps(3, autotune__peak_memory_ratio=0.95), DONE]
    recovering.plays([full], [COMPLETE])
    _, record = recovering.run()
    assert record.recovery is not None
    assert record.metrics["peak_memory_ratio"] == 0.5
    asked = record.as_asked()
    assert asked.metrics["peak_memory_ratio"] == 0.95
    assert (asked.state, asked.feasible) == (TrialState.COMPLETE, False)


def test_a_rule_that_does_not_help_leaves_the_setting_as_asked(recovering: Actor) -> None:
    recovering.plays([[READY, OUT_OF_MEMORY]], [[READY, OUT_OF_MEMORY]])
    _, record = recovering.run()
    assert (record.state, record.recovery, record.overrides) == (
        TrialState.OUT_OF_MEMORY,
        None,
        [],
    )
    assert [job.rule for job in record.other_jobs] == [f"memory: {CHECKPOINTING}=false"]


def test_no_rule_changes_the_baseline(recovering: Actor) -> None:
    recovering.plays([[READY, OUT_OF_MEMORY]])
    _, record = recovering.run(number=0)
    assert record.state is TrialState.OUT_OF_MEMORY
    assert len(recovering.requests()) == 1


def test_what_proves_a_setting_runs_it_as_it_is_and_cold(
    actor_of: Callable[[str], Actor],
) -> None:
    actor = actor_of("proving")
    above = {"autotune/peak_memory_ratio": 0.95}
    actor.plays([[READY, {"kind": "steps", "number": 3, "metrics": above}, DONE]], [COMPLETE])
    _, first = actor.run()
    _, second = actor.run(number=2)
    assert (first.recovery, first.metrics["peak_memory_ratio"]) == (None, 0.95)
    assert (first.start, second.start) == (Start.COLD, Start.COLD)


def test_the_trial_after_a_recovered_one_starts_cold(recovering: Actor) -> None:
    recovering.plays([[READY, OUT_OF_MEMORY]], [COMPLETE])
    recovering.run()
    _, record = recovering.run(number=2)
    assert record.start is Start.COLD


def test_a_trial_tells_its_job_where_the_kept_rollout_lies(
    actor_of: Callable[[str], Actor],
) -> None:
    replaying = actor_of("replaying")
    replaying.plays([COMPLETE])
    folder = replaying.folder / "kept_rollout"
    folder.mkdir()
    _, record = replaying.run()
    folder.rmdir()
    assert record.state is TrialState.COMPLETE
    assert replaying.requests()[0]["rollout_folder"] == str(folder)


def test_a_node_that_does_not_see_the_kept_rollout_runs_no_trial(
    actor_of: Callable[[str], Actor],
) -> None:
    replaying = actor_of("replaying")
    replaying.plays([COMPLETE])
    steps_run, record = replaying.run()
    assert (steps_run, record.state) == ([], TrialState.INFRASTRUCTURE)
    assert "needs output_dir in a folder that all nodes share" in record.cause


def test_a_live_job_is_not_taken_for_that_of_a_trial_that_never_reached_it(
    actor_of: Callable[[str], Actor],
) -> None:
    replaying = actor_of("replaying")
    replaying.plays([COMPLETE, COMPLETE], [COMPLETE])
    folder = replaying.folder / "kept_rollout"
    folder.mkdir()
    replaying.run(1)
    folder.rmdir()
    _, lost = replaying.run(2, **{RESHARD: False})
    folder.mkdir()
    _, record = replaying.run(3, **{RESHARD: False})
    folder.rmdir()
    assert lost.state is TrialState.INFRASTRUCTURE
    # The job that is left has the engines of the first setting.
    assert (record.state, record.start) == (TrialState.COMPLETE, Start.COLD)
