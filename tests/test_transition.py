"""How a live job comes from one setting to another."""

import pytest

from autotune.knobs import KnobValue
from autotune.objective import Start
from autotune.transition import cheapest_start, keeps_engines, keeps_first

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
        ({ROLLOUT: 16}, Start.ROLLOUT),
        ({HOT: 4, ROLLOUT: 16}, Start.ROLLOUT),
        ({ENGINE: False, ROLLOUT: 16}, Start.ROLLOUT),
        ({COLD: 1}, Start.COLD),
        ({HOT: 4, COLD: 1}, Start.COLD),
        ({ROLLOUT: 16, COLD: 1}, Start.COLD),
    ],
)
def test_the_dearest_changed_knob_decides(change: dict[str, KnobValue], start: Start) -> None:
    assert cheapest_start(BEFORE, {**BEFORE, **change}) is start


@pytest.mark.parametrize(
    ("change", "are_kept"),
    [
        ({}, True),
        ({HOT: 4, ROLLOUT: 16}, True),
        ({ENGINE: False}, False),
        ({ENGINE: False, ROLLOUT: 16}, False),
    ],
)
def test_only_a_change_of_the_engines_builds_them_again(
    change: dict[str, KnobValue], are_kept: bool
) -> None:
    assert keeps_engines(BEFORE, {**BEFORE, **change}) is are_kept


@pytest.mark.parametrize(("knob", "is_kept"), [(HOT, True), (ROLLOUT, True), (ENGINE, False)])
def test_first_weights_are_kept_where_a_change_keeps_the_engines(knob: str, is_kept: bool) -> None:
    setting = {knob: BEFORE[knob]}
    assert keeps_first(setting) is is_kept
    assert keeps_engines(setting, setting) is is_kept
    assert cheapest_start(setting, setting) is (Start.HOT if is_kept else Start.ENGINE)
