"""Which rank runs where: verl's workers on the placement group that a trial holds already.

Runs in the trial's verl process. The group has one bundle for each node of verl, with room for all
ranks of that node; bundles are taken in the order in which verl sorts its own groups (by the node's
address), so that ranks are numbered node by node and local ranks are what verl takes them for. verl
has no setting that puts several workers into one bundle, so this one module lends its trainer
another worker group class while the workers are made. It refuses a verl that it was not written
for.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from verl.single_controller.ray import RayWorkerGroup, ResourcePoolManager
from verl.single_controller.ray.base import RayResourcePool

from autotune.errors import TrialStartError
from autotune.verl_bridge.supported import VERL_VERSIONS, require_version


class GroupPool(RayResourcePool):
    """Ranks on the bundles of one existing placement group.

    verl must not reserve again: two reservations deadlock a full cluster.

    Args:
        placement_group: The trial's.
        bundles: Bundle of each of verl's nodes, in the order of their ranks.
        ranks_per_node: Ranks in each bundle.
        name_prefix: verl's name of the pool.
    """

    def __init__(
        self,
        placement_group: PlacementGroup,
        *,
        bundles: Sequence[int],
        ranks_per_node: int,
        name_prefix: str,
    ) -> None:
        super().__init__(
            process_on_nodes=[ranks_per_node] * len(bundles),
            use_gpu=True,
            max_colocate_count=1,
            name_prefix=name_prefix,
        )
        self.placement_group = placement_group
        self.bundles = list(bundles)
        self.pgs = [placement_group] * len(bundles)


@dataclass(kw_only=True)
class ExistingGroupManager(ResourcePoolManager):
    """Places verl's one pool of workers on the trial's placement group."""

    placement_group: PlacementGroup

    def create_resource_pool(self) -> None:
        [(name, process_on_nodes)] = self.resource_pool_spec.items()
        bundles = bundles_by_node(self.placement_group)
        if len(bundles) != len(process_on_nodes):
            raise TrialStartError(
                f"The trial's placement group has {len(bundles)} bundles, verl wants "
                f"{len(process_on_nodes)} nodes.",
                "trainer.nnodes must be resources.nodes.",
            )
        self.resource_pool_dict[name] = GroupPool(
            self.placement_group,
            bundles=bundles,
            ranks_per_node=process_on_nodes[0],
            name_prefix=name,
        )


class GroupWorkers(RayWorkerGroup):
    """verl's worker group, with all ranks of a node in the node's bundle."""

    def _init_with_resource_pool(
        self,
        resource_pool: GroupPool,
        ray_cls_with_init: Any,
        bin_pack: bool,
        detached: bool,
        worker_env: Mapping[str, str] | None = None,
    ) -> None:
        self.resource_pool = resource_pool
        self._world_size = resource_pool.world_size
        group, bundles = resource_pool.placement_group, resource_pool.bundles
        self._get_master_addr_port(
            group, bundle_index=bundles[0], master_port_range=self._ray_master_port_range
        )
        for rank in range(self._world_size):
            node, local_rank = divmod(rank, resource_pool.store[0])
            self._create_worker(
                rank=rank,
                pg_idx=node,
                pg=group,
                local_rank=local_rank,
                resource_pool=resource_pool,
                ray_cls_with_init=_InBundle(ray_cls_with_init, bundles[node]),
                worker_env=worker_env,
                detached=detached,
            )


class _InBundle:
    """verl's maker of one worker; the bundle is not the worker's local rank."""

    def __init__(self, make: Any, bundle: int) -> None:
        self.cls = make.cls
        self.update_options = make.update_options
        self._make = make
        self._bundle = bundle

    def __call__(self, *, placement_group_bundle_idx: int, **options: Any) -> Any:
        return self._make(placement_group_bundle_idx=self._bundle, **options)


def bundles_by_node(group: PlacementGroup) -> list[int]:
    """Return the group's bundles in the order of the addresses of their nodes, as verl sorts its
    groups (single_controller/ray/base.py, ``sort_placement_group_by_node_ip``)."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return sorted(nodes, key=lambda bundle: (addresses[nodes[bundle]], nodes[bundle], bundle))


@contextlib.contextmanager
def group_workers(trainer_module: Any) -> Iterator[None]:
    """Have verl's trainer make :class:`GroupWorkers` within the context.

    Args:
        trainer_module: The module ``verl.trainer.ppo.v1.trainer_base``.

    Raises:
        TrialStartError: The installed verl is not one that this was written for.
    """
    require_version("verl", VERL_VERSIONS, "its workers can be placed on a trial's group in")
    plain = trainer_module.RayWorkerGroup
    trainer_module.RayWorkerGroup = GroupWorkers
    try:
        yield
    finally:
        trainer_module.RayWorkerGroup = plain
