"""verl's synchronous trainer on CPU workers: ``trainer.v1.trainer_mode=cpu_sync``.

Runs in verl's trainer process, in production as in a trial. It replaces the worker classes by
those that start gloo, counts no GPUs before it reserves, and polls the rollout more often than
every 2 s (steps are that short here).
"""

from collections.abc import Callable
from typing import Any

import ray
from verl.single_controller.ray import ResourcePoolManager
from verl.single_controller.ray.base import RayResourcePool
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

POLL_INTERVAL_S = 0.05
"""How often the replay buffer looks for finished responses; verl's 2.0 s is not configurable
(replay_buffer.py:144)."""


class CPUResourcePoolManager(ResourcePoolManager):
    """verl's reservation without its check, which counts only GPUs and NPUs."""

    def create_resource_pool(self) -> None:
        for name, process_on_nodes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = RayResourcePool(
                process_on_nodes=process_on_nodes,
                use_gpu=True,
                max_colocate_count=1,
                name_prefix=name,
            )


class SyncOnAnyPlatform(PPOTrainerSync):
    """Base of the trainers here: the mode ``sync`` under another registered name."""

    resource_pool_manager: ResourcePoolManager

    def _build_replay_buffer(self) -> Any:
        # The base class asks `trainer_mode == "sync"` in many places, so the name must be that one.
        self.trainer_mode = "sync"
        replay_buffer = super()._build_replay_buffer()
        if self.config.trainer.device == "cpu":
            replay_buffer.poll_interval = POLL_INTERVAL_S
        return replay_buffer

    def _use_workers(self, actor_class: type, critic_class: type) -> None:
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(
                critic_class if role == Role.Critic else actor_class
            )

    def _use_pools(self, make_manager: Callable[..., ResourcePoolManager]) -> None:
        planned = self.resource_pool_manager
        self.resource_pool_manager = make_manager(
            resource_pool_spec=planned.resource_pool_spec, mapping=planned.mapping
        )


@register_trainer("cpu_sync")
class CPUTrainerSync(SyncOnAnyPlatform):
    """What a production run on CPU uses."""

    def _init_resource_pool_mgr(self) -> None:
        from autotune.verl_bridge.workers import GlooActorRolloutRefWorker, GlooTrainingWorker

        super()._init_resource_pool_mgr()
        self._use_workers(GlooActorRolloutRefWorker, GlooTrainingWorker)
        self._use_pools(CPUResourcePoolManager)
