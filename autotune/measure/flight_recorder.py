"""Which collectives did torch's flight recorder see enqueued, in which groups and of which sizes?

Runs in verl's workers. The recorder keeps the last `TORCH_FR_BUFFER_SIZE` collectives (torch's
default is 2000; read when the process makes its first group); a step with
more has no sizes.
"""

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autotune.measure.traces import Kind

_KINDS = {
    "allgather": Kind.ALL_GATHER,
    "reducescatter": Kind.REDUCE_SCATTER,
    "allreduce": Kind.ALL_REDUCE,
    "broadcast": Kind.BROADCAST,
}
# The flight recorder's names of element types.
_ELEMENT_TYPES = {
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One collective as torch's flight recorder saw it enqueued."""

    # As its backend names it: Gloo calls a reduce-scatter an all-reduce.
    kind: Kind
    group: str
    group_size: int
    # As in `Collective`.
    num_bytes: int | None


def read_launch(entry: Mapping[str, Any], group_size: int) -> Launch:
    """Read one entry of the flight recorder (format 2.10), of a group with that many ranks."""
    sides = (
        _num_bytes(entry["input_sizes"], entry["input_dtypes"]),
        _num_bytes(entry["output_sizes"], entry["output_dtypes"]),
    )
    known = [num_bytes for num_bytes in sides if num_bytes is not None]
    return Launch(
        kind=kind_of(entry["profiling_name"].partition(":")[2]),
        group=entry["process_group"][0],
        group_size=group_size,
        num_bytes=max(known) if len(known) == len(sides) else None,
    )


def recorded_launches(start_ns: int, end_ns: int, *, on_gpu: bool) -> list[Launch]:
    """Return what the flight recorder of this process saw enqueued in a window, in order."""
    distributed: Any = torch._C._distributed_c10d
    dump = distributed._dump_nccl_trace if on_gpu else distributed._dump_fr_trace
    dumped = dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
    # A recorder that is switched off has no entries.
    entries = [
        entry
        for entry in pickle.loads(dumped).get("entries", [])
        if start_ns <= entry["time_created_ns"] <= end_ns
    ]
    group_sizes = {
        group: distributed._resolve_process_group(group).size()
        for group in {entry["process_group"][0] for entry in entries}
    }
    return [
        read_launch(entry, group_sizes[entry["process_group"][0]])
        for entry in sorted(entries, key=lambda entry: entry["record_id"])
    ]


def size_of_only_group() -> int | None:
    """Return the number of ranks if each process group here has all of them, or only one."""
    size = dist.get_world_size()
    groups = dist.distributed_c10d._world.pg_config_info
    return size if all(group["group_size"] in (1, size) for group in groups) else None


def kind_of(name: str) -> Kind:
    """Return the kind for a spelling such as AllGather, all_gather or _allgather_base_."""
    plain = name.replace("_", "").lower()
    return next((kind for word, kind in _KINDS.items() if plain.startswith(word)), Kind.OTHER)


def _num_bytes(sizes: Sequence[Sequence[int]], element_types: Sequence[str]) -> int | None:
    """Return the bytes of several tensors, or None where an element type is not known."""
    if any(name not in _ELEMENT_TYPES for name in element_types):
        return None
    return sum(
        math.prod(size) * _ELEMENT_TYPES[name].itemsize
        for size, name in zip(sizes, element_types, strict=True)
    )
