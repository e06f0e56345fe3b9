"""One trial: a Tune Trainable that runs a setting of the knobs as a real verl job on its own
placement group.

Runs in the trial actor, beside the group's first bundle; verl runs in a child process and its
workers on the bundles. One ``step()`` is one PPO step and reports a
:class:`~autotune.objective.StepRecord`; the last report also holds the
:class:`~autotune.objective.TrialRecord`. A job that ended well stays alive for the next trial,
which restarts it in place when only settings of the training engines differ; any failure ends it,
and the next trial starts cold.
"""

import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune

from autotune.config import Sweep
from autotune.knobs import KNOBS, Transition
from autotune.objective import (
    RECORD,
    STEP_RECORD,
    StepKind,
    StepRecord,
    TrialRecord,
    TrialState,
    evaluate,
    timestamp,
)
from autotune.redaction import redact
from autotune.settings import ConstraintConfig, TrialConfig
from autotune.trial_metrics import summarise
from autotune.verl_bridge.launcher import EXITED, VerlProcess
from autotune.verl_bridge.overrides import format_override
from autotune.verl_bridge.process import DONE, FAILED, READY, STEP, JobRequest

MUST_BE_FINITE = (
    "actor/loss",
    "actor/pg_loss",
    "actor/grad_norm",
    "critic/loss",
    "critic/grad_norm",
)
"""verl's metrics whose NaN or infinity means that the setting broke the training."""

_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")
_OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOST = (
    "The node",
    "NodeDied",
    "No space left on device",
    "ActorUnavailableError",
    "ActorDiedError",
)


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """What all trials of a sweep share."""

    config_name: str
    base_overrides: tuple[str, ...]
    device: str
    num_ranks: int
    protocol: TrialConfig
    constraints: tuple[ConstraintConfig, ...]
    log_folder: Path
    always_cold: bool = False
    """Whether no job is restarted in place."""

    @staticmethod
    def of(sweep: Sweep, log_folder: Path, *, always_cold: bool = False) -> "TrialSpec":
        resources = sweep.config.resources
        return TrialSpec(
            config_name=sweep.config.base.config_name,
            base_overrides=sweep.base_overrides,
            device=resources.device,
            num_ranks=resources.num_ranks,
            protocol=sweep.config.trial,
            constraints=tuple(sweep.config.constraints),
            log_folder=log_folder,
            always_cold=always_cold,
        )


def protocol_overrides(protocol: TrialConfig) -> list[str]:
    """Return what a trial sets in verl's configuration for its own sake; none of it belongs into
    production."""
    values: dict[str, object] = {
        "trainer.total_training_steps": num_steps(protocol),
        "trainer.total_epochs": 1_000_000,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        # A step without the actor's update, or under verl's own profiler, is not the job's step.
        "trainer.critic_warmup": 0,
        "global_profiler.steps": None,
        "trainer.rollout_data_dir": None,
        "trainer.logger": ["console"],
        "data.seed": protocol.seed,
        "actor_rollout_ref.actor.data_loader_seed": protocol.seed,
        "actor_rollout_ref.rollout.seed": protocol.seed,
        "critic.data_loader_seed": protocol.seed,
    }
    return [format_override(key, value) for key, value in values.items()]


def num_steps(protocol: TrialConfig) -> int:
    """PPO steps of one trial."""
    return protocol.warmup_steps + protocol.measured_steps + protocol.profiled_steps


def kind_of_step(step: int, protocol: TrialConfig) -> StepKind:
    """Return what the job's step (1 is the first) is used for."""
    if step <= protocol.warmup_steps:
        return StepKind.WARMUP
    if step <= protocol.warmup_steps + protocol.measured_steps:
        return StepKind.MEASURED
    return StepKind.PROFILED


def classify(causes: Sequence[str]) -> TrialState:
    """Return the state of a job that broke, from its chain of exceptions as ``Type: message``."""
    text = "\n".join(causes)
    if any(mark in text for mark in _OUT_OF_MEMORY):
        return TrialState.OUT_OF_MEMORY
    if any(mark in text for mark in _LOST):
        return TrialState.INFRASTRUCTURE
    return TrialState.CRASH


class _Ended(Exception):
    """The trial ended before its last step."""

    def __init__(self, state: TrialState, cause: str) -> None:
        super().__init__(cause)
        self.state = state
        self.cause = cause


class VerlTrial(tune.Trainable):
    """The Trainable; its configuration is what :meth:`autotune.search.SweepSearcher.suggest`
    returns."""

    def setup(self, config: dict[str, Any], spec: TrialSpec | None = None) -> None:
        assert spec is not None
        self._spec = spec
        self._process: VerlProcess | None = None
        self._idle_setting: dict[str, Any] | None = None
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next setting; always possible, since a job that cannot be restarted in place is
        replaced."""
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        """End the job; called by Tune when the actor is stopped for good."""
        self._end_job()

    def step(self) -> dict[str, Any]:
        """Run one PPO step and report it; the last report also holds the trial's record."""
        try:
            if not self._steps:
                self._await_ready()
            record = self._await_step()
        except _Ended as ended:
            self._end_job()
            return {"done": True, RECORD: _text(self._record(ended.state, ended.cause))}
        self._steps.append(record)
        result: dict[str, Any] = {"done": False, STEP_RECORD: _text(record)}
        if len(self._steps) == num_steps(self._spec.protocol):
            self._idle_setting = self._config["setting"]
            result |= {"done": True, RECORD: _text(self._record(TrialState.COMPLETE, ""))}
        return result

    # The job.

    def _begin(self, config: dict[str, Any]) -> None:
        self._config = config
        self._steps: list[StepRecord] = []
        self._startup_s: float | None = None
        self._started_at = timestamp()
        self._started_s = time.monotonic()
        if not self._can_restart(config["setting"]):
            self._end_job()
        self._idle_setting = None
        if self._process is None:
            self._process = self._launch()
        protocol = self._spec.protocol
        self._process.submit(
            JobRequest(
                config_name=self._spec.config_name,
                overrides=[
                    *self._spec.base_overrides,
                    *config["overrides"],
                    *protocol_overrides(protocol),
                ],
                device=self._spec.device,
                profiled_steps=[
                    step
                    for step in range(1, num_steps(protocol) + 1)
                    if kind_of_step(step, protocol) is StepKind.PROFILED
                ],
                probes=protocol.consistency_probe,
            )
        )

    def _launch(self) -> VerlProcess:
        group = ray.util.get_current_placement_group()
        assert group is not None
        return VerlProcess(
            address=ray.get_runtime_context().gcs_address,
            placement_group_id=group.id.hex(),
            log_path=self._spec.log_folder / f"trial_{self._config['number']:04d}.log",
            working_dir=ray.get_runtime_context().runtime_env.get("working_dir") or "",
        )

    def _can_restart(self, setting: dict[str, Any]) -> bool:
        before = self._idle_setting
        if self._spec.always_cold or before is None:
            return False
        if self._process is None or not self._process.is_alive():
            return False
        changed = [name for name, value in setting.items() if before[name] != value]
        return all(
            KNOBS[name].transition in (Transition.HOT, Transition.ENGINE) for name in changed
        )

    def _end_job(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = None
        self._idle_setting = None

    # Events of the job.

    def _await_ready(self) -> None:
        self._await(READY, self._spec.protocol.startup_timeout_s, "did not begin its first step")
        self._startup_s = time.monotonic() - self._started_s

    def _await_step(self) -> StepRecord:
        event = self._await(STEP, self._spec.protocol.step_timeout_s, "finished no step")
        record = StepRecord(
            number=self._config["number"],
            attempt=self._config["attempt"],
            step=event["step"],
            kind=kind_of_step(event["step"], self._spec.protocol),
            metrics=event["metrics"],
            absent=event["absent"],
        )
        for key in MUST_BE_FINITE:
            value = event["metrics"].get(key)
            if value is not None and not math.isfinite(value):
                raise _Ended(TrialState.NAN, f"{key} is {value} in step {event['step']}")
        if len(self._steps) + 1 == num_steps(self._spec.protocol):
            self._await(DONE, self._spec.protocol.step_timeout_s, "did not end after its last step")
        return record

    def _await(self, kind: str, timeout_s: float, what: str) -> dict[str, Any]:
        assert self._process is not None
        event = self._process.next_event(timeout_s)
        if event is None:
            raise _Ended(TrialState.HANG, f"the job {what} for {timeout_s:g} s")
        if event["kind"] == FAILED:
            raise _Ended(classify(event["causes"]), _one_line(event["causes"]))
        if event["kind"] == EXITED:
            killed = event["returncode"] == -9
            raise _Ended(
                TrialState.INFRASTRUCTURE if killed else TrialState.CRASH,
                f"the verl process ended with code {event['returncode']}",
            )
        assert event["kind"] == kind, event
        return event

    # The record.

    def _record(self, state: TrialState, cause: str) -> TrialRecord:
        gpu_seconds = self._spec.num_ranks * (time.monotonic() - self._started_s)
        summary = summarise(self._steps, startup_s=self._startup_s, gpu_seconds=gpu_seconds)
        violations, satisfied = evaluate(summary.metrics, self._spec.constraints)
        return TrialRecord(
            number=self._config["number"],
            state=state,
            params=self._config["params"],
            setting=self._config["setting"],
            overrides=self._config["overrides"],
            metrics=summary.metrics,
            absent=summary.absent,
            intervals=summary.intervals,
            grad_sketch=summary.grad_sketch,
            violations=violations,
            feasible=satisfied and state is TrialState.COMPLETE,
            cause=redact(cause),
            started_at=self._started_at,
            ended_at=timestamp(),
            retries=0,
        )


def _one_line(causes: Sequence[str]) -> str:
    """The innermost exception without its traceback, which Ray puts before the message of a task's
    error."""
    if not causes:
        return "no cause was reported"
    lines = [line for line in _TERMINAL_CODES.sub("", causes[-1]).splitlines() if line.strip()]
    return (lines[-1] if lines[0].startswith("RayTaskError") else lines[0]).strip()[:500]


def _text(record: StepRecord | TrialRecord) -> str:
    """A record as one JSON text: Tune would flatten a mapping and choke on its keys."""
    return json.dumps(record.to_dict())
