"""The constants survive a file unchanged, and a broken file is refused with the key at fault."""

import json

import pytest

from autotune.errors import BadInputError
from autotune.models.calibration import Calibration, CollectiveCost

NVLINK = Calibration(
    world_size=8,
    all_gather=CollectiveCost(latency_s=20e-6, bandwidth_bytes_per_s=200e9),
    reduce_scatter=CollectiveCost(latency_s=25e-6, bandwidth_bytes_per_s=180e9),
    all_reduce=CollectiveCost(latency_s=30e-6, bandwidth_bytes_per_s=100e9),
    flops_per_s={"bfloat16": 600e12, "float32": 50e12},
    launch_overhead_s=5e-6,
    copy_bytes_per_s=1.5e12,
)


def test_a_collectives_time_is_its_latency_and_its_bytes_at_the_bandwidth() -> None:
    # 20 us + 2e9 / 200e9 s
    assert NVLINK.all_gather.time_s(2e9) == pytest.approx(0.01002)


def test_constants_survive_json() -> None:
    assert Calibration.from_dict(json.loads(json.dumps(NVLINK.to_dict())), "key") == NVLINK


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 2.5}, "key.world_size is 2.5"),
        ({"launch_overhead_s": -1.0}, "key.launch_overhead_s is -1.0"),
        ({"copy_bytes_per_s": True}, "key.copy_bytes_per_s is True"),
        ({"copy_bytes_per_s": float("nan")}, "key.copy_bytes_per_s is nan"),
        ({"flops_per_s": {}}, r"key.flops_per_s is \{\}"),
        ({"flops_per_s": {"bfloat16": 0}}, "key.flops_per_s.bfloat16 is 0"),
        ({"all_gather": {"latency_s": 0}}, "key.all_gather has the fields latency_s.*exactly band"),
        ({"all_gather": 3}, "key.all_gather has the fields of no mapping"),
        ({"speed": 1}, "key has the fields .*speed"),
    ],
)
def test_a_broken_record_is_refused_with_its_key(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        Calibration.from_dict(NVLINK.to_dict() | changes, "key")
