"""Do two settings compute the same gradient, however their ranks share it out?

:func:`sketch_gradients` runs in verl's workers and needs torch; :func:`cosine_deviation` runs where
records are made. A sketch is a seeded linear map of the whole gradient to SKETCH_SIZE numbers:
element i of a parameter goes to bucket i mod SKETCH_SIZE with a random sign that depends on the
parameter's name and on i alone. Each rank maps the elements that it holds, and the ranks' sketches
add up, so a sketch does not depend on the sharding (Charikar, Chen and Farach-Colton, 2002; the
buckets here are cyclic).

A linear map keeps differences: the deviation of two sketches is that of the gradients up to a
relative error of about sqrt(2 / SKETCH_SIZE), 6 %, at any size of the deviation.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

SKETCH_SIZE = 509
"""A prime: the columns of a matrix, whose sizes differ, must not fall into one bucket each."""

_CHUNK = SKETCH_SIZE << 12
"""Elements mapped at a time: 2 million, whose index and signs take some tens of MB."""
_MASK_32 = 0xFFFFFFFF
_MIX = 0x045D9F3B


class UnknownSharding(ValueError):
    """A gradient is shared out in a way for which elements have no known place."""


def cosine_deviation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return 1 - cosine of two vectors, exact near 0; None where one of them is 0."""
    a, b = (np.asarray(values, dtype=np.float64) for values in (first, second))
    norms = np.linalg.norm(a), np.linalg.norm(b)
    if not all(norms):
        return None
    difference = a / norms[0] - b / norms[1]
    return float(difference @ difference / 2)


def sketch_gradients(
    parameters: Iterable[tuple[str, "torch.Tensor"]], *, device: "torch.device | str | int" = "cpu"
) -> list[float]:
    """Return the sketch of all gradients; every rank of the default group calls it.

    Args:
        parameters: Names and parameters, with FSDP2's gradients or plain ones; plain ones are taken
            for copies on all ranks. A parameter without a gradient counts as 0.
        device: Where to compute; offloaded gradients are moved there piece by piece.

    Raises:
        UnknownSharding: A gradient is neither replicated nor in contiguous rows; on all ranks.
    """
    import torch
    import torch.distributed as dist

    total = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=device)
    for name, parameter in parameters:
        if parameter.grad is None:
            continue
        local, first, num_copies = _own_elements(parameter.grad)
        _add_sketch(total, local, zlib.crc32(name.encode()), first=first, num_copies=num_copies)
    dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def _own_elements(gradient: "torch.Tensor") -> tuple["torch.Tensor", int, int]:
    """Return this rank's elements in a row, the flat index of the first one, and how many ranks
    hold the same ones."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(gradient, DTensor):
        return gradient.flatten(), 0, dist.get_world_size()
    mesh, rows, num_copies = gradient.device_mesh, gradient.shape[0] if gradient.dim() else 1, 1
    sharded = [p for p in gradient.placements if not p.is_replicate()]
    if len(sharded) > 1 or any(type(p) is not Shard or p.dim != 0 for p in sharded):
        raise UnknownSharding(f"a gradient is placed as {gradient.placements}")
    first_row = 0
    for dim, placement in enumerate(gradient.placements):
        if placement.is_replicate():
            num_copies *= mesh.size(dim)
        else:
            # As torch.chunk shares out rows: all parts are equal but the last ones.
            first_row = min(rows, -(-rows // mesh.size(dim)) * mesh.get_local_rank(dim))
    return gradient.to_local().flatten(), first_row * (gradient.numel() // max(rows, 1)), num_copies


def _add_sketch(
    total: "torch.Tensor", values: "torch.Tensor", seed: int, *, first: int, num_copies: int
) -> None:
    """Add elements `first`, `first` + 1, ... of one parameter."""
    import torch

    for start in range(0, values.numel(), _CHUNK):
        part = values[start : start + _CHUNK].to(total.device).double() / num_copies
        index = torch.arange(first + start, first + start + len(part), device=total.device)
        before = (first + start) % SKETCH_SIZE
        after = -(before + len(part)) % SKETCH_SIZE
        rows = torch.nn.functional.pad(part * _signs(index, seed), (before, after))
        total += rows.view(-1, SKETCH_SIZE).sum(0)


def _signs(index: "torch.Tensor", seed: int) -> "torch.Tensor":
    """Return 1 or -1 for each index: one bit of a 32-bit mixing function, as int64 holds it."""
    mixed = (index & _MASK_32) ^ (index >> 32) ^ seed
    for _ in range(2):
        mixed = ((mixed ^ (mixed >> 16)) * _MIX) & _MASK_32
    return 1 - 2 * ((mixed >> 16) & 1)
