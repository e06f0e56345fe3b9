"""Parts of a start add up, and none is counted twice."""

import time

import pytest

from autotune.verl_bridge.startup_times import StartupTimes, as_metrics, slowest


def test_a_part_lasts_until_the_next_begins() -> None:
    times = StartupTimes()
    began_s = time.monotonic()
    times.begin("imports")
    times.begin("workers")
    times.begin("imports")
    seconds = times.take()
    assert list(seconds) == ["imports", "workers"]
    assert 0 < sum(seconds.values()) <= time.monotonic() - began_s


def test_a_timed_function_returns_what_it_did_and_is_summed_up() -> None:
    times = StartupTimes()

    def load(value: int) -> int:
        time.sleep(0.01)
        return value

    timed_load = times.timed("model_load", load)
    assert [timed_load(1), timed_load(2)] == [1, 2]
    assert times.take()["model_load"] >= 0.02


def test_a_timed_function_that_raises_is_timed_too() -> None:
    times = StartupTimes()

    def fail() -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        times.timed("model_load", fail)()
    assert list(times.take()) == ["model_load"]


def test_what_was_taken_is_forgotten() -> None:
    times = StartupTimes()
    times.begin("imports")
    times.take()
    assert times.take() == {}


def test_the_slowest_rank_counts_for_each_part() -> None:
    ranks = [{"model_load": 2.0, "fsdp": 1.0}, {"model_load": 1.0, "rollout": 3.0}]
    assert slowest(ranks) == {"model_load": 2.0, "fsdp": 1.0, "rollout": 3.0}


def test_times_are_named_as_step_metrics() -> None:
    assert as_metrics({"fsdp": 1.5}) == {"autotune/startup_fsdp_s": 1.5}
