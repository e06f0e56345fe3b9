"""verl's FSDP2 engines for the device ``cpu``; verl registers its own for cuda and npu only.

Runs in verl's training workers; torch's first FSDP needs an accelerator. Overlap plans apply as on
an accelerator. Two things differ: the reference is not wrapped with a pinned CPU-offload policy
(pinning needs an accelerator, and the parameters are on the CPU already), and the critic is built
with the job's own attention implementation (verl hard-codes flash attention for it).
"""

import dataclasses
from typing import Any

import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from autotune.verl_bridge.engine import PlannedWrapping


class _NoPinnedOffload:
    """Builds the FSDP module as if the engine were trainable: same sharding, no offload policy."""

    engine_config: Any

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        # verl forces CPUOffloadPolicy(pin_memory=True) where forward_only is set
        # (workers/engine/fsdp/transformer_impl.py:459-463).
        config = self.engine_config
        self.engine_config = dataclasses.replace(config, forward_only=False, offload_policy=False)
        try:
            return super()._build_fsdp_module(module)  # type: ignore[misc]
        finally:
            self.engine_config = config


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class CPUFSDPEngineWithLMHead(PlannedWrapping, _NoPinnedOffload, FSDPEngineWithLMHead):
    """Actor and reference."""


@EngineRegistry.register(model_type="value_model", backend="fsdp2", device="cpu")
class CPUFSDPEngineWithValueHead(PlannedWrapping, _NoPinnedOffload, FSDPEngineWithValueHead):
    """Critic."""

    def _build_module(self) -> torch.nn.Module:
        # verl.utils.model.load_valuehead_model hard-codes attn_implementation="flash_attention_2"
        # (utils/model.py:642, 649, 674).
        from transformers import AutoModelForTokenClassification
        from verl.models.transformers.monkey_patch import apply_monkey_patch
        from verl.utils.torch_dtypes import PrecisionType

        model_config = self.model_config
        dtype = PrecisionType.to_dtype(self.engine_config.model_dtype)
        hf_config = model_config.hf_config
        hf_config.num_labels = 1
        hf_config.classifier_dropout = 0.0
        hf_config.hidden_dropout = "0"
        hf_config.summary_dropout_prob = 0.0
        module = AutoModelForTokenClassification.from_pretrained(
            str(model_config.local_path),
            dtype=dtype,
            config=hf_config,
            attn_implementation=model_config.override_config.get("attn_implementation", "sdpa"),
            trust_remote_code=model_config.trust_remote_code,
        )
        apply_monkey_patch(
            model=module,
            use_remove_padding=self.use_remove_padding,
            ulysses_sp_size=self.ulysses_sequence_parallel_size,
        )
        module.to(dtype)
        if model_config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        return module
