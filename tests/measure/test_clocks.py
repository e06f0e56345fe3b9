"""Offsets between clocks, worked out by hand."""

from autotune.measure.clocks import ClockReadings, clock_offset_us


def test_a_clock_that_is_behind_gets_the_median_distance_added() -> None:
    first = ClockReadings(clock="a", readings_ns=(10_000, 20_000, 30_000))
    own = ClockReadings(clock="b", readings_ns=(5_000, 14_000, 29_000))
    assert clock_offset_us(own, first) == 5.0


def test_ranks_that_read_one_clock_have_no_offset() -> None:
    first = ClockReadings(clock="a", readings_ns=(10_000,))
    assert clock_offset_us(ClockReadings(clock="a", readings_ns=(10_700,)), first) == 0.0
