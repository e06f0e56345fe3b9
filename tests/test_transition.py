"""How a live job comes from one setting to another."""

import pytest

from autotune.knobs import KnobValue
from autotune.objective import Start
from autotune.transition import can_be_hot, cheapest_start

HOT, ENGINE, ROLLOUT, COLD = (
    "ppo_micro_batch_size_per_gpu",
    "reshard_after_forward",
    "rollout_max_num_seqs",
    "fsdp_size",
)
BEFORE: dict[str, KnobValue] = {HOT: 2, ENGINE: True, ROLLOUT: 8, COLD: 2}


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({}, Start.HOT),
        ({HOT: 4}, Start.HOT),
        ({ENGINE: False}, Start.ENGINE),
        ({HOT: 4, ENGINE: False}, Start.ENGINE),
        ({ROLLOUT: 16}, Start.COLD),
        ({COLD: 1}, Start.COLD),
        ({HOT: 4, COLD: 1}, Start.COLD),
    ],
)
def test_the_dearest_changed_knob_decides(change: dict[str, KnobValue], start: Start) -> None:
    assert cheapest_start(BEFORE, {**BEFORE, **change}) is start


def test_without_hot_knobs_no_first_weights_are_kept_and_engines_are_rebuilt() -> None:
    setting: dict[str, KnobValue] = {ENGINE: True}
    assert not can_be_hot(setting)
    assert cheapest_start(setting, setting) is Start.ENGINE
