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
    """The nodes of one placement group, and those beside it, as they are when this is made.

    Args:
        group: The placement group, ready.
    """

    def __init__(self, group: Any) -> None:
        found = placement_group_table(group)["bundles_to_node_id"].values()
        self.ids = tuple(dict.fromkeys(str(node_id) for node_id in found))
        self._own = ray.get_runtime_context().get_node_id()
        # verl puts agent loops and the like on whatever node has room.
        self._others = tuple(
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] not in self.ids
        )

    def ask(
        self, function: Callable[..., Answer], *arguments: Any, timeout_s: float
    ) -> dict[str, Answer | None]:
        """Call a function on every node; its module must be importable there."""
        others = [node_id for node_id in self.ids if node_id != self._own]
        own = {self._own: function(*arguments)} if self._own in self.ids else {}
        return {**own, **ask_nodes(others, function, *arguments, timeout_s=timeout_s)}

    def lost(self, answers: dict[str, Any]) -> list[str]:
        """Return the nodes that are dead, or that gave no answer, by address where it is known."""
        silent = [node_id for node_id in self.ids if answers[node_id] is None]
        return self._addresses(self.ids, or_one_of=silent)

    def dead(self, *, anywhere: bool = False) -> list[str]:
        """Return the nodes that the cluster has given up, by address where it is known.

        Args:
            anywhere: Whether nodes count too that only were in the cluster when this was made.
        """
        return self._addresses(self.ids + self._others if anywhere else self.ids)

    @staticmethod
    def _addresses(ids: Sequence[str], or_one_of: Sequence[str] = ()) -> list[str]:
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        return [
            nodes[node_id]["NodeManagerAddress"] if node_id in nodes else node_id
            for node_id in ids
            if node_id in or_one_of or node_id not in nodes or not nodes[node_id]["Alive"]
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
