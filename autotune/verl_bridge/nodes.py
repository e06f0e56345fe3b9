"""Asking every node of a trial's placement group something, whatever state its job is in.

Runs in the trial actor. On the actor's own node a function is called directly; on others it runs as
a Ray task that needs no resources. A node that does not answer in time is reported as None.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

Answer = TypeVar("Answer")


class TrialNodes:
    """The nodes of one placement group.

    Args:
        group: The placement group, ready.
    """

    def __init__(self, group: Any) -> None:
        found = placement_group_table(group)["bundles_to_node_id"].values()
        self.ids = tuple(dict.fromkeys(str(node_id) for node_id in found))
        self._own = ray.get_runtime_context().get_node_id()

    def ask(
        self, function: Callable[..., Answer], *arguments: Any, timeout_s: float
    ) -> dict[str, Answer | None]:
        """Call a function on every node; its module must be importable there."""
        others = [node_id for node_id in self.ids if node_id != self._own]
        own = {self._own: function(*arguments)} if self._own in self.ids else {}
        return {**own, **ask_nodes(others, function, *arguments, timeout_s=timeout_s)}

    def lost(self, answers: dict[str, Any]) -> list[str]:
        """Return the nodes that are dead, or that gave no answer, by address where it is known."""
        return self._addresses(lambda node_id, is_alive: not is_alive or answers[node_id] is None)

    def dead(self) -> list[str]:
        """Return the nodes that the cluster has given up, by address where it is known."""
        return self._addresses(lambda node_id, is_alive: not is_alive)

    def _addresses(self, is_wanted: Callable[[str, bool], bool]) -> list[str]:
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        return [
            nodes[node_id]["NodeManagerAddress"] if node_id in nodes else node_id
            for node_id in self.ids
            if is_wanted(node_id, node_id in nodes and nodes[node_id]["Alive"])
        ]


def ask_nodes(
    ids: Sequence[str], function: Callable[..., Answer], *arguments: Any, timeout_s: float
) -> dict[str, Answer | None]:
    """Call a function on nodes of the cluster, as a Ray task that needs no resources.

    Returns:
        Node's id -> what it returned; None where the node is dead or gave no answer in time.
    """
    remote = ray.remote(function)
    tasks = {
        node_id: remote.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(*arguments)
        for node_id in ids
    }
    waiting = list(tasks.values())
    done = ray.wait(waiting, num_returns=len(tasks), timeout=timeout_s)[0] if tasks else []
    return {node_id: _get(task) if task in done else None for node_id, task in tasks.items()}


def _get(task: Any) -> Any:
    try:
        return ray.get(task)
    except ray.exceptions.RayError:
        return None
