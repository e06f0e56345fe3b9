"""Seconds by phase, known by hand."""

from typing import Any

from report_cases import THROUGHPUT, failed, sweep_data, trial

from autotune.report.answer import answer
from autotune.report.page import report_page
from autotune.report.phases import phase_seconds, saved_line


def metrics(throughput: float, step: float, gen: float, update: float) -> dict[str, Any]:
    return {
        THROUGHPUT: throughput,
        "step_s": step,
        "phase_gen_s": gen,
        "phase_update_actor_s": update,
        "peak_memory_ratio": 0.5,
    }


BASE = trial(0, metrics=metrics(100.0, 10.0, 4.0, 5.0))


def test_what_no_phase_times_is_other() -> None:
    found = phase_seconds(BASE, "step_s")
    assert {name: value for name, value in found.items() if value} == {
        "gen": 4.0,
        "update_actor": 5.0,
        "other": 1.0,
    }


def test_saved_seconds_are_named_by_phase_the_largest_first() -> None:
    won = trial(1, metrics=metrics(200.0, 5.0, 2.5, 1.5))
    data = sweep_data([BASE, won])
    said = "A step takes 5 s instead of 10 s: 5 s less. Saved: update_actor 3.5 s and gen 1.5 s."
    assert saved_line(answer(data)) == said
    assert said in report_page(data, answer(data))


def test_a_phase_that_became_slower_is_not_hidden() -> None:
    won = trial(1, metrics=metrics(200.0, 6.0, 4.5, 1.0))
    assert saved_line(answer(sweep_data([BASE, won]))) == (
        "A step takes 6 s instead of 10 s: 4 s less. "
        "Saved: update_actor 4 s and other 0.5 s. Slower: gen 0.5 s."
    )


def test_without_two_trials_there_is_nothing_to_compare() -> None:
    assert saved_line(answer(sweep_data([BASE]))) == ""
    assert saved_line(answer(sweep_data([failed(0), trial(1)]))) == ""
    assert saved_line(answer(sweep_data([]))) == ""
