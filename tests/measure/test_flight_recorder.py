"""Entries of torch's flight recorder."""

import pytest

from autotune.measure.flight_recorder import Launch, read_launch
from autotune.measure.traces import Kind


@pytest.mark.parametrize(
    ("inputs", "outputs", "element_type", "num_bytes"),
    [
        ([[10]], [[2, 10]], "Float", 80),
        ([[20]], [[10]], "BFloat16", 40),
        ([[3], [4]], [[3], [4]], "Byte", 7),
        ([[]], [[]], "Long", 8),
        ([[10]], [[10]], "Float4", None),
    ],
)
def test_the_larger_side_of_a_collective_is_its_size(
    inputs: list[list[int]], outputs: list[list[int]], element_type: str, num_bytes: int | None
) -> None:
    entry = {
        "profiling_name": "nccl:_all_gather_base",
        "process_group": ("3", "fsdp"),
        "input_sizes": inputs,
        "input_dtypes": [element_type] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": [element_type] * len(outputs),
    }
    assert read_launch(entry, 2) == Launch(
        kind=Kind.ALL_GATHER, group="3", group_size=2, num_bytes=num_bytes
    )
