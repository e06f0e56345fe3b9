"""Where a trial's ranks go: its placement group, and how many of them a cluster can hold at once.

Runs in the driver; pure functions, no Ray. A trial of n nodes x g ranks reserves n bundles of g
ranks each: a bundle never spans machines, so that what verl takes for one node is on one machine,
whatever else the cluster runs. The trial's own actor needs nothing and lives beside bundle 0.
"""

from collections.abc import Mapping, Sequence

from autotune.settings import ResourcesConfig

HELPER_CPUS = 4
"""Logical CPUs that a job's helper actors need besides those of its placement group
(TransferQueue's controller, and room to create actors in), each TransferQueue storage unit one
more."""


def node_bundle(resources: ResourcesConfig) -> dict[str, float]:
    """Return what the ranks of one node reserve together."""
    bundle = {"CPU": float(resources.cpus_per_rank * resources.ranks_per_node)}
    if resources.device == "gpu":
        bundle["GPU"] = float(resources.ranks_per_node)
    return bundle


def bundles(resources: ResourcesConfig) -> list[dict[str, float]]:
    """Return a trial's placement group: one bundle for each of its nodes."""
    return [node_bundle(resources) for _ in range(resources.nodes)]


def cpus_of_a_trial(resources: ResourcesConfig, num_storage_units: int) -> int:
    """Return the logical CPUs of a trial, its helper actors included."""
    ranks = resources.cpus_per_rank * resources.num_ranks
    return ranks + num_storage_units + HELPER_CPUS


def trials_at_once(
    resources: ResourcesConfig, num_storage_units: int, nodes: Sequence[Mapping[str, float]]
) -> int:
    """Return how many trials a cluster can hold at the same time.

    Args:
        resources: Of one trial.
        num_storage_units: TransferQueue's, see :data:`HELPER_CPUS`.
        nodes: What each node of the cluster offers: resource -> amount.
    """
    bundle = node_bundle(resources)
    slots = [_fits(bundle, node) for node in nodes]
    match resources.strategy:
        case "STRICT_PACK":
            placeable = sum(count // resources.nodes for count in slots)
        case "STRICT_SPREAD":
            placeable = _spread(slots, resources.nodes)
        case _:
            placeable = sum(slots) // resources.nodes
    cpus = sum(node.get("CPU", 0.0) for node in nodes)
    return min(placeable, int(cpus // cpus_of_a_trial(resources, num_storage_units)))


def why_none_fits(
    resources: ResourcesConfig, num_storage_units: int, nodes: Sequence[Mapping[str, float]]
) -> str:
    """Say what a cluster lacks for a single trial; empty when one fits."""
    if trials_at_once(resources, num_storage_units, nodes):
        return ""
    needed = {"CPU": float(cpus_of_a_trial(resources, num_storage_units))}
    if resources.device == "gpu":
        needed["GPU"] = float(resources.num_ranks)
    for name, amount in needed.items():
        present = sum(node.get(name, 0.0) for node in nodes)
        if present < amount:
            return f"One trial needs {amount:g} {name}, the cluster has {present:g}."
    bundle = ", ".join(f"{amount:g} {name}" for name, amount in node_bundle(resources).items())
    able = sum(_fits(node_bundle(resources), node) > 0 for node in nodes)
    how = {"STRICT_PACK": "on one node", "STRICT_SPREAD": "on different nodes"}
    return (
        f"One trial needs {resources.nodes} x ({bundle}) "
        f"{how.get(resources.strategy, 'each on one node')}; {able} of {len(nodes)} nodes have "
        "room for one of these."
    )


def _fits(bundle: Mapping[str, float], node: Mapping[str, float]) -> int:
    return int(min(node.get(name, 0.0) // amount for name, amount in bundle.items()))


def _spread(slots: Sequence[int], num_nodes: int) -> int:
    """Return the trials that can run when each takes one slot on ``num_nodes`` different nodes."""
    trials = 0
    while sum(min(count, trials + 1) for count in slots) >= num_nodes * (trials + 1):
        trials += 1
    return trials
