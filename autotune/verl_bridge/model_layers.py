"""What the overlap planner must know of a model: bytes, operations and kernels of its parts.

Runs in verl's training workers, on the whole model before it is sharded. Counted are the products
with weight matrices and those of causal attention; what is left (norms, activations) is launched
and moves memory, but hardly computes. What can be said without the model's code says
:mod:`autotune.models.model_shape`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from autotune.models.model_shape import KERNELS_PER_MODULE
from autotune.models.overlap_plan import Layer


def read_layers(
    model: nn.Module,
    targets: Mapping[str, nn.Module],
    *,
    policy: MixedPrecisionPolicy,
    sequence_tokens: int,
) -> tuple[Layer, list[Layer]]:
    """Return what the planner must know of a model: the root, and each module that is wrapped.

    Args:
        model: Whole and unsharded; may be on the meta device.
        targets: Modules that are wrapped, by name.
        policy: In which dtypes parameters and gradients are communicated.
        sequence_tokens: Tokens that attention sees at once; 0: attention is not counted.
    """
    seen: set[int] = set()
    layers = [
        _layer(
            name,
            stack=_stack(model, name),
            modules=list(module.named_modules(prefix=name)),
            seen=seen,
            policy=policy,
            attention_flops=_attention_flops(model, sequence_tokens),
            active_ratio=_active_expert_ratio(model),
        )
        for name, module in targets.items()
    ]
    inside = {id(inner) for module in targets.values() for inner in module.modules()}
    root = _layer(
        "",
        stack="",
        modules=[(name, each) for name, each in model.named_modules() if id(each) not in inside],
        seen=seen,
        policy=policy,
        attention_flops=0.0,
        active_ratio=1.0,
    )
    return root, layers


def _stack(model: nn.Module, name: str) -> str:
    """Return the list of layers that a module is an element of; empty for single modules."""
    parent = name.rpartition(".")[0]
    return parent if isinstance(model.get_submodule(parent), nn.ModuleList) else ""


def _layer(
    name: str,
    *,
    stack: str,
    modules: Sequence[tuple[str, nn.Module]],
    seen: set[int],
    policy: MixedPrecisionPolicy,
    attention_flops: float,
    active_ratio: float,
) -> Layer:
    gathered = reduced = 0
    forward = backward = attention_flops if stack else 0.0
    backward += attention_flops if stack else 0.0
    for path, module in modules:
        used = active_ratio if ".experts" in path else 1.0
        for parameter in module.parameters(recurse=False):
            # A tied matrix is gathered once and multiplied wherever it is used.
            if parameter.dim() > 1 and not isinstance(module, nn.Embedding):
                product = 2.0 * parameter.numel() * used
                forward += product
                backward += product * (2 if parameter.requires_grad else 1)
            if id(parameter) not in seen:
                seen.add(id(parameter))
                gathered += parameter.numel() * _size(policy.param_dtype, parameter)
                if parameter.requires_grad:
                    reduced += parameter.numel() * _size(policy.reduce_dtype, parameter)
    return Layer(
        name=name,
        stack=stack,
        parameter_bytes=gathered,
        gradient_bytes=reduced,
        forward_flops_per_token=forward,
        backward_flops_per_token=backward,
        num_kernels=KERNELS_PER_MODULE
        * sum(1 for _, module in modules if not any(module.children())),
    )


def _size(dtype: torch.dtype | None, parameter: nn.Parameter) -> int:
    return (parameter.dtype if dtype is None else dtype).itemsize


def _text_config(model: Any) -> Any:
    return model.config.get_text_config()


def _attention_flops(model: nn.Module, sequence_tokens: int) -> float:
    """Return the operations of one layer's causal attention for one token, forward; 0 for a model
    without attention heads."""
    config = _text_config(model)
    heads = getattr(config, "num_attention_heads", 0)
    if not heads:
        return 0.0
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    # Two products, 2 operations each, over half of the sequence on average.
    return 2.0 * width * sequence_tokens


def _active_expert_ratio(model: nn.Module) -> float:
    """Return the share of a mixture's experts that one token passes; 1 for a dense model."""
    config = _text_config(model)
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    count = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    active = getattr(config, "num_experts_per_tok", None)
    return active / count if count and active else 1.0
