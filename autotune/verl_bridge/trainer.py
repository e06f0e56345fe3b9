"""verl's synchronous trainer inside a trial: on the trial's placement group, measured, restartable
with another setting.

Runs in the trial's verl process. The PPO step is verl's own; around it every rank is asked for its
measurements, and the step's metrics are handed to a callback instead of a logger's backend.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig
from ray.util.placement_group import PlacementGroup
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.utils.losses import value_loss

from autotune.metrics import KL_PER_RANK, PEAK_MEMORY
from autotune.verl_bridge.group_workers import ExistingGroupManager, group_workers
from autotune.verl_bridge.trainer_cpu import SyncOnAnyPlatform

StepCallback = Callable[[int, dict[str, Any], dict[str, str]], None]
"""Gets the step's number, its metrics, and the reasons for those that are None."""


class _MetricsLogger:
    """A backend of verl's tracker that hands each step on."""

    def __init__(self, trainer: "TrialTrainer") -> None:
        self._trainer = trainer

    def log(self, data: Mapping[str, Any], step: int) -> None:
        self._trainer.report(step, data)


class TrialTrainer(SyncOnAnyPlatform):
    """One live verl job that runs settings one after another.

    Args:
        config: verl's resolved configuration.
        placement_group: The trial's.
        on_step: Called after each step.
        profiled_steps: Numbers of the steps to run under the profiler.
    """

    def __init__(
        self,
        config: DictConfig,
        *,
        placement_group: PlacementGroup,
        on_step: StepCallback,
        profiled_steps: Sequence[int],
    ) -> None:
        super().__init__(config)
        self._placement_group = placement_group
        self._on_step = on_step
        self._profiled_steps = set(profiled_steps)

    def restart(self, config: DictConfig, *, profiled_steps: Sequence[int]) -> None:
        """Put the job back to its first step, with another configuration.

        Weights, optimizer state, random numbers and data position are those of a fresh job; the
        processes stay. Only configurations that differ in settings of the training engines are
        allowed: rollout servers, agent loops and reward workers keep theirs.
        """
        PPOTrainer.__init__(self, config)
        self._profiled_steps = set(profiled_steps)
        self._init_dataloader()
        self._init_dump_executor()
        self.checkpoint_manager.sleep_replicas()
        self.actor_rollout_wg.rebuild(config.actor_rollout_ref)
        if self.use_critic:
            self._rebuild_critic()
        self.global_steps = 0
        self.on_init_end()

    def _rebuild_critic(self) -> None:
        # As in verl's PPOTrainer._setup (trainer_base.py, "2. define critic class" and "5.
        # initialize critic").
        critic = omega_conf_to_dataclass(self.config.critic)
        critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
        critic.engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
        self.critic_wg.rebuild(
            TrainingWorkerConfig(
                model_type="value_model",
                model_config=critic.model,
                engine_config=critic.engine,
                optimizer_config=critic.optim,
                checkpoint_config=critic.checkpoint,
                profiler_config=_profiler_config(self.config.critic),
            )
        )
        self.critic_wg.set_loss_fn(partial(value_loss, config=critic))

    def _setup(self) -> None:
        with group_workers(trainer_base):
            super()._setup()

    def _init_resource_pool_mgr(self) -> None:
        from autotune.verl_bridge.workers import TrialActorRolloutRefWorker, TrialTrainingWorker

        super()._init_resource_pool_mgr()
        self._use_workers(TrialActorRolloutRefWorker, TrialTrainingWorker)
        self._use_pools(partial(ExistingGroupManager, placement_group=self._placement_group))

    def on_train_begin(self) -> None:
        super().on_train_begin()
        backends: dict[str, Any] = self.logger.logger
        backends["autotune"] = _MetricsLogger(self)

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.actor_rollout_wg.begin_step(self.global_steps in self._profiled_steps)

    def on_step_end(self) -> None:
        if self.global_steps in self._profiled_steps:
            self.actor_rollout_wg.stop_profiler()
        super().on_step_end()

    def report(self, step: int, data: Mapping[str, Any]) -> None:
        """Add the ranks' measurements to a step's metrics and hand them on."""
        ranks = self.actor_rollout_wg.end_step()
        metrics: dict[str, Any] = {
            key: float(value) for key, value in data.items() if _is_number(value)
        }
        k_nats = [rank["k_nats"] for rank in ranks]
        metrics[KL_PER_RANK] = k_nats if None not in k_nats else None
        metrics[PEAK_MEMORY] = _peak_memory_ratio(ranks, self.config.trainer.device)
        absent: dict[str, str] = {}
        if metrics[KL_PER_RANK] is None:
            absent[KL_PER_RANK] = "a rank had no response token, or the actor was not updated"
        if step in self._profiled_steps:
            from autotune.measure.overlap import step_communication

            traces = [rank["trace"] for rank in ranks]
            weight_sync_s = metrics["timing_s/update_weights"]
            # The step's own timer also holds the profiler's work after the recording.
            recorded_us = max(trace.window_us[1] - trace.window_us[0] for trace in traces)
            values, reasons = step_communication(
                traces, step_s=recorded_us / 1e6 + weight_sync_s, weight_sync_s=weight_sync_s
            )
            metrics["autotune/profiler_s"] = max(trace.overhead_s for trace in traces)
            metrics.update({f"autotune/{name}": value for name, value in values.items()})
            absent.update({f"autotune/{name}": reason for name, reason in reasons.items()})
        self._on_step(step, metrics, absent)


def _profiler_config(role: DictConfig) -> Any:
    profiler = role.get("profiler", {})
    return omega_conf_to_dataclass(profiler) if profiler else None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _peak_memory_ratio(ranks: Sequence[Mapping[str, Any]], device: str) -> float:
    """Largest share of a device's memory; on the CPU, of a node's memory by all of its ranks
    together."""
    if device != "cpu":
        return max(rank["peak_bytes"] / rank["device_bytes"] for rank in ranks)
    peak_bytes: dict[str, int] = defaultdict(int)
    node_bytes: dict[str, int] = {}
    for rank in ranks:
        peak_bytes[rank["node_id"]] += rank["peak_bytes"]
        node_bytes[rank["node_id"]] = rank["device_bytes"]
    return max(peak_bytes[node] / node_bytes[node] for node in peak_bytes)
