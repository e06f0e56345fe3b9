"""One trial: a Tune Trainable that runs a setting of the knobs as real verl jobs on its own
placement group.

Runs in the trial actor, beside the group's first bundle; verl runs in a child process and its
workers on the bundles. One ``step()`` is one PPO step and reports a
:class:`~autotune.objective.StepRecord`; the last report also holds the
:class:`~autotune.objective.TrialRecord`. A trial is one job as a rule; what follows a job that
broke says :mod:`autotune.recovery`. A job that ended well stays alive for the next trial, see
:mod:`autotune.transition`, and so does one whose trial was stopped early; any failure ends it.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune

from autotune import recovery
from autotune.config import Sweep
from autotune.errors import TrialStartError
from autotune.failure import Verdict
from autotune.job_run import JobEnded, JobRun
from autotune.objective import (
    RECORD,
    START,
    STEP_RECORD,
    JobOutcome,
    Recovery,
    Start,
    StepRecord,
    TrialRecord,
    TrialState,
    evaluate,
    timestamp,
)
from autotune.protocol import COLLECTIVE_SHARE, profiled_steps, protocol_overrides
from autotune.recovery import AppliedRule
from autotune.redaction import redact
from autotune.settings import ConstraintConfig, TrialConfig
from autotune.store import ROLLOUT_FOLDER
from autotune.transition import cheapest_start, keeps_engines, keeps_first
from autotune.trial_metrics import summarise
from autotune.verl_bridge.device_memory import DeviceMemory
from autotune.verl_bridge.job_processes import end_processes, job_name
from autotune.verl_bridge.launcher import VERL_COMMAND, VerlProcess
from autotune.verl_bridge.nodes import TrialNodes
from autotune.verl_bridge.process import JobRequest

EMPTY_DEVICE_TIMEOUT_S = 120.0
"""How long a killed job's device memory may take to come back."""
PATIENCE_S = 5.0
"""How long a killed job's processes may take to go by themselves."""


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
    sweep_id: str
    """Names the sweep's processes and placement groups, see :mod:`autotune.leftovers`."""
    always_cold: bool = False
    """Whether every trial gets a fresh job and runs its setting as it is, whatever recovery rules
    there are."""
    rollout_folder: Path | None = None
    """Holds the rollout that every trial replays; None: each generates its own."""
    command: tuple[str, ...] = VERL_COMMAND
    """The program that runs a job."""

    @staticmethod
    def of(
        sweep: Sweep, log_folder: Path, sweep_id: str, *, always_cold: bool = False
    ) -> "TrialSpec":
        resources = sweep.config.resources
        replays = sweep.config.trial.replays_rollout
        return TrialSpec(
            config_name=sweep.config.base.config_name,
            base_overrides=sweep.base_overrides,
            device=resources.device,
            num_ranks=resources.num_ranks,
            protocol=sweep.config.trial,
            constraints=tuple(sweep.config.constraints),
            log_folder=log_folder,
            sweep_id=sweep_id,
            always_cold=always_cold,
            rollout_folder=log_folder.parent / ROLLOUT_FOLDER if replays else None,
        )


class VerlTrial(tune.Trainable):
    """The Trainable; its configuration is what :meth:`autotune.search.SweepSearcher.suggest`
    returns."""

    def setup(self, config: dict[str, Any], spec: TrialSpec | None = None) -> None:
        assert spec is not None
        group = ray.util.get_current_placement_group()
        assert group is not None
        self._spec = spec
        self._group_id = group.id.hex()
        self._job = job_name(spec.sweep_id, self._group_id)
        self._group = group
        self._nodes = TrialNodes(group)
        self._devices = DeviceMemory(group)
        self._process: VerlProcess | None = None
        self._log_path = spec.log_folder
        self._idle_setting: dict[str, Any] | None = None
        self._stopped_run: JobRun | None = None
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next setting; always possible, since a job that cannot be restarted in place is
        replaced."""
        runs = self._process is not None and self._run is not None
        if runs and self._idle_setting is None and self._rule is None:
            # Tune stopped the trial between two reports; its job is in the next step.
            self._stopped_run, self._idle_setting = self._run, self._config["setting"]
        self._begin(new_config)
        return True

    def cleanup(self) -> None:
        """End the job; called by Tune when the actor is stopped for good."""
        self._end_job()

    def step(self) -> dict[str, Any]:
        """Run one PPO step and report it; the last report also holds the trial's record."""
        try:
            return self._step()
        except TrialStartError as error:
            # The node does not give back what an earlier job held: no setting's fault.
            verdict = Verdict(state=TrialState.INFRASTRUCTURE, cause=str(error))
            return {"done": True, RECORD: _text(self._record(verdict))}

    def _step(self) -> dict[str, Any]:
        while True:
            if self._run is None:
                self._start_job()
            assert self._run is not None
            try:
                step = self._run.next_step()
            except JobEnded as ended:
                self._end_job()
                if self._goes_on(ended.verdict):
                    continue
                return {"done": True, RECORD: _text(self._outcome(ended.verdict))}
            result: dict[str, Any] = {
                "done": False,
                STEP_RECORD: _text(step),
                START: self._run.start.value,
            }
            if self._run.is_complete:
                verdict = Verdict(state=TrialState.COMPLETE, cause="")
                self._idle_setting = self._config["setting"]
                if self._rule is not None:
                    # What a rule changed is no knob: the next trial cannot tell how far away it is.
                    self._end_job()
                if not self._goes_on(verdict):
                    result |= {"done": True, RECORD: _text(self._outcome(verdict))}
            return result

    # The trial: one job after another until there is an outcome.

    def _begin(self, config: dict[str, Any]) -> None:
        self._config = config
        self._started_at = timestamp()
        self._started_s = time.monotonic()
        self._run: JobRun | None = None
        self._rule: AppliedRule | None = None
        self._asked: TrialRecord | None = None
        self._num_jobs = 0
        self._deaths = 0
        self._repeats = 0
        self._other_jobs: list[JobOutcome] = []

    def _goes_on(self, verdict: Verdict) -> bool:
        """Decide whether another job follows, and prepare it."""
        assert self._run is not None
        if self._rule is not None:
            return False
        is_failure = verdict.state is not TrialState.COMPLETE
        repeated = is_failure and recovery.is_repeated(
            verdict, start=self._run.start, deaths=self._deaths
        )
        rule = None if repeated else self._rule_for(verdict)
        if not repeated and rule is None:
            return False
        self._deaths += verdict.has_died
        self._repeats += repeated
        if rule is not None:
            self._rule, self._asked = rule, self._record(verdict)
        self._end_job()
        self._other_jobs.append(self._outcome_of_job(verdict, rule=""))
        self._run = None
        return True

    def _rule_for(self, verdict: Verdict) -> AppliedRule | None:
        if self._config["number"] == recovery.BASELINE or self._spec.always_cold:
            return None
        assert self._run is not None
        metrics = summarise(self._run.steps, startup_s=None, gpu_seconds=0).metrics
        rule = recovery.first_rule(
            self._spec.protocol.recovery, verdict.state, metrics["peak_memory_ratio"]
        )
        if rule is None:
            return None
        from autotune.verl_bridge.overrides import compose_base, leaves

        composed = compose_base(self._spec.config_name, self._job_overrides())
        return recovery.apply(rule, leaves(composed), self._config["setting"])

    # The job.

    def _start_job(self) -> None:
        """Start the setting in the live job where that is possible, else in a fresh one."""
        start, are_engines_kept = Start.COLD, False
        self._leave_stopped_run()
        if self._can_restart():
            assert self._idle_setting is not None
            change = self._idle_setting, self._config["setting"]
            start, are_engines_kept = cheapest_start(*change), keeps_engines(*change)
        self._idle_setting = None
        rollout_folder = self._rollout_folder()
        if start is Start.COLD:
            self._end_job()
            self._await_placement()
            self._devices.wait_until_empty(EMPTY_DEVICE_TIMEOUT_S)
            self._log_path = self._spec.log_folder / self._log_name()
            self._process = VerlProcess(
                address=ray.get_runtime_context().gcs_address,
                placement_group_id=self._group_id,
                job=self._job,
                log_path=self._log_path,
                working_dir=ray.get_runtime_context().runtime_env.get("working_dir") or "",
                command=self._spec.command,
            )
        assert self._process is not None
        protocol = self._spec.protocol
        request = JobRequest(
            config_name=self._spec.config_name,
            overrides=[*self._job_overrides(), *protocol_overrides(protocol)],
            device=self._spec.device,
            profiled_steps=profiled_steps(protocol),
            probes=protocol.consistency_probe,
            start=start.value,
            keeps_engines=are_engines_kept,
            collective_timeout_s=COLLECTIVE_SHARE * protocol.step_timeout_s,
            keeps_first=keeps_first(self._config["setting"]),
            rollout_folder=rollout_folder,
        )
        self._run = JobRun(
            self._process,
            request,
            protocol=protocol,
            number=self._config["number"],
            # Increasing, so that the last job's steps are those of the highest attempt.
            attempt=self._config["attempt"] * recovery.MAX_JOBS + self._num_jobs,
            nodes=self._nodes,
            job=self._job,
            log_path=self._log_path,
        )
        self._num_jobs += 1

    def _await_placement(self) -> None:
        """Take note of the group's nodes once all bundles have one: Ray moves those of a dead node.

        Raises:
            TrialStartError: No node takes the place of a dead one in time.
        """
        limit_s = self._spec.protocol.startup_timeout_s
        if not self._group.wait(timeout_seconds=limit_s):
            raise TrialStartError(
                f"A node of the trial's placement group died, and none took its place in "
                f"{limit_s:g} s.",
                "Add a node to the cluster.",
            )
        nodes = TrialNodes(self._group)
        if nodes.ids != self._nodes.ids:
            # What other devices held before their first job of this trial is yet to be measured.
            self._devices = DeviceMemory(self._group)
        self._nodes = nodes

    def _leave_stopped_run(self) -> None:
        """Bring the live job from the steps of a stopped trial to rest, or end it."""
        run, self._stopped_run = self._stopped_run, None
        if run is None or self._spec.always_cold:
            return
        try:
            run.leave()
        except JobEnded:
            # The trial that it belonged to is over: nothing is known against its setting.
            self._end_job()

    def _rollout_folder(self) -> str | None:
        """Return where the kept rollout lies.

        Raises:
            TrialStartError: This node does not see the folder that the driver made: its trials
                would train on a rollout of their own.
        """
        folder = self._spec.rollout_folder
        if folder is not None and not folder.is_dir():
            raise TrialStartError(
                f"This node has no {folder}, which holds the rollout that all trials replay.",
                "trial.fidelity: update needs output_dir in a folder that all nodes share.",
            )
        return None if folder is None else str(folder)

    def _can_restart(self) -> bool:
        return (
            not self._spec.always_cold
            and self._idle_setting is not None
            and self._process is not None
            and self._process.is_alive()
        )

    def _job_overrides(self) -> list[str]:
        by_rule = self._rule.overrides if self._rule is not None else []
        return [*self._spec.base_overrides, *self._config["overrides"], *by_rule]

    def _log_name(self) -> str:
        return f"trial_{self._config['number']:04d}.log"

    def _end_job(self) -> None:
        """Kill the job and see its processes gone, those included that are no actors of Ray."""
        self._idle_setting = self._stopped_run = None
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        self._nodes.ask(end_processes, self._job, PATIENCE_S, timeout_s=4 * PATIENCE_S)

    # The record.

    def _outcome(self, verdict: Verdict) -> TrialRecord:
        """Return the trial's record: of the changed setting where a recovery rule's job completed,
        else of the setting as it was asked."""
        if self._rule is None:
            return self._record(verdict)
        assert self._asked is not None
        if verdict.state is not TrialState.COMPLETE:
            other = self._outcome_of_job(verdict, rule=self._rule.text)
            return _with_jobs(self._asked, [*self._other_jobs[:-1], other], self._clock())
        return self._record(
            verdict,
            Recovery(rule=self._rule.text, overrides=self._rule.overrides, asked=self._asked),
        )

    def _record(self, verdict: Verdict, recovered: Recovery | None = None) -> TrialRecord:
        run = self._run
        summary = summarise(
            run.steps if run is not None else [],
            startup_s=run.startup_s if run is not None else None,
            gpu_seconds=self._clock(),
        )
        violations, satisfied = evaluate(summary.metrics, self._spec.constraints)
        by_rule = recovered.overrides if recovered is not None else []
        return TrialRecord(
            number=self._config["number"],
            state=verdict.state,
            params=self._config["params"],
            setting=self._config["setting"],
            overrides=[*self._config["overrides"], *by_rule],
            metrics=summary.metrics,
            absent=summary.absent,
            intervals=summary.intervals,
            grad_sketch=summary.grad_sketch,
            violations=violations,
            feasible=satisfied and verdict.state is TrialState.COMPLETE,
            cause=redact(verdict.cause),
            started_at=self._started_at,
            ended_at=timestamp(),
            retries=self._repeats,
            start=run.start if run is not None else Start.COLD,
            other_jobs=list(self._other_jobs),
            recovery=recovered,
        )

    def _outcome_of_job(self, verdict: Verdict, *, rule: str) -> JobOutcome:
        assert self._run is not None
        return JobOutcome(
            start=self._run.start, state=verdict.state, cause=redact(verdict.cause), rule=rule
        )

    def _clock(self) -> float:
        """GPU-seconds that the trial has cost so far."""
        return self._spec.num_ranks * (time.monotonic() - self._started_s)


def _with_jobs(record: TrialRecord, jobs: Sequence[JobOutcome], gpu_seconds: float) -> TrialRecord:
    metrics = {**record.metrics, "gpu_seconds": gpu_seconds}
    return dataclasses.replace(
        record, other_jobs=list(jobs), metrics=metrics, ended_at=timestamp()
    )


def _text(record: StepRecord | TrialRecord) -> str:
    """A record as one JSON text: Tune would flatten a mapping and choke on its keys."""
    return json.dumps(record.to_dict())
