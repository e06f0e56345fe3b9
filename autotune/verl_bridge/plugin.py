"""What verl learns from this package: the entry point of the group ``verl.plugins``.

Runs in every process that imports verl, so it imports almost nothing: each registration waits for
the verl module that it belongs to (a post-import hook), because a process that builds no trainer
should not pay for importing one. verl logs a plug-in that fails to load at DEBUG only;
:func:`missing_registrations` asks verl's registries afterwards.

Registered here: FSDP engines that follow an overlap plan where the job asks for one, the platform
``cpu`` with engines of its own, the rollout ``hf``, the trainer mode ``cpu_sync``. A job that names
none of them runs as without this package.
"""

import importlib
import os

import wrapt

from autotune.verl_bridge import platform_cpu  # registers the platform "cpu"
from autotune.verl_bridge.discovery import lost_plugin
from autotune.verl_bridge.isolation import (
    TRANSFER_QUEUE_NAMESPACE_ENV,
    isolate_transfer_queue,
)
from autotune.verl_bridge.job import OWN_ROLLOUT
from autotune.verl_bridge.job_processes import JOB_ENV, register_stack_dump


def _load_rollout_replica() -> type:
    from autotune.verl_bridge.rollout_hf import HFReplica

    return HFReplica


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def _register_engines(_module: object) -> None:
    importlib.import_module("autotune.verl_bridge.engine")
    importlib.import_module("autotune.verl_bridge.engine_cpu")


@wrapt.when_imported("verl.workers.rollout.replica")
def _register_rollout_replica(module: object) -> None:
    module.RolloutReplicaRegistry.register(OWN_ROLLOUT, _load_rollout_replica)  # type: ignore[attr-defined]


@wrapt.when_imported("verl.workers.rollout.base")
def _register_rollout_adapter(module: object) -> None:
    # verl has no public register function for the worker's side of a rollout
    # (workers/rollout/base.py:89).
    registry = module._ROLLOUT_REGISTRY  # type: ignore[attr-defined]
    registry[(OWN_ROLLOUT, "async")] = "autotune.verl_bridge.rollout_hf.HFServerAdapter"


@wrapt.when_imported("verl.trainer.ppo.v1.trainer_sync")
def _register_trainer(_module: object) -> None:
    importlib.import_module("autotune.verl_bridge.trainer_cpu")


if os.environ.get(JOB_ENV):
    register_stack_dump()

if os.environ.get(TRANSFER_QUEUE_NAMESPACE_ENV):

    @wrapt.when_imported("transfer_queue.interface")
    def _isolate_transfer_queue(module: object) -> None:
        isolate_transfer_queue(module, namespace=os.environ[TRANSFER_QUEUE_NAMESPACE_ENV])


def missing_registrations(device: str) -> list[str]:
    """Ask verl's registries what should be there on ``device`` and is not; empty when all is
    well."""
    from verl.plugin.platform.platform_manager import PlatformRegistry, get_platform
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    missing = lost_plugin()
    key = "cpu" if device == "cpu" else ("cuda", "nvidia")
    for model_type in ("language_model", "value_model"):
        if key not in EngineRegistry._engines.get(model_type, {}).get("fsdp2", {}):
            missing.append(f"engine {model_type}/fsdp2/{device}")
    if device != "cpu":
        return missing
    if (
        PlatformRegistry.get("cpu") is not platform_cpu.PlatformCPU
        or get_platform().device_name != "cpu"
    ):
        missing.append("platform cpu")
    if OWN_ROLLOUT not in RolloutReplicaRegistry._registry:
        missing.append(f"rollout {OWN_ROLLOUT}")
    return missing
