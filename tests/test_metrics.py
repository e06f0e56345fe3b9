"""The catalogue: every metric is defined once, under one name."""

import pytest

from autotune.measure.traces import Kind
from autotune.metrics import (
    DETAILS,
    KINDS,
    METRICS,
    PHASES,
    UPDATE_ONLY_PHASES,
    WHOLE_STEP,
    Direction,
    describe,
    phase_metric,
)


def test_every_name_is_that_of_its_metric_and_occurs_once() -> None:
    assert METRICS.keys().isdisjoint(DETAILS)
    assert all(describe(name).name == name for name in (*METRICS, *DETAILS))


def test_the_kinds_are_those_that_are_measured() -> None:
    assert KINDS == tuple(kind.value for kind in Kind)


def test_a_metric_of_a_phase_keeps_unit_and_direction() -> None:
    metric = describe(phase_metric("update_actor", "comm_overlap_ratio"))
    assert (metric.unit, metric.better) == ("ratio", Direction.HIGHER)


def test_another_name_has_no_definition() -> None:
    with pytest.raises(KeyError):
        describe("phase_lunch_s")


def test_what_is_measured_of_training_alone_says_so_where_a_step_has_the_same_unit() -> None:
    for name, whole in WHOLE_STEP.items():
        assert METRICS[name].better is METRICS[whole].better
        assert name.startswith("update_only_")
    speeds = ("update_only_tokens_per_s_per_gpu", "throughput_tokens_per_s_per_gpu")
    assert [METRICS[name].unit for name in speeds] == ["update-only tokens/s/GPU", "tokens/s/GPU"]


def test_the_phases_that_train_are_all_but_rollout_reward_and_weight_sync() -> None:
    assert set(PHASES) - set(UPDATE_ONLY_PHASES) == {"gen", "reward", "update_weights"}
