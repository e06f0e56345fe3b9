"""verl's synchronous trainer inside a trial: on the trial's placement group, measured, restartable
with another setting.

Runs in the trial's verl process. The PPO step is verl's own; around it every rank is asked for its
measurements, and the step's metrics are handed to a callback instead of a logger's backend. Where
a rollout is kept, it is generated before the first step of the first job only, whose servers are
ended then; a later job starts none.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from ray.util.placement_group import PlacementGroup
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.losses import value_loss

from autotune.errors import RolloutFailedError
from autotune.measure.communication import Reasons
from autotune.verl_bridge.consistency_probe import ProbeOfRank, ProbeSettings
from autotune.verl_bridge.first_state import READ_WITH_EVERY_BATCH
from autotune.verl_bridge.group_workers import ExistingGroupManager, group_workers
from autotune.verl_bridge.kept_rollout import (
    PARTITION,
    KeptRollout,
    ReplayedRollout,
    RolloutBatch,
)
from autotune.verl_bridge.phases import PhaseCallback, PhasedTrainer
from autotune.verl_bridge.rollout_restart import end_servers, start_servers
from autotune.verl_bridge.startup_times import StartupTimes, as_metrics, slowest
from autotune.verl_bridge.step_report import (
    StepValues,
    divergence_metrics,
    probe_metrics,
    replayed,
    step_metrics,
    update_only_metrics,
)

logger = logging.getLogger(__name__)

_NO_PROBE = "trial.consistency_probe is false"

StepCallback = Callable[[int, dict[str, Any], dict[str, str]], None]
"""Gets the step's number, its metrics, and the reasons for those that are None."""


class _MetricsLogger:
    """A backend of verl's tracker that hands each step on."""

    def __init__(self, trainer: "TrialTrainer") -> None:
        self._trainer = trainer

    def log(self, data: Mapping[str, Any], step: int) -> None:
        self._trainer.report(step, data)


class TrialTrainer(PhasedTrainer):
    """One live verl job that runs settings one after another.

    Args:
        config: verl's resolved configuration.
        placement_group: The trial's.
        on_step: Called after each step.
        on_phase: Called at the beginning of each phase.
        profiled_steps: Numbers of the steps to run under the profiler.
        probes: Whether to run the consistency probe before the first step and after the last one.
        collective_timeout_s: How long a collective of the workers may wait.
        keeps_first: Whether the first weights are kept on the host, for restarts that keep the
            engines.
        kept: The sweep's rollout, which every step replays; None generates in every step.
    """

    def __init__(
        self,
        config: DictConfig,
        *,
        placement_group: PlacementGroup,
        on_step: StepCallback,
        on_phase: PhaseCallback,
        profiled_steps: Sequence[int],
        probes: bool,
        collective_timeout_s: float,
        keeps_first: bool,
        kept: KeptRollout | None,
    ) -> None:
        super().__init__(config)
        self._placement_group = placement_group
        self._on_step = on_step
        self.on_phase = on_phase
        self._profiled_steps = set(profiled_steps)
        self._probes = probes
        # verl lets it sleep until the first weights arrive.
        self._rollout_sleeps = True
        self._kept = kept
        self._collective_timeout_s = collective_timeout_s
        self._keeps_first = keeps_first
        self._is_left = False
        self._startup = StartupTimes()

    def init(self) -> None:
        """Build everything, as verl does, and begin the first trial."""
        self._setup()
        self._begin_trial()
        self.on_init_end()

    def restart(
        self,
        config: DictConfig,
        *,
        profiled_steps: Sequence[int],
        keeps_engines: bool,
        restarts_rollout: bool,
    ) -> None:
        """Put the job back to its first step, with another configuration.

        Weights, optimizer state, random numbers and data position are those of a fresh job; the
        processes stay. Agent loops and reward workers keep their configuration: they read nothing
        that a live job may change.

        Args:
            config: verl's resolved configuration.
            profiled_steps: Numbers of the steps to run under the profiler.
            keeps_engines: Whether settings of the training engines differ from the last one in
                values only that are read with every batch; the engines are built again otherwise.
            restarts_rollout: Whether settings of the rollout differ.
        """
        PPOTrainer.__init__(self, config)
        self._is_left = False
        self._profiled_steps = set(profiled_steps)
        self._init_dataloader()
        self._init_dump_executor()
        if restarts_rollout:
            self._end_rollout()
        else:
            self._sleep_rollout()
        self.on_phase("engines")
        if keeps_engines:
            if restarts_rollout:
                self.actor_rollout_wg.rebuild_adapter(config.actor_rollout_ref)
            self._put_back()
        else:
            self._rebuild()
        if restarts_rollout:
            self._start_rollout()
        self._begin_trial()
        self.global_steps = 0
        self.on_init_end()

    def leave(self) -> None:
        """Let ``fit`` return after the step that runs; safe from another thread."""
        self._is_left = True

    @property
    def has_rollout(self) -> bool:
        """Whether there are servers that generate."""
        return bool(self.llm_server_manager.get_replicas())

    def keep_rollout(self, agent_loop_manager: Any) -> None:
        """Generate the rollout of every step with the first weights, where it is to be replayed and
        no job has done so yet; nobody needs the servers from then on.

        Args:
            agent_loop_manager: verl's, None where there are no servers.
        """
        if self._kept is None or not self.has_rollout:
            return
        if not self._kept.is_there:
            self.agent_loop_manager = agent_loop_manager
            with self._kept.written() as draft:
                for step in range(1, self.total_training_steps + 1):
                    self.global_steps = step
                    draft.write(step, self._generate())
            self.global_steps = 0
        self._end_rollout()

    def _generate(self) -> RolloutBatch:
        """Return what verl would train on in this step."""
        super().prepare_step()
        sampled, _ = self.replay_buffer.sample(
            global_steps=self.global_steps,
            partition_id=PARTITION,
            batch_size=self.config.data.train_batch_size,
        )
        self._refuse_missing_answers()
        fields = tq.kv_batch_get(keys=sampled.keys, partition_id=PARTITION)
        batch = RolloutBatch.of(sampled.keys, sampled.tags, fields)
        tq.kv_clear(keys=sampled.keys, partition_id=PARTITION)
        return batch

    def _end_rollout(self) -> None:
        self.on_phase("rollout_end")
        self._startup.begin("rollout_end")
        self.checkpoint_manager.remove_replicas(self.llm_server_manager.get_replicas())
        ended = end_servers(self.llm_server_manager, self.actor_rollout_wg)
        self._startup.begin("rollout_memory")
        free_bytes = min(self.actor_rollout_wg.await_free_memory())
        self._startup.begin(None)
        logger.info(
            "rollout: %d servers with %d processes are gone, %.1f GiB are free",
            len(ended),
            sum(len(server.processes) for server in ended),
            free_bytes / 2**30,
        )

    def _start_rollout(self) -> None:
        """Start the servers when the engines stand, as in a cold job: both find the device as they
        find it there."""
        self.on_phase("rollout_start")
        self._startup.begin("rollout_start")
        start_servers(self.llm_server_manager, self.config)
        self.checkpoint_manager.add_replicas(self.llm_server_manager.get_replicas())
        self.checkpoint_manager.sleep_replicas()
        self._rollout_sleeps = True
        self._startup.begin(None)
        seconds = ", ".join(f"{part} {value:.1f} s" for part, value in self._startup.so_far.items())
        logger.info("rollout: new servers stand; %s", seconds)

    def _put_back(self) -> None:
        if self.use_critic:
            engine = self._critic_config()[0].engine_config
            self.critic_wg.put_back({name: getattr(engine, name) for name in READ_WITH_EVERY_BATCH})
        self.actor_rollout_wg.put_back(self.config.actor_rollout_ref)

    def _rebuild(self) -> None:
        """Free all engines, then build them in a cold job's order: the critic's memory must be back
        before the actor needs it, and both draw from one random number generator."""
        if self.use_critic:
            self.critic_wg.release()
        self.actor_rollout_wg.release()
        if self.use_critic:
            worker_config, loss_fn = self._critic_config()
            self.critic_wg.rebuild(worker_config)
            self.critic_wg.set_loss_fn(loss_fn)
        self.actor_rollout_wg.rebuild(
            self.config.actor_rollout_ref, is_first=not self.use_critic
        )

    def _begin_trial(self) -> None:
        settings = self._collective_timeout_s, self._keeps_first
        if self.use_critic:
            self.critic_wg.begin_trial(*settings)
        self.actor_rollout_wg.begin_trial(*settings)

    def _critic_config(self) -> tuple[TrainingWorkerConfig, Any]:
        """Return what verl builds the critic from, and its loss."""
        # As in verl's PPOTrainer._setup (trainer_base.py, "2. define critic class" and "5.
        # initialize critic").
        critic = omega_conf_to_dataclass(self.config.critic)
        critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
        critic.engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
        config = TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
            profiler_config=_profiler_config(self.config.critic),
        )
        return config, partial(value_loss, config=critic)

    def _setup(self) -> None:
        with group_workers(trainer_base):
            super()._setup()

    def _init_resource_pool_mgr(self) -> None:
        from autotune.verl_bridge.workers import TrialActorRolloutRefWorker, TrialTrainingWorker

        super()._init_resource_pool_mgr()
        if self._kept is not None and self._kept.is_there:
            # verl reads it when it comes to the servers. The workers' roles, which it has chosen
            # just now, stay those of whole steps.
            self._enable_hybrid_replicas = False
            # Its manager of no servers asks for nodes of their own, and takes none.
            self.config.actor_rollout_ref.rollout.nnodes = 1
        self._use_workers(TrialActorRolloutRefWorker, TrialTrainingWorker)
        self._use_pools(partial(ExistingGroupManager, placement_group=self._placement_group))

    def on_init_end(self) -> None:
        # The rollout sleeps still: the probe has the memory that an update has.
        ranks: list[ProbeOfRank | str] = [_NO_PROBE]
        if self._probes:
            self.on_phase("probe")
            ranks = self.actor_rollout_wg.run_probe(self._probe_settings())
        self._probe = probe_metrics(ranks)
        if self._kept is None or not self._kept.is_there:
            super().on_init_end()
            self._rollout_sleeps = False

    def on_train_begin(self) -> None:
        super().on_train_begin()
        backends: dict[str, Any] = self.logger.logger
        backends["autotune"] = _MetricsLogger(self)
        if self._kept is not None:
            self.replay_buffer = ReplayedRollout(self._kept)
            self.replay_buffer.load(self.global_steps)

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.actor_rollout_wg.begin_step(self.global_steps in self._profiled_steps)

    def prepare_step(self) -> dict[str, Any]:
        return {} if self._kept is not None else super().prepare_step()

    def on_sample_end(self) -> None:
        self._refuse_missing_answers()
        if self._kept is None:
            super().on_sample_end()

    def _refuse_missing_answers(self) -> None:
        # verl trains on what is left where prompts failed (replay_buffer.py): no measurement.
        failed = self.replay_buffer.failure_keys[PARTITION]
        if failed:
            raise RolloutFailedError(
                f"The rollout failed for {len(failed)} of {self.config.data.train_batch_size} "
                f"prompts of step {self.global_steps}."
            )

    def on_step_end(self) -> None:
        if self.global_steps in self._profiled_steps:
            self.actor_rollout_wg.stop_profiler()
        if self._kept is None:
            super().on_step_end()

    def report(self, step: int, data: Mapping[str, Any]) -> None:
        """Add the ranks' measurements to a step's metrics and hand them on."""
        metrics: dict[str, Any] = {
            key: float(value) for key, value in data.items() if _is_number(value)
        }
        values, absent = step_metrics(
            self.actor_rollout_wg.end_step(),
            device=self.config.trainer.device,
            weight_sync_s=0.0 if self._kept is not None else metrics["timing_s/update_weights"],
            why_no_kl=self._why_no_kl(),
        )
        values.update(update_only_metrics(metrics, self._get_n_gpus_for_throughput()))
        if self._kept is not None:
            metrics, reasons = replayed(metrics, step)
            absent.update(reasons)
        if step == 1:
            values.update(as_metrics(slowest(self.actor_rollout_wg.startup_s())))
            values.update(as_metrics(self._startup.take()))
        for own, reasons in self._probe_metrics(step):
            values.update(own)
            absent.update(reasons)
        self._on_step(step, {**metrics, **values}, absent)
        if self._is_left:
            # fit's loop ends after this many steps. Set between two steps only: verl saves,
            # validates and reports by it.
            self.total_training_steps = step
        if self._kept is not None and step < self.total_training_steps:
            self.replay_buffer.load(step + 1)

    def _probe_metrics(self, step: int) -> list[tuple[StepValues, Reasons]]:
        """Return what the probe adds to a step: to the first and to the last one."""
        found = [self._probe] if step == 1 else []
        if step == self.total_training_steps:
            found.append(divergence_metrics(self._score_probe()))
        return found

    def _score_probe(self) -> list[list[float] | str]:
        if not self._probes:
            return [_NO_PROBE]
        self.on_phase("probe")
        self._sleep_rollout()
        scores: list[list[float] | str] = self.actor_rollout_wg.score_probe(self._probe_settings())
        return scores

    def _probe_settings(self) -> ProbeSettings:
        # As in verl's PPOTrainer._update_actor.
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        return ProbeSettings(
            temperature=rollout.temperature,
            calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
        )

    def _sleep_rollout(self) -> None:
        """Free the rollout's memory; asking a second time would be an error of the rollout."""
        if not self._rollout_sleeps:
            self.checkpoint_manager.sleep_replicas()
            self._rollout_sleeps = True

    def _why_no_kl(self) -> str | None:
        correction = self.config.algorithm.get("rollout_correction") or {}
        if correction.get("bypass_mode", False):
            return (
                "with rollout_correction.bypass_mode old_log_prob is the rollout's: the difference "
                "is that of two engines"
            )
        return None


def _profiler_config(role: DictConfig) -> Any:
    profiler = role.get("profiler", {})
    return omega_conf_to_dataclass(profiler) if profiler else None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
