"""Run by ``test_group_workers.py`` in a process of its own: verl chooses its platform on import.

Starts four Ray nodes on this machine, takes a placement group as a trial would, has verl make its
workers on it, and prints what they say as one JSON object.
"""

import json
import os
import sys
from typing import Any

os.environ["VERL_PLATFORM"] = "cpu"  # Read when verl is imported.

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs
from verl.trainer.ppo.v1 import trainer_base

from autotune.verl_bridge.group_workers import ExistingGroupManager, group_workers

NODES, RANKS_PER_NODE = 3, 2


class Where(Worker):
    @register(dispatch_mode=getattr(Dispatch, "ONE_TO_ALL"))
    def tell(self) -> dict[str, Any]:
        context = ray.get_runtime_context()
        return {
            "rank": self.rank,
            "node": context.get_node_id(),
            "local_world_size": os.environ["RAY_LOCAL_WORLD_SIZE"],
            "group": context.get_placement_group_id(),
        }


def main(strategy: str) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(NODES):
        cluster.add_node(num_cpus=RANKS_PER_NODE * (NODES if strategy == "STRICT_PACK" else 1))
    ray.init(address=cluster.address, log_to_driver=False)
    group = placement_group([{"CPU": float(RANKS_PER_NODE)}] * NODES, strategy=strategy)
    ray.get(group.ready(), timeout=60)
    manager = ExistingGroupManager(
        resource_pool_spec={"pool": [RANKS_PER_NODE] * NODES}, mapping={}, placement_group=group
    )
    manager.create_resource_pool()
    plain = trainer_base.RayWorkerGroup
    with group_workers(trainer_base):
        workers = trainer_base.RayWorkerGroup(
            resource_pool=manager.resource_pool_dict["pool"],
            ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(Where)),
            device_name="cpu",
        )
    assert trainer_base.RayWorkerGroup is plain
    told = workers.tell()
    print(json.dumps({"workers": told, "group": group.id.hex()}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
