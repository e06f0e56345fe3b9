"""verl's FSDP engines, wrapped by an overlap plan where the job asks for one.

Runs in verl's training workers. The settings are the engine's ``wrap_policy.overlap`` (actor:
``actor_rollout_ref.actor.fsdp_config.wrap_policy.overlap``; reference: the same below ``ref``;
critic: ``critic.fsdp.wrap_policy.overlap``), see :mod:`autotune.models.overlap_settings`. Without
them, or with nothing but zeros in them, the engine is verl's own, line for line.

Registered for a device together with its vendor, which verl's registry prefers to its own engines
for the device alone.
"""

import dataclasses
from typing import Any

import torch
from verl.plugin.platform import get_platform
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from autotune.errors import BadInputError
from autotune.models.overlap_plan import Plan, Work
from autotune.models.overlap_settings import OVERLAP, TIMES, OverlapSettings
from autotune.verl_bridge.overlap import planned_wrapping

GPU_VENDORS = ["nvidia", "amd"]
"""Vendors of verl's device ``cuda``."""


class PlannedWrapping:
    """Wraps the model of an FSDP2 engine by the plan that its configuration asks for."""

    engine_config: Any
    model_config: Any
    overlap_plan: Plan | None = None
    """How the model was wrapped; None where verl wrapped it."""

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        settings = self._overlap_settings()
        if settings.is_neutral:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        if self.engine_config.strategy != "fsdp2":
            raise BadInputError(
                f"{OVERLAP} is set on an engine of the strategy {self.engine_config.strategy}.",
                "It acts on fsdp2 only.",
            )
        work = self._work(settings)
        if work.tokens == 0:
            _refuse_times(settings)
            settings = dataclasses.replace(settings, calibration=None)
        with planned_wrapping(settings, work, self._keep_plan):
            return super()._build_fsdp_module(module)  # type: ignore[misc]

    def _keep_plan(self, plan: Plan) -> None:
        self.overlap_plan = plan

    def _overlap_settings(self) -> OverlapSettings:
        key = OVERLAP.rpartition(".")[2]
        data = self.engine_config.wrap_policy.get(key)
        return OverlapSettings() if data is None else OverlapSettings.from_dict(data, OVERLAP)

    def _work(self, settings: OverlapSettings) -> Work:
        config = self.engine_config
        mixed = config.mixed_precision or {}
        return Work(
            tokens=self._tokens(settings),
            dtype=_torch_name(mixed.get("param_dtype", "bf16")),
            trains=not config.forward_only,
            recomputes=self.model_config.enable_gradient_checkpointing,
            reshards=config.reshard_after_forward,
            on_host=get_platform().device_name == "cpu",
        )

    def _tokens(self, settings: OverlapSettings) -> int:
        """Return the tokens of a micro-batch on one rank; 0 where the configuration cannot say."""
        config = self.engine_config
        if config.use_dynamic_bsz:
            budget = (
                config.infer_max_token_len_per_gpu
                if config.forward_only
                else config.max_token_len_per_gpu
            )
            return budget or 0
        sequences = (
            config.infer_micro_batch_size_per_gpu
            if config.forward_only
            else config.micro_batch_size_per_gpu
        )
        return (
            (sequences or 0) * settings.sequence_tokens // config.ulysses_sequence_parallel_size
        )


def _refuse_times(settings: OverlapSettings) -> None:
    for name in TIMES:
        if getattr(settings, name):
            raise BadInputError(
                f"{OVERLAP}.{name} is {getattr(settings, name):g}, but nothing says how many "
                "tokens a micro-batch has.",
                f"Set {OVERLAP}.sequence_tokens, or use dynamic batching with a token budget.",
            )


def _torch_name(dtype: str) -> str:
    from verl.utils.torch_dtypes import PrecisionType

    return str(PrecisionType.to_dtype(dtype)).removeprefix("torch.")


@EngineRegistry.register(
    model_type="language_model", backend="fsdp2", device="cuda", vendor=GPU_VENDORS
)
class PlannedFSDPEngineWithLMHead(PlannedWrapping, FSDPEngineWithLMHead):
    """Actor and reference."""


@EngineRegistry.register(
    model_type="value_model", backend="fsdp2", device="cuda", vendor=GPU_VENDORS
)
class PlannedFSDPEngineWithValueHead(PlannedWrapping, FSDPEngineWithValueHead):
    """Critic."""
