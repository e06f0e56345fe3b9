"""The trial's verl process: a Ray driver of its own that runs verl's trainer for one setting after
another.

Started by the trial actor as ``python -m autotune.verl_bridge.process ADDRESS PLACEMENT_GROUP_ID
EVENTS_FD WORKING_DIR``. A process of its own contains crashes and leaked state, and its death frees
every actor of the job at once. It reads one JSON line for each setting from standard input (see
:class:`JobRequest`) or the line LEAVE, which ends the setting that runs with its current step. It
writes one JSON line for each event to EVENTS_FD, and everything that verl
prints to standard output. When standard input closes, because the trial ended or its actor died,
it exits at once.
"""

import dataclasses
import json
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from autotune.errors import TrialStartError

if TYPE_CHECKING:
    from autotune.verl_bridge.trainer import TrialTrainer

PHASE, READY, STEP, DONE, FAILED = "phase", "ready", "step", "done", "failed"
"""Kinds of events: the job enters a phase of its start-up or of a step; it is about to run its
first step; a step ended; all steps ended; the job broke."""

LEAVE = "leave"

LOG_DELAY_S = 2.0
"""How long Ray may take to bring a worker's output here."""

FLIGHT_RECORDER_ENV = {"TORCH_FR_BUFFER_SIZE": "20000"}
"""How many collectives torch keeps of each process; a step has thousands with small micro-batches,
and torch's default is 2,000. Read when a process makes its first group."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One setting to run."""

    config_name: str
    overrides: list[str]
    """All Hydra overrides of the job, the trial's protocol included."""
    device: str
    profiled_steps: list[int]
    probes: bool
    """Whether to run the consistency probe."""
    start: str
    """How to begin, see :class:`autotune.objective.Start`; a first request is always ``cold``."""
    keeps_engines: bool
    """Whether a live start puts the training engines back, and does not build them again."""
    collective_timeout_s: float
    """How long a collective of verl's workers may wait."""
    keeps_first: bool
    """Whether a later request may keep the engines: the workers then keep their first weights."""
    rollout_folder: str | None
    """Holds the rollout that every step replays; None generates in every step."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> "JobRequest":
        """Return the request that a trial wrote.

        Raises:
            TrialStartError: It is that of another version of this package, which was updated under
                a running sweep.
        """
        try:
            return JobRequest(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise TrialStartError(
                f"The trial's request cannot be read: {error}.",
                "Its package is of another version than this process's: run the sweep again.",
            ) from error


class _Events:
    """Writes events to the trial actor."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def send(self, kind: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"kind": kind, **fields}) + "\n")
        self._stream.flush()

    def send_phase(self, name: str) -> None:
        self.send(PHASE, name=name)

    def send_step(self, step: int, metrics: Mapping[str, Any], absent: Mapping[str, str]) -> None:
        self.send(STEP, step=step, metrics=dict(metrics), absent=dict(absent))


class Job:
    """A live verl job: started with the first setting, restarted in place with every other one."""

    def __init__(
        self, address: str, placement_group_id: str, working_dir: str, events: _Events
    ) -> None:
        self._address = address
        self._working_dir = working_dir
        self._placement_group_id = placement_group_id
        self._events = events
        self._runner: Any = None

    def run(self, request: JobRequest) -> None:
        """Run one setting to its last step."""
        self._events.send_phase("configuration")
        from autotune.verl_bridge.overrides import compose_base

        config = compose_base(request.config_name, request.overrides)
        if self._runner is None:
            self._connect(config)
            self._start(config, request)
        else:
            self._resolve(config)
            self._runner.config = config
            trainer: TrialTrainer = self._runner.trainer
            trainer.restart(
                config,
                profiled_steps=request.profiled_steps,
                keeps_engines=request.keeps_engines,
                restarts_rollout=request.start == "rollout",
            )
        self._runner.trainer.keep_rollout(self._runner.agent_loop_manager)
        self._events.send(READY)
        self._runner.trainer.fit(self._runner.agent_loop_manager)
        self._events.send(DONE)

    def leave(self) -> None:
        """End the setting that runs with its current step; called from another thread."""
        if self._runner is not None:
            self._runner.trainer.leave()

    def _connect(self, config: Any) -> None:
        """Join the cluster as verl's ``run_ppo`` does, with the job's own environment and
        TransferQueue."""
        from omegaconf import OmegaConf

        from autotune.verl_bridge.isolation import TRANSFER_QUEUE_NAMESPACE_ENV
        from autotune.verl_bridge.job_processes import JOB_ENV

        self._events.send_phase("cluster")
        ray_init = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
        assert isinstance(ray_init, dict)
        given = ray_init.get("runtime_env") or {}
        # The trainer runs in this process, so it needs the variables that verl gives to its actors.
        os.environ.update(given.get("env_vars") or {})
        os.environ[TRANSFER_QUEUE_NAMESPACE_ENV] = f"transfer_queue_{self._placement_group_id}"

        import ray
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

        runtime_env = OmegaConf.to_container(
            OmegaConf.merge(get_ppo_ray_runtime_env(config), given)
        )
        assert isinstance(runtime_env, dict)
        if self._working_dir:
            # The workers of a submitted sweep find this package and the job's files there.
            runtime_env["working_dir"] = self._working_dir
        runtime_env.setdefault("env_vars", {}).update(
            {
                "TRANSFER_QUEUE_ENABLE": "1",
                JOB_ENV: os.environ[JOB_ENV],
                TRANSFER_QUEUE_NAMESPACE_ENV: os.environ[TRANSFER_QUEUE_NAMESPACE_ENV],
                **FLIGHT_RECORDER_ENV,
            }
        )
        ray.init(address=self._address, runtime_env=runtime_env, log_to_driver=True)

    def _start(self, config: Any, request: JobRequest) -> None:
        """Build the job as verl's ``TaskRunnerV1.run`` does, in this process."""
        self._events.send_phase("imports")
        import transfer_queue
        from ray._raylet import PlacementGroupID
        from ray.util.placement_group import PlacementGroup
        from verl.trainer.main_ppo import TaskRunnerV1
        from verl.utils.logging_utils import configure_verl_logging

        from autotune.verl_bridge.kept_rollout import KeptRollout
        from autotune.verl_bridge.plugin import missing_registrations
        from autotune.verl_bridge.trainer import TrialTrainer

        missing = missing_registrations(request.device)
        if missing:
            raise TrialStartError(
                f"verl does not know {', '.join(missing)}.",
                "It loads them through its plug-in group 'verl.plugins'; VERL_LOGGING_LEVEL=DEBUG "
                "says why not.",
            )
        configure_verl_logging()
        self._resolve(config)
        task_runner: Any = TaskRunnerV1
        runner = task_runner.__ray_actor_class__()
        runner.config = config
        folder = request.rollout_folder
        self._events.send_phase("transfer_queue")
        transfer_queue.init(config.transfer_queue)
        runner.trainer = TrialTrainer(
            config,
            placement_group=PlacementGroup(
                PlacementGroupID(bytes.fromhex(self._placement_group_id))
            ),
            on_step=self._events.send_step,
            on_phase=self._events.send_phase,
            profiled_steps=request.profiled_steps,
            probes=request.probes,
            collective_timeout_s=request.collective_timeout_s,
            keeps_first=request.keeps_first,
            kept=None if folder is None else KeptRollout(Path(folder)),
        )
        runner.trainer.init()
        if runner.trainer.has_rollout:
            self._events.send_phase("agent_loop")
            runner.init_agent_loop_manager()
        self._runner = runner

    @staticmethod
    def _resolve(config: Any) -> None:
        from omegaconf import OmegaConf, open_dict
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config

        validate_config(
            config=config,
            use_reference_policy=need_reference_policy(config),
            use_critic=need_critic(config),
        )
        with open_dict(config):
            config.transfer_queue.enable = True
        OmegaConf.resolve(config)


def take_standard_input() -> IO[str]:
    """Return standard input, which this process and its children find empty from then on.

    verl's data loader forks its workers, and each of them closes ``sys.stdin`` first
    (multiprocessing/util.py ``_close_stdin``). It would wait for ever for the lock that a thread of
    this process holds while it reads.
    """
    taken = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return taken


def log_to_standard_error() -> None:
    """Print what this package logs from INFO on, whatever becomes of the root logger's handlers.

    As verl does for itself (utils/logging_utils.py): importing vLLM's server raises them all to
    ERROR.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))
    package = logging.getLogger("autotune")
    package.handlers = [handler]
    package.setLevel(logging.INFO)
    package.propagate = False


def _read_requests(stream: IO[str], requests: "queue.Queue[str]", job: Job) -> None:
    """Queue the settings from a stream as they stand there; its end is the end of this process,
    whatever runs."""
    for line in stream:
        if line.rstrip() == LEAVE:
            job.leave()
        else:
            requests.put(line)
    os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Run settings until standard input closes or one of them fails."""
    address, placement_group_id, events_fd, working_dir = arguments
    from autotune.verl_bridge.job_processes import register_stack_dump

    register_stack_dump()
    log_to_standard_error()
    events = _Events(os.fdopen(int(events_fd), "w", encoding="utf-8"))
    requests: queue.Queue[str] = queue.Queue()
    job = Job(address, placement_group_id, working_dir, events)
    reader = threading.Thread(
        target=_read_requests, args=(take_standard_input(), requests, job), daemon=True
    )
    reader.start()
    while True:
        request = requests.get()
        try:
            job.run(JobRequest.from_json(request))
        except Exception as error:
            # The process boundary: whatever verl raised is this trial's outcome, told to the trial
            # actor.
            traceback.print_exc()
            sys.stdout.flush()
            # What a dead worker printed last is on its way to this process's output.
            time.sleep(LOG_DELAY_S)
            events.send(
                FAILED, causes=[f"{type(cause).__name__}: {cause}" for cause in _chain(error)]
            )
            os._exit(1)


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what caused it, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


if __name__ == "__main__":
    main(sys.argv[1:])
