"""When memory that ended processes held has come back."""

from autotune.verl_bridge.peak_memory import settled

GIB = 1 << 30


def test_memory_that_still_comes_back_is_waited_for() -> None:
    readings = iter([1 * GIB, 40 * GIB, 90 * GIB, 90 * GIB, 7 * GIB])
    assert settled(lambda: next(readings), pause_s=0) == 90 * GIB


def test_a_little_coming_and_going_is_no_growth() -> None:
    readings = iter([90 * GIB, 90 * GIB + (1 << 20), 7 * GIB])
    assert settled(lambda: next(readings), pause_s=0) == 90 * GIB + (1 << 20)
