"""Wrapping a model with FSDP2 as an overlap plan says, in place of verl's one unit a layer.

Runs in verl's training workers while an engine is built. verl's engine calls ``apply_fsdp2`` of its
own module to wrap the model, with no hook around it; :func:`planned_wrapping` puts ours there for
the length of that call, in a verl that it was written for. Which modules are wrapped is verl's
decision; which of them share a unit and how far ahead units are gathered is the plan's. Sharding is
by parameter in both, so that state dicts, checkpoints, gradients and weight sync do not depend on
the plan.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import fully_shard
from verl.utils import fsdp_utils

from autotune.models.overlap_plan import Plan, Work, make_plan
from autotune.models.overlap_settings import OverlapSettings
from autotune.verl_bridge.model_layers import read_layers
from autotune.verl_bridge.supported import VERL_VERSIONS, require_version


@contextlib.contextmanager
def planned_wrapping(
    settings: OverlapSettings, work: Work, keep: Callable[[Plan], None]
) -> Iterator[None]:
    """Let verl's engine wrap its model by a plan for as long as the context lasts.

    Args:
        settings: What the plan is made from.
        work: The micro-batch that it is made for.
        keep: Gets the plan.

    Raises:
        TrialStartError: The installed verl is not one that this was written for.
    """
    require_version("verl", VERL_VERSIONS, "wrap_policy.overlap acts in")
    # Importing it makes verl load this package's engines, which import this module.
    from verl.workers.engine.fsdp import transformer_impl

    def apply(model: nn.Module, fsdp_kwargs: Mapping[str, Any], config: Any) -> None:
        keep(wrap(model, fsdp_kwargs, config, settings=settings, work=work))

    original = transformer_impl.apply_fsdp2
    transformer_impl.apply_fsdp2 = apply
    try:
        yield
    finally:
        transformer_impl.apply_fsdp2 = original


def wrap(
    model: nn.Module,
    fsdp_kwargs: Mapping[str, Any],
    config: Any,
    *,
    settings: OverlapSettings,
    work: Work,
) -> Plan:
    """Shard a model in place, by a plan, and return the plan.

    Args:
        model: Whole and unsharded.
        fsdp_kwargs: What verl gives to every ``fully_shard``.
        config: The engine's configuration.
        settings: What the plan is made from.
        work: The micro-batch that it is made for.
    """
    targets = _targets(model, config)
    root, layers = read_layers(
        model, targets, policy=fsdp_kwargs["mp_policy"], sequence_tokens=settings.sequence_tokens
    )
    if config.forward_prefetch:
        # verl would have followed it here.
        settings = settings.with_forward_prefetch()
    plan = make_plan(root, layers, settings=settings, work=work)
    modules = [[targets[layer.name] for layer in unit.layers] for unit in plan.units]
    for unit in modules:
        with fsdp_utils.maybe_patch_fsdp_module(unit[0]):
            fully_shard(unit if len(unit) > 1 else unit[0], **fsdp_kwargs)
    with fsdp_utils.maybe_patch_fsdp_module(model):
        fully_shard(model, **fsdp_kwargs)
    _set_prefetch(plan, [model, *(unit[0] for unit in modules)])
    return plan


def _targets(model: nn.Module, config: Any) -> dict[str, nn.Module]:
    """Return the modules that verl would wrap one by one, by name, in the order of forward."""
    classes = config.wrap_policy.get(
        "transformer_layer_cls_to_wrap", getattr(model, "_no_split_modules", None)
    )
    names = [classes] if isinstance(classes, str) else list(classes or ())
    wrapped = {id(module) for module in fsdp_utils._select_fsdp2_wrap_targets(model, names)}
    return {name: module for name, module in model.named_modules() if id(module) in wrapped}


def _set_prefetch(plan: Plan, modules: Sequence[Any]) -> None:
    """Tell every unit which units to gather early; ``modules`` has one of each, the root first."""
    units = plan.all_units
    backward_order = [0, *range(len(units) - 1, 0, -1)]
    for index, unit in enumerate(units):
        if unit.forward_prefetch_depth:
            ahead = modules[index + 1 : index + 1 + unit.forward_prefetch_depth]
            modules[index].set_modules_to_forward_prefetch(list(ahead))
    for place, index in enumerate(backward_order):
        depth = units[index].backward_prefetch_depth
        if depth:
            ahead = [modules[later] for later in backward_order[place + 1 : place + 1 + depth]]
            modules[index].set_modules_to_backward_prefetch(ahead)
