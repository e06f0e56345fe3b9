"""What the sizes of the rollout ``hf`` do: pieces of weights, and ranks of a replica."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.verl_bridge.rollout_hf import HFServerAdapter

MEGABYTE = torch.zeros(1 << 18)


class Server:
    """A handle of a server that counts the pieces which it is sent."""

    def __init__(self) -> None:
        self.pieces: list[int] = []
        self.update_weights = self

    async def remote(self, bucket: list[Any], is_last: bool, global_steps: int | None) -> None:
        self.pieces.append(len(bucket))


def adapter(monkeypatch: pytest.MonkeyPatch, *, rank: int, ranks: int, bucket: int) -> Any:
    monkeypatch.setenv("RANK", str(rank))
    config = SimpleNamespace(
        tensor_model_parallel_size=ranks,
        data_parallel_size=1,
        pipeline_model_parallel_size=1,
        checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=bucket),
    )
    return HFServerAdapter(config, None, None)


@pytest.mark.parametrize(("bucket", "pieces"), [(1, [1, 1, 1, 1, 0]), (2, [2, 2, 0]), (8, [4])])
def test_weights_travel_in_pieces_of_the_buckets_size(
    monkeypatch: pytest.MonkeyPatch, bucket: int, pieces: list[int]
) -> None:
    sender = adapter(monkeypatch, rank=0, ranks=2, bucket=bucket)
    sender._server = Server()
    asyncio.run(sender.update_weights((f"layer.{n}", MEGABYTE) for n in range(4)))
    assert sender._server.pieces == pieces


@pytest.mark.parametrize(("ranks", "leaders"), [(1, [0, 1, 2, 3]), (2, [0, 2]), (4, [0])])
def test_one_rank_of_each_replica_sends(
    monkeypatch: pytest.MonkeyPatch, ranks: int, leaders: list[int]
) -> None:
    found = [adapter(monkeypatch, rank=rank, ranks=ranks, bucket=1) for rank in range(4)]
    assert [rank for rank, each in enumerate(found) if each._is_leader] == leaders
