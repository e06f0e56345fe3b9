"""What a killed sweep left in the cluster: found by its own name, and removed.

Runs in the driver. Each sweep's folder holds an identity made at random; its placement groups bear
it in their names and its jobs' processes in their environment, so that nothing of anybody else is
ever touched. Ray removes what a dead driver held by itself, but not at once, and not what a rollout
engine started as a process of its own.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.store import write_atomic
from autotune.verl_bridge.job_processes import end_processes

logger = logging.getLogger(__name__)

IDENTITY_FILE = "identity"
_PREFIX = "autotune_"
_PATIENCE_S = 5.0
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What was removed."""

    placement_groups: Sequence[str]
    """Names."""
    processes: Sequence[str]
    """Process ids with their commands."""


def identity_of(folder: Path) -> str:
    """Return the identity of the sweep in a folder, made when it is asked for first."""
    path = folder / IDENTITY_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, f"{uuid.uuid4().hex[:16]}\n")
    return path.read_text(encoding="ascii").strip()


@contextmanager
def cleared(folder: Path) -> Iterator[None]:
    """Remove from the cluster what an earlier run of a folder's jobs left, then what this one does.

    Ray is connected, and the caller holds the lock of the folder's records.
    """
    for name in _removed(folder):
        logger.warning("left over from an earlier run, removed: %s", name)
    try:
        yield
    finally:
        # A rollout engine's own processes are no actors that end with their job's.
        _removed(folder)


def _removed(folder: Path) -> list[str]:
    left = remove_leftovers(identity_of(folder))
    return [*left.placement_groups, *left.processes]


def named_groups(sweep_id: str, bundles: Sequence[dict[str, float]], strategy: str) -> Any:
    """Return Tune's factory of placement groups, each named after its sweep."""
    from ray import tune

    class NamedGroups(tune.PlacementGroupFactory):
        """Names must be unique, so that each group gets one of its own."""

        def to_placement_group(self) -> Any:
            from ray.util.placement_group import placement_group

            name = f"{_PREFIX}{sweep_id}_{uuid.uuid4().hex[:8]}"
            return placement_group(self.bundles, strategy=self.strategy, name=name)

    return NamedGroups(list(bundles), strategy=strategy)


def remove_leftovers(sweep_id: str) -> Leftovers:
    """Remove a sweep's placement groups, with the actors on them, and its jobs' processes.

    Ray is connected, and the caller holds the sweep's lock: whatever bears its name is left over.
    """
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import (
        PlacementGroup,
        placement_group_table,
        remove_placement_group,
    )

    groups = {
        key: entry["name"]
        for key, entry in placement_group_table().items()
        if entry["name"].startswith(f"{_PREFIX}{sweep_id}_") and entry["state"] != "REMOVED"
    }
    for key in groups:
        remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(key))))
    return Leftovers(
        placement_groups=sorted(groups.values()), processes=_end_everywhere(sweep_id)
    )


def _end_everywhere(sweep_id: str) -> list[str]:
    import ray

    from autotune.verl_bridge.nodes import ask_nodes

    ids = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    answers = ask_nodes(ids, end_processes, sweep_id, _PATIENCE_S, timeout_s=_ANSWER_S)
    return [text for found in answers.values() if found is not None for text in found]
