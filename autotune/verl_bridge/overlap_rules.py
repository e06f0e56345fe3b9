"""Overlap settings of a job: where verl's configuration holds them, and which combinations act.

Runs in the driver, on the leaves of a composed configuration. The settings of each role's engine
stand below its ``wrap_policy.overlap``; see :mod:`autotune.models.overlap_settings` for what they
mean and :mod:`autotune.verl_bridge.engine` for what reads them.
"""

from collections.abc import Collection, Mapping, Sequence

from autotune.models.calibration import Calibration
from autotune.models.overlap_settings import OVERLAP, TURNS_ON, OverlapSettings
from autotune.verl_bridge import job
from autotune.verl_bridge.discovery import PLUGIN
from autotune.verl_bridge.job import ACTOR, MODEL, REF, Leaves
from autotune.verl_bridge.rules import Rule

ENGINES: Mapping[str, str] = {
    ACTOR: f"{ACTOR}.fsdp_config",
    REF: f"{REF}.fsdp_config",
    "critic": "critic.fsdp",
}
"""Role -> section of its FSDP engine."""


def overlap_keys(name: str, roles: Sequence[str] = tuple(ENGINES)) -> tuple[str, ...]:
    """Return the keys of one overlap setting, one for each role."""
    return tuple(f"{ENGINES[role]}.{OVERLAP}.{name}" for role in roles)


def overlap_rules(leaves: Leaves) -> tuple[Rule, ...]:
    """Return the rules about overlap settings for the roles that this job has.

    Raises:
        BadInputError: The base job's own settings are misspelt or cannot be.
    """
    roles = [ACTOR]
    roles += [REF] if job.has_reference_engine(leaves) else []
    roles += ["critic"] if job.has_critic(leaves) else []
    rules: list[Rule] = []
    for role in roles:
        overlap_settings(leaves, role)
        rules += [_fsdp2_rule(role), _forward_rule(role), _backward_rule(role)]
    return tuple(rules)


def overlap_settings(leaves: Leaves, role: str) -> OverlapSettings:
    """Return what a job says about one role's engine.

    Raises:
        BadInputError: It is misspelt or cannot be.
    """
    prefix = f"{ENGINES[role]}.{OVERLAP}"
    settings = _nested(leaves, prefix)
    return (
        OverlapSettings()
        if settings is None
        else OverlapSettings.from_dict(settings, f"base: {prefix}")
    )


def plugin_overrides(knobs: Collection[str], leaves: Leaves) -> dict[str, object]:
    """Return what makes verl ask for this package where a job's overlap settings depend on it.

    Without the package verl would run such a job without a word, as if it had no such settings;
    with this it ends at once, on the module that is missing.

    Args:
        knobs: Names of the sweep's knobs.
        leaves: The base job.
    """
    in_job = any(leaves.get(key, 0) for name in TURNS_ON for key in overlap_keys(name))
    if not in_job and not set(knobs) & set(TURNS_ON):
        return {}
    key = f"{MODEL}.external_lib"
    given = leaves[key]
    modules = list(given) if isinstance(given, list) else [] if given is None else [given]
    return {} if PLUGIN in modules else {key: [*modules, PLUGIN] if modules else PLUGIN}


def calibration_overrides(calibration: Calibration, leaves: Leaves) -> list[str]:
    """Return the Hydra overrides that give a job's engines the calibration of their cluster.

    With it goes the length that a sequence is planned with, the longest that may occur, unless the
    job says one itself. Neither changes what an engine does while its overlap settings are 0.
    """
    from autotune.verl_bridge.overrides import format_override

    longest = job.longest_sequence(leaves)
    added: dict[str, object] = dict.fromkeys(
        overlap_keys("calibration"), calibration.to_dict()
    ) | {key: longest for key in overlap_keys("sequence_tokens") if key not in leaves}
    return [format_override(f"++{key}", value) for key, value in added.items()]


def _nested(leaves: Leaves, prefix: str) -> object:
    """Return what stands at ``prefix`` as nested mappings; None where nothing does."""
    if prefix in leaves:
        return leaves[prefix]
    tree: dict[str, object] = {}
    for key, value in leaves.items():
        if key.startswith(f"{prefix}."):
            node = tree
            *path, last = key.removeprefix(f"{prefix}.").split(".")
            for part in path:
                child = node.setdefault(part, {})
                assert isinstance(child, dict)
                node = child
            node[last] = value
    return tree or None


def _name(role: str, rule: str) -> str:
    return f"{role.rpartition('.')[2]}_{rule}"


# verl_bridge/engine.py: plans are applied to FSDP2's units
def _fsdp2_rule(role: str) -> Rule:
    strategy, keys = f"{role}.strategy", [overlap_keys(name, [role])[0] for name in TURNS_ON]

    def check(leaves: Leaves) -> str | None:
        used = [key for key in keys if leaves.get(key, 0)]
        if not used or leaves[strategy] == "fsdp2":
            return None
        return f"{used[0]} ({leaves[used[0]]}) acts only where {strategy} is fsdp2"

    return Rule(_name(role, "overlap_on_fsdp2"), (strategy, *keys), check)


# verl/utils/fsdp_utils.py apply_fsdp2: forward_prefetch is a depth of 1
def _forward_rule(role: str) -> Rule:
    switch = f"{ENGINES[role]}.forward_prefetch"
    (depth,) = overlap_keys("forward_prefetch_depth", [role])

    def check(leaves: Leaves) -> str | None:
        if not leaves.get(switch, False) or not leaves.get(depth, 0):
            return None
        return f"{switch} (true) and {depth} ({leaves[depth]}) exclude each other: leave one out"

    return Rule(_name(role, "one_forward_prefetch"), (switch, depth), check)


# torch's FSDPModule.set_modules_to_backward_prefetch: one unit ahead is what FSDP2 does by itself
def _backward_rule(role: str) -> Rule:
    (depth,) = overlap_keys("backward_prefetch_depth", [role])
    (threshold,) = overlap_keys("overlap_threshold", [role])

    def check(leaves: Leaves) -> str | None:
        if leaves.get(depth, 0) != 1 or leaves.get(threshold, 0):
            return None
        return f"{depth} (1) is what FSDP2 does by itself: 0 is the same job"

    return Rule(_name(role, "backward_prefetch_changes"), (depth, threshold), check)
