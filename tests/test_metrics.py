"""The catalogue: every metric is defined once, under one name."""

import pytest

from autotune.measure.traces import Kind
from autotune.metrics import DETAILS, KINDS, METRICS, Direction, describe, phase_metric


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
