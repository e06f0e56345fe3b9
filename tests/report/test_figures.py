"""The charts of the answer and of the search, by what they hold."""

from dataclasses import replace

import pytest
from report_cases import THROUGHPUT, failed, measured, sweep_data, trial

from autotune.report.answer import answer
from autotune.report.drawing import wrap
from autotune.report.effect_figures import pair_figures
from autotune.report.effects import pair_of, slice_of
from autotune.report.figures import (
    convergence_figure,
    front_figure,
    lanes_of,
    limits_figure,
    phases_figure,
    steps_figure,
    timeline_figure,
)

RECORDS = [
    replace(trial(i, value), setting={"x": x, "y": y})
    for i, (value, x, y) in enumerate([(1.0, 1, 1), (3.0, 1, 2), (7.0, 2, 1)])
]
STARTS = ["2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", "2026-01-01T00:02:00+00:00"]
ENDS = ["2026-01-01T00:01:30+00:00", "2026-01-01T00:03:00+00:00", "2026-01-01T00:04:00+00:00"]


def test_exposed_communication_comes_first_among_the_limits() -> None:
    records = [
        replace(r, metrics={**r.metrics, "exposed_comm_ratio": 0.1}) for r in (trial(0), trial(1))
    ]
    data = sweep_data(records)
    figure = limits_figure(data, answer(data))
    assert figure is not None
    assert figure.layout.xaxis.title.text == "exposed_comm_ratio (%)"
    assert figure.layout.xaxis2.title.text == "peak_memory_ratio (%)"
    # The shade ends, and the line stands, at the limit: 20 % and 90 %.
    assert {shape.x1 for shape in figure.layout.shapes} == {20.0, 90.0}


def test_a_constraint_that_nobody_measured_has_no_panel() -> None:
    data = sweep_data([trial(0), trial(1)])
    figure = limits_figure(data, answer(data))
    assert figure is not None and figure.layout.xaxis.title.text == "peak_memory_ratio (%)"


def test_a_value_far_beyond_its_limit_is_drawn_at_the_edge() -> None:
    data = sweep_data([trial(0), trial(1, 200.0, memory=90.0)])
    figure = limits_figure(data, answer(data))
    assert figure is not None
    [infeasible] = [trace for trace in figure.data if trace.name == "infeasible"]
    assert infeasible.x == (180.0,)
    assert "peak_memory_ratio: 9e+03 %" in infeasible.hovertext[0]


def test_the_best_so_far_rises_with_feasible_trials_only() -> None:
    data = sweep_data([trial(0), trial(1, 900.0, memory=0.99), trial(2, 150.0), failed(3)])
    figure = convergence_figure(data, answer(data))
    assert figure is not None
    [best] = [trace for trace in figure.data if trace.name == "best feasible so far"]
    assert best.y == (100.0, 100.0, 150.0, 150.0)


def test_every_step_is_drawn_and_measured_ones_are_filled() -> None:
    data = sweep_data([trial(0), trial(1, 150.0)], {0: measured(0, [99.0, 101.0])})
    figure = steps_figure(data, answer(data))
    assert figure is not None
    [baseline] = figure.data
    assert baseline.y == (1.0, 99.0, 101.0)
    assert baseline.marker.symbol == ("circle-open", "circle", "circle")


def test_phases_and_the_rest_add_up_to_the_step() -> None:
    metrics = {THROUGHPUT: 100.0, "step_s": 10.0, "phase_gen_s": 4.0, "phase_update_actor_s": 5.0}
    found = answer(sweep_data([trial(0, metrics=metrics)]))
    figure = phases_figure(found)
    assert figure is not None
    assert {trace.name: trace.x for trace in figure.data} == {
        "gen": (4.0,),
        "update_actor": (5.0,),
        "other": (1.0,),
    }


def test_trials_at_the_same_time_get_lanes_of_their_own() -> None:
    records = [
        replace(trial(i), started_at=STARTS[i], ended_at=ENDS[i]) for i in range(len(STARTS))
    ]
    assert lanes_of(records) == {0: 0, 1: 1, 2: 0}


def test_the_time_line_holds_failures_too() -> None:
    figure = timeline_figure(sweep_data([trial(0), failed(1)]))
    assert figure is not None
    # Feasible trials are drawn last, above the others, and named first.
    assert [trace.name for trace in figure.data] == ["failed", "feasible"]
    assert [trace.legendrank for trace in figure.data] == [3, 0]
    assert "rank 1 ran out of memory" in figure.data[0].hovertext[0]


@pytest.mark.parametrize("draw", [limits_figure, convergence_figure, steps_figure, front_figure])
def test_without_a_measured_trial_there_is_nothing_to_draw(draw: object) -> None:
    data = sweep_data([failed(0)])
    assert callable(draw) and draw(data, answer(data)) is None
    assert phases_figure(answer(data)) is None


def test_long_names_are_broken_for_an_axis() -> None:
    assert wrap("log_prob_micro_batch_size_per_gpu") == "log_prob_micro_batch_<br>size_per_gpu"
    assert wrap("short name") == "short name"


def test_the_limit_has_a_tick_and_landmarks_are_named_in_the_legend_once() -> None:
    records = [
        replace(r, metrics={**r.metrics, "exposed_comm_ratio": 0.1})
        for r in (trial(0), trial(1, 150.0))
    ]
    data = sweep_data(records)
    figure = limits_figure(data, answer(data))
    assert figure is not None
    assert figure.layout.xaxis.tickvals == (0.0, 10.0, 20.0)
    assert figure.layout.xaxis2.ticktext == ("0", "45", "90")
    names = [trace.name for trace in figure.data if trace.showlegend]
    assert names == ["feasible", "baseline", "winner"]
    assert all("text" not in trace.mode for trace in figure.data)


def test_ticks_go_on_beyond_the_limit_where_trials_do() -> None:
    data = sweep_data([trial(0), trial(1, 200.0, memory=90.0)])
    figure = limits_figure(data, answer(data))
    assert figure is not None
    assert figure.layout.xaxis.ticktext == ("0", "45", "90", "135", "180")


def test_maps_of_pairs_share_a_colour_scale_with_one_bar() -> None:
    x, y = (slice_of(RECORDS, knob, THROUGHPUT) for knob in "xy")
    pairs = [pair_of(RECORDS, a, b, THROUGHPUT) for a, b in ((x, y), (x, x))]
    assert pairs[1].medians == ((2.0, None), (None, 7.0))
    maps = [figure.data[0] for figure in pair_figures(pairs, "s")]
    assert [(found.zmin, found.zmax) for found in maps] == [(1.0, 7.0)] * 2
    assert [found.showscale for found in maps] == [False, True]
    assert pair_figures([], "s") == []


def test_texts_of_records_are_shown_word_by_word() -> None:
    odd = failed(1, cause="KeyError: <class 'x'> & more", setting={"x": "<b>"})
    figure = timeline_figure(sweep_data([odd]))
    assert figure is not None
    assert "&lt;class 'x'&gt; &amp; more" in figure.data[0].hovertext[0].replace("<br>", " ")
    measured_one = trial(2, setting={"x": "<b>"})
    data = sweep_data([trial(0), measured_one])
    shown = convergence_figure(data, answer(data))
    assert shown is not None and shown.data[0].hovertext[1].endswith("<br>x=&lt;b&gt;")
