"""The rollout ``hf`` as verl sees it: a replica that starts the sampling server and an adapter
that feeds it weights.

The replica runs in the trainer's process, the adapter in every training worker. One server serves
the ``tensor_model_parallel_size`` ranks of a replica; log-probabilities of server and actor agree
to fp32 rounding.
"""

import os
from collections.abc import Iterable
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from autotune.verl_bridge.rollout_hf_server import HFServer, ServerSettings


def _server_name(replica_rank: int) -> str:
    return f"hf_server_{replica_rank}"


class HFReplica(RolloutReplica):
    """One sampling server on the node of the replica's first worker."""

    async def launch_servers(self) -> None:
        node_id = await self.workers[0].__ray_call__.remote(_node_id)
        settings = ServerSettings(
            model_path=self.model_config.path,
            response_length=self.config.response_length,
            max_num_seqs=self.config.max_num_seqs,
            ignore_eos=self.config.ignore_eos,
            # As verl's vLLM server: two of one seed would give one prompt's answers twice.
            seed=self.config.seed + self.replica_rank,
            num_threads=int(os.environ.get("OMP_NUM_THREADS", "1")),
            trust_remote_code=self.model_config.get("trust_remote_code", False),
        )
        server = (
            ray.remote(HFServer)
            .options(
                num_cpus=0,
                name=_server_name(self.replica_rank),
                max_concurrency=self.max_concurrency,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(settings)
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = _server_name(self.replica_rank)


def _node_id(_worker: Any) -> str:
    return ray.get_runtime_context().get_node_id()


class HFServerAdapter(BaseRollout):
    """Pushes the actor's weights to the replica's server, in buckets."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        replica_size = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        rank = int(os.environ["RANK"])
        self._replica_rank = rank // replica_size if replica_rank == -1 else replica_rank
        self._is_leader = rank % replica_size == 0
        self._server: Any = None

    async def resume(self, tags: list[str]) -> None:
        """The server holds no device memory that had to be released."""

    async def release(self) -> None:
        """See :meth:`resume`."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_unused: Any,
    ) -> None:
        """Send all weights; every rank must iterate, because gathering a tensor is a collective."""
        if self._is_leader and self._server is None:
            self._server = ray.get_actor(_server_name(self._replica_rank))
        limit_bytes = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: list[tuple[str, torch.Tensor]] = []
        num_bytes = 0
        for name, weight in weights:
            if not self._is_leader:
                continue
            tensor = weight.detach().float().cpu().contiguous().clone()
            bucket.append((name, tensor))
            num_bytes += tensor.nbytes
            if num_bytes >= limit_bytes:
                await self._server.update_weights.remote(bucket, False, None)
                bucket, num_bytes = [], 0
        if self._is_leader:
            await self._server.update_weights.remote(bucket, True, global_steps)
