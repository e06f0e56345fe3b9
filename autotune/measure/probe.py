"""How fast one rank computes, copies and launches, and how fast collectives run between ranks.

Runs in one process for each rank, on the rank's own device (in a sweep: an actor on a bundle of a
trial's kind of placement group). All ranks make the same calls in the same order. Writes no file.

A sample is the time of one collective call when calls follow each other, as they do in a step:
some calls between two synchronisations, the slowest rank's time, the median over repetitions.
Message sizes are those of :class:`autotune.models.calibration.CollectiveCost`. What the ranks
decide while they measure (how often to repeat, when to stop) they decide from the slowest rank's
times, so that all decide alike.
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from autotune.measure.stats import median
from autotune.models.model_shape import KERNELS_PER_MODULE

MESSAGE_BYTES = tuple(4**power * 65536 for power in range(8))
"""64 KiB to 1 GiB."""

_LARGE_LAYER = {"cuda": (4096, 32, 4, 1024), "cpu": (256, 4, 2, 128)}
"""Hidden size, heads, sequences and their tokens of the layer that computes."""
_SMALL_LAYER = (64, 4)
"""Hidden size and heads of the layer that is launched."""
_COPY_BYTES = {"cuda": 2**30, "cpu": 2**25}
_MEMORY_SHARE = 0.25
"""Share of the free memory that one message may take; its shard takes less again."""
_BATCH_S = 0.02
"""Calls are repeated until they last about this long, so that the clock's grain does not count."""
_MAX_CALLS = 200
_REPETITIONS = 3
_LAUNCHED = 50
"""Layers that are launched one after another, while the device can still queue their kernels."""
_TIMEOUT = timedelta(seconds=60)


class _Layer(torch.nn.Module):
    """A decoder layer's modules and operations: attention with rotated positions, a gated MLP.

    Args:
        width: Hidden size; the MLP's is three times as large.
        heads: Of attention; half as many for keys and values.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.width = width
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in "ab")
        self.query, self.key, self.value, self.output = (
            torch.nn.Linear(width, size) for size in (width, width // 2, width // 2, width)
        )
        self.gate, self.up = (torch.nn.Linear(width, 3 * width, bias=False) for _ in "ab")
        self.down = torch.nn.Linear(3 * width, width, bias=False)
        self.activation = torch.nn.SiLU()

    def flops(self, sequences: int, tokens: int) -> float:
        """Return the operations of a forward and a backward pass, as the planner counts them."""
        matrices = sum(each.numel() for each in self.parameters() if each.dim() > 1)
        return 3 * sequences * tokens * (2.0 * matrices + 2.0 * self.width * tokens)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for (sequences, tokens, width)."""
        normed = self.norms[0](hidden)
        query, key, value = (
            part(normed).unflatten(-1, (-1, self.width // self._heads)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        key, value = (x.repeat_interleave(2, dim=1) for x in (key, value))
        attended = torch.nn.functional.scaled_dot_product_attention(
            _rotated(query), _rotated(key), value, is_causal=True
        )
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(-2))
        normed = self.norms[1](hidden)
        return hidden + self.down(self.activation(self.gate(normed)) * self.up(normed))


def _rotated(heads: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * 0.5 + torch.cat((-second, first), dim=-1) * 0.5


class RankProbe:
    """One rank's side of the measurement.

    Args:
        device: ``cuda`` or ``cpu``.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        if device == "cpu":
            # As many threads as verl's workers have there.
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    def device_name(self) -> str:
        """Return what the rank runs on, e.g. ``NVIDIA H200``."""
        return torch.cuda.get_device_name() if self._device == "cuda" else "CPU"

    def join(self, *, rank: int, num_ranks: int, address: str) -> str:
        """Meet the other ranks; return the communication backend.

        Args:
            rank: This rank, from 0.
            num_ranks: How many there are.
            address: ``host:port`` of rank 0, where nobody listens yet.
        """
        backend = "nccl" if self._device == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            init_method=f"tcp://{address}",
            rank=rank,
            world_size=num_ranks,
            timeout=_TIMEOUT,
            device_id=torch.device("cuda", 0) if self._device == "cuda" else None,
        )
        return backend

    def collective(self, name: str, *, budget_s: float) -> list[tuple[int, float]]:
        """Time a collective from small messages to large ones.

        Args:
            name: ``all_gather``, ``reduce_scatter`` or ``all_reduce``.
            budget_s: No further size is begun that would probably end after this long.

        Returns:
            (bytes, seconds) of one call for each size that was reached; at least two sizes.
        """
        largest = self._largest_message()
        samples: list[tuple[int, float]] = []
        spent_s = 0.0
        for message_bytes in MESSAGE_BYTES:
            if len(samples) >= 2:
                # Four times the bytes take four times as long, in every one of the calls.
                next_s = 4 * samples[-1][1] * (_REPETITIONS + 2)
                if spent_s + next_s > budget_s or message_bytes > largest:
                    break
            seconds, cost_s = self._time(self._call(name, message_bytes))
            spent_s += cost_s
            samples.append((message_bytes, seconds))
        return samples

    def flops_per_s(self, dtype: str) -> float:
        """Return the FLOP/s of a large layer, forward and backward, while all ranks compute one.

        Less than its matrix products reach alone: the rest of a layer moves memory.
        """
        width, heads, sequences, tokens = _LARGE_LAYER[self._device]
        layer, hidden = self._layer(width, heads, (sequences, tokens), getattr(torch, dtype))
        seconds, _ = self._time(lambda: layer(hidden).backward(hidden.detach()))
        return layer.flops(sequences, tokens) / seconds

    def copy_bytes_per_s(self) -> float:
        """Return the bytes that a copy within the device moves a second."""
        source = torch.ones(_COPY_BYTES[self._device], dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return source.numel() / self._time(lambda: target.copy_(source))[0]

    def launch_overhead_s(self) -> float:
        """Return the host time of one kernel of a layer whose computation takes no time.

        Modules, autograd and views take the host longer than the launch itself, so that a whole
        little layer is timed, forward and backward. It counts as many kernels as the planner does.
        """
        layer, hidden = self._layer(*_SMALL_LAYER, (1, 1), torch.float32)
        times = [
            self._host_s(lambda: layer(hidden).backward(hidden.detach()))
            for _ in range(_REPETITIONS + 1)
        ]
        # A backward pass launches about two kernels for each of forward's.
        num_modules = sum(1 for module in layer.modules() if not any(module.children()))
        return self._slowest(median(times[1:])) / (3 * KERNELS_PER_MODULE * num_modules)

    def _layer(
        self, width: int, heads: int, shape: tuple[int, int], dtype: torch.dtype
    ) -> tuple[_Layer, torch.Tensor]:
        """Return a layer and an input of so many sequences and tokens."""
        layer = _Layer(width, heads).to(self._device, dtype)
        return layer, torch.randn(
            *shape, width, device=self._device, dtype=dtype, requires_grad=True
        )

    def leave(self) -> None:
        """End the process group."""
        dist.destroy_process_group()

    def _call(self, name: str, message_bytes: int) -> Callable[[], Any]:
        ranks = dist.get_world_size()
        # A multiple of the ranks, as FSDP pads its messages.
        shard = torch.zeros(-(-message_bytes // (4 * ranks)), device=self._device)
        whole = shard.repeat(ranks)
        calls: dict[str, Callable[[], Any]] = {
            "all_gather": lambda: dist.all_gather_into_tensor(whole, shard),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole),
            "all_reduce": lambda: dist.all_reduce(whole),
        }
        return calls[name]

    def _largest_message(self) -> float:
        if self._device == "cuda":
            free = float(torch.cuda.mem_get_info()[0])
        else:
            # Ranks of one node share its memory, and may all be on this one.
            free = psutil.virtual_memory().available / dist.get_world_size()
        return -self._slowest(-_MEMORY_SHARE * free)

    def _time(self, call: Callable[[], Any]) -> tuple[float, float]:
        """Return the seconds of one call, and what finding out has cost; equal on all ranks."""
        began_s = time.perf_counter()
        self._batch_s(call, 1)
        once_s = self._slowest(self._batch_s(call, 1))
        num_calls = int(min(_MAX_CALLS, max(1, _BATCH_S // max(once_s, 1e-9))))
        times = [self._slowest(self._batch_s(call, num_calls)) for _ in range(_REPETITIONS)]
        return median(times) / num_calls, self._slowest(time.perf_counter() - began_s)

    def _batch_s(self, call: Callable[[], Any], num_calls: int) -> float:
        dist.barrier()
        self._synchronize()
        began_s = time.perf_counter()
        for _ in range(num_calls):
            call()
        self._synchronize()
        return time.perf_counter() - began_s

    def _host_s(self, call: Callable[[], Any]) -> float:
        self._synchronize()
        began_s = time.perf_counter()
        for _ in range(_LAUNCHED):
            call()
        return (time.perf_counter() - began_s) / _LAUNCHED

    def _slowest(self, value: float) -> float:
        """Return the largest value over all ranks."""
        shared = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared)

    def _synchronize(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
