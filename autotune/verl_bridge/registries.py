"""Names that verl looks up in its registries when a job runs: advantage estimators and rollouts.

Runs in the driver. verl finds a wrong one only after it has started; its source says which there
are, and is parsed as in :mod:`autotune.verl_bridge.schema`, not imported. Where a job loads modules
of its own, which may register more, and where verl's source is not understood, every name is
accepted.
"""

import ast
import functools
import os
from collections.abc import Iterator
from importlib.metadata import entry_points

from autotune.errors import BadInputError, nearest
from autotune.verl_bridge.job import MODEL, OWN_ROLLOUT, ROLLOUT, Leaves
from autotune.verl_bridge.schema import parse_module

_MODULES_VARIABLE = "VERL_USE_EXTERNAL_MODULES"
_OWN_PLUGIN = "autotune"


def check_names(leaves: Leaves, device: str) -> None:
    """Check a base job's advantage estimator and rollout.

    Args:
        leaves: The job, as its overrides give it.
        device: ``resources.device`` of the sweep.

    Raises:
        BadInputError: No such name, or a rollout that does not run on this device.
    """
    if not _loads_more(leaves):
        _check("algorithm.adv_estimator", leaves, advantage_estimators(), "advantage estimator")
        _check(f"{ROLLOUT}.name", leaves, rollouts(), "rollout")
    name = leaves[f"{ROLLOUT}.name"]
    if device == "cpu" and name != OWN_ROLLOUT:
        raise BadInputError(
            f"base.overrides: {ROLLOUT}.name is {name!r}, but resources.device is cpu.",
            f"Only {ROLLOUT}.name={OWN_ROLLOUT} runs without GPUs.",
        )


def _check(key: str, leaves: Leaves, names: frozenset[str], what: str) -> None:
    name = leaves[key]
    if names and name not in names:
        hint = nearest(str(name), names) or f"It has: {', '.join(sorted(names))}."
        raise BadInputError(
            f"base.overrides: {key} is {name!r}: verl has no such {what}.",
            f"{hint} For one of your own, name its module in {_MODULES_VARIABLE}.",
        )


def _loads_more(leaves: Leaves) -> bool:
    """Say whether modules that may register further names are loaded into verl's processes."""
    of_job = f"ray_kwargs.ray_init.runtime_env.env_vars.{_MODULES_VARIABLE}"
    if os.environ.get(_MODULES_VARIABLE) or leaves.get(of_job) or leaves[f"{MODEL}.external_lib"]:
        return True
    return any(entry.name != _OWN_PLUGIN for entry in entry_points(group="verl.plugins"))


@functools.cache
def advantage_estimators() -> frozenset[str]:
    """Return the names under which verl registers advantage estimators; empty where unknown."""
    tree = parse_module("verl.trainer.ppo.core_algos")
    if tree is None:
        return frozenset()
    values = dict(_members(tree, "AdvantageEstimator"))
    return frozenset(_registered(tree, "register_adv_est", values))


@functools.cache
def rollouts() -> frozenset[str]:
    """Return the names of verl's rollout servers and of this package's; empty where unknown."""
    tree = parse_module("verl.workers.rollout.base")
    found = set() if tree is None else set(_keys(tree, "_ROLLOUT_REGISTRY"))
    return frozenset(found | {OWN_ROLLOUT}) if found else frozenset()


def _members(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    """Yield the members of an enumeration with their values."""
    for node in tree.body:
        if not (isinstance(node, ast.ClassDef) and node.name == name):
            continue
        for line in node.body:
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                for target in line.targets:
                    if isinstance(target, ast.Name):
                        yield target.id, str(line.value.value)


def _registered(tree: ast.Module, decorator: str, values: dict[str, str]) -> Iterator[str]:
    """Yield what functions are registered as: a text, or a member of an enumeration."""
    for node in tree.body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            is_it = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            if not is_it or call.func.id != decorator:  # type: ignore[attr-defined]
                continue
            for given in call.args:  # type: ignore[attr-defined]
                if isinstance(given, ast.Constant):
                    yield str(given.value)
                if isinstance(given, ast.Attribute) and given.attr in values:
                    yield values[given.attr]


def _keys(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield the rollouts of a dictionary with keys ``(rollout, "async")``."""
    for node in tree.body:
        is_it = isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        )
        if is_it and isinstance(node.value, ast.Dict):  # type: ignore[attr-defined]
            for key in node.value.keys:  # type: ignore[attr-defined]
                rollout, mode = ast.literal_eval(key) if isinstance(key, ast.Tuple) else ("", "")
                if mode == "async":
                    yield str(rollout)
