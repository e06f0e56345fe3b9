"""The best setting as a verl configuration for production.

Runs in the driver. Writes ``best.yaml``: verl's own configuration by name in its ``defaults`` and,
over it, the base job's settings and the winner's, nothing else. ``python -m verl.trainer.main_ppo
--config-path DIR --config-name best`` runs it. The trial protocol's own settings (steps, logging,
validation) are not in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from autotune.config import Sweep
from autotune.metrics import METRICS
from autotune.objective import TrialRecord
from autotune.verl_bridge.overrides import compose_base, container, overridden_keys


def best_yaml(
    sweep: Sweep, best: TrialRecord, baseline: TrialRecord, versions: Mapping[str, str]
) -> str:
    """Return the text of ``best.yaml``.

    Args:
        sweep: The sweep that found it.
        best: The winner.
        baseline: Trial 0.
        versions: Package -> version that ran.
    """
    overrides = [*sweep.base_overrides, *best.overrides]
    config = compose_base(sweep.config.base.config_name, overrides)
    keys = overridden_keys(overrides)
    body = yaml.safe_dump(
        _subset(container(config), sorted(keys)), sort_keys=True, default_flow_style=False
    )
    header = "\n".join(
        f"# {line}".rstrip() for line in _provenance(sweep, best, baseline, versions)
    )
    defaults = yaml.safe_dump({"defaults": [sweep.config.base.config_name, "_self_"]})
    search_path = yaml.safe_dump({"hydra": {"searchpath": ["pkg://verl.trainer.config"]}})
    return f"{header}\n\n{defaults}\n{search_path}\n{body}"


def _subset(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return the nested mapping that holds only the named keys."""
    tree: dict[str, Any] = {}
    for key in keys:
        *path, last = key.split(".")
        node, source = tree, config
        for part in path:
            node = node.setdefault(part, {})
            source = source[part]
        node[last] = source[last]
    return tree


def _provenance(
    sweep: Sweep, best: TrialRecord, baseline: TrialRecord, versions: Mapping[str, str]
) -> list[str]:
    objective = sweep.config.objective.metric
    unit = METRICS[objective].unit
    lines = [
        f"Best feasible setting of the sweep '{sweep.config.name}': trial {best.number}, "
        f"{best.ended_at}.",
        f"{objective}: {_number(best, objective)} {unit}; the base job's own settings: "
        f"{_number(baseline, objective)} {unit}.",
        "Measured once in each trial, not yet confirmed by an interleaved comparison.",
        "",
        "Changed settings:",
    ]
    changed = [name for name, value in best.setting.items() if value != baseline.setting[name]]
    lines += [f"  {name}: {baseline.setting[name]} -> {best.setting[name]}" for name in changed]
    if not changed:
        lines.append("  none: the base job's own settings were the best")
    lines += ["", "Constraints:"]
    for constraint in sweep.config.constraints:
        value = best.metrics.get(constraint.metric)
        reason = best.absent.get(constraint.metric, "")
        shown = f"not measured ({reason})" if value is None else f"{value:.3g}"
        lines.append(f"  {constraint.metric}: {shown}, limit {constraint.max:g}")
    resources = sweep.config.resources
    lines += [
        "",
        f"Ran on {resources.nodes} node(s) x {resources.ranks_per_node} {resources.device} "
        "rank(s); " + ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return lines


def _number(record: TrialRecord, metric: str) -> str:
    value = record.value(metric)
    return "not measured" if value is None else f"{value:.4g}"
