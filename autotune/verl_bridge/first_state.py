"""The state in which a trial's first step begins, and how a live worker comes back to it.

Runs in verl's worker processes. A trial that starts in the live job of another must compute what a
fresh job computes: weights, optimizer, random numbers and the engines' settings start again, and
nothing of the earlier trial stays: memory, process groups, compiled code.
"""

import ctypes
import gc
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from verl.plugin.platform import get_platform

DEFAULT_SEED = torch.default_generator.initial_seed()
"""Where torch's generator starts in a fresh process."""

READ_WITH_EVERY_BATCH = (
    "use_dynamic_bsz",
    "micro_batch_size_per_gpu",
    "max_token_len_per_gpu",
    "infer_micro_batch_size_per_gpu",
    "infer_max_token_len_per_gpu",
)
"""Settings of an engine that verl reads with every batch (engine_workers.py ``train_batch``,
``infer_batch``): a live engine takes new values at once."""


class FirstState:
    """Copies of a trained engine's first weights, on the host."""

    def __init__(self, engine: Any) -> None:
        self._tensors = {
            name: tensor.to("cpu", copy=True) for name, tensor in _local_tensors(engine.module)
        }

    @property
    def num_bytes(self) -> int:
        """Host memory that the copies take."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @torch.no_grad()
    def restore(self, engine: Any) -> None:
        """Write the weights back, and make optimizer and learning rate schedule anew."""
        for module in engine.module.modules():
            if hasattr(module, "reshard"):
                # An unsharded copy would be used once more.
                module.reshard()
        for name, tensor in _local_tensors(engine.module):
            tensor.copy_(self._tensors[name])
        engine.module.zero_grad(set_to_none=True)
        engine.optimizer = engine._build_optimizer(engine.module)
        engine.lr_scheduler = engine._build_lr_scheduler(engine.optimizer)
        gc.collect()
        get_platform().device_module.empty_cache()


class RandomState:
    """The random numbers that follow when all models of a process are built."""

    def __init__(self) -> None:
        self._host = torch.get_rng_state()
        self._device = get_platform().device_module.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._host)
        get_platform().device_module.set_rng_state(self._device)


def batch_values(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of :data:`READ_WITH_EVERY_BATCH` for actor and reference.

    Args:
        config: verl's section ``actor_rollout_ref``; read as in verl's
            ``ActorRolloutRefWorker.init_model`` ("assign engine configs").
    """
    actor, rollout, reference = config.actor, config.rollout, config.ref
    return (
        {
            "use_dynamic_bsz": actor.use_dynamic_bsz,
            "micro_batch_size_per_gpu": actor.ppo_micro_batch_size_per_gpu,
            "max_token_len_per_gpu": actor.ppo_max_token_len_per_gpu,
            "infer_micro_batch_size_per_gpu": rollout.log_prob_micro_batch_size_per_gpu,
            "infer_max_token_len_per_gpu": rollout.log_prob_max_token_len_per_gpu,
        },
        {
            "use_dynamic_bsz": reference.log_prob_use_dynamic_bsz,
            "infer_micro_batch_size_per_gpu": reference.log_prob_micro_batch_size_per_gpu,
            "infer_max_token_len_per_gpu": reference.log_prob_max_token_len_per_gpu,
        },
    )


def groups_of(engine: Any) -> set[Any]:
    """Return the process groups of an engine's device meshes."""
    meshes = [engine.device_mesh, engine.ulysses_device_mesh]
    return {group for mesh in meshes if mesh is not None for group in mesh.get_all_groups()}


def limit_collectives(groups: Iterable[Any], timeout_s: float) -> None:
    """Let collectives of these groups fail after ``timeout_s``; torch's own limits are 10 and 30
    minutes."""
    for group in groups:
        _set_pg_timeout(timedelta(seconds=timeout_s), group)


def free(groups: set[Any]) -> None:
    """Give back memory, compiled code and process groups of engines that are gone."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    get_platform().device_module.empty_cache()
    give_back_host_memory()
    end_groups(groups)


def end_groups(groups: set[Any]) -> None:
    """End process groups that nobody uses any more."""
    # All ranks in one order: ending a communicator is a collective call.
    for group in sorted(groups - {dist.group.WORLD}, key=lambda group: group.group_name):
        dist.destroy_process_group(group)


def give_back_host_memory() -> None:
    """Return what the C library keeps of freed memory, which would count as this process's."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _local_tensors(module: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Iterate over this rank's part of all parameters and buffers."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        data = tensor.detach()
        yield name, data.to_local() if hasattr(data, "to_local") else data
