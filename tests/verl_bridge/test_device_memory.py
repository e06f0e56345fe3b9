"""When a device counts as empty again."""

from types import SimpleNamespace

from autotune.verl_bridge.device_memory import SLACK_BYTES, DeviceMemory, DeviceUse, too_full

GIB = 1 << 30


def test_a_device_above_its_baseline_is_named_with_both_amounts() -> None:
    before = [DeviceUse("device 0 of a", GIB), DeviceUse("device 1 of a", GIB)]
    after = [DeviceUse("device 0 of a", GIB), DeviceUse("device 1 of a", 12 * GIB)]
    assert too_full(before, after) == ["device 1 of a holds 12.00 GiB, before it held 1.00 GiB"]


def test_a_little_more_than_before_counts_as_empty() -> None:
    before = [DeviceUse("device 0 of a", GIB)]
    assert too_full(before, [DeviceUse("device 0 of a", GIB + SLACK_BYTES)]) == []


def test_without_devices_there_is_nothing_to_wait_for() -> None:
    DeviceMemory(SimpleNamespace(bundle_specs=[{"CPU": 1.0}])).wait_until_empty(timeout_s=0)
