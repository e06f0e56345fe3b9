"""The charts of the answer and of the search: limits, phases, steps, convergence, time line.

Runs in whatever process reports. Each function draws what others computed and returns None where
there is nothing to draw.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import plotly.graph_objects as go

from autotune.metrics import METRICS, STEP_KEYS
from autotune.objective import StepKind, StepRecord, TrialRecord, is_better
from autotune.report.answer import Answer
from autotune.report.drawing import (
    BASELINE_COLOR,
    MARKS,
    WINNER_COLOR,
    by_mark,
    finish,
    grid,
    hover,
    literal,
    points,
    wrap,
)
from autotune.report.phases import phase_seconds, whole_metric
from autotune.report.reading import SweepData
from autotune.report.text import duration_s, outcome, unit_text

PHASE_COLORS = {
    "gen": "#4477aa",
    "reward": "#66ccee",
    "old_log_prob": "#228833",
    "ref": "#7fb069",
    "values": "#ccbb44",
    "adv": "#b8b8a0",
    "update_critic": "#ee8866",
    "update_actor": "#ee6677",
    "update_weights": "#aa3377",
}
OTHER_COLOR = "#9aa3ad"
CLIP = 2.0
"""Values beyond this multiple of their limit are drawn at it."""


def limits_figure(data: SweepData, answer: Answer) -> go.Figure | None:
    """Draw the objective against every constraint that was measured, feasible region shaded."""
    records = [record for record in data.trials if record.value(answer.objective) is not None]
    constraints = [
        constraint
        for constraint in _exposed_first(data.config.constraints)
        if any(record.value(constraint.metric) is not None for record in records)
    ]
    if not constraints:
        return None
    panels = grid(len(constraints), 300)
    named: set[str] = set()
    for index, constraint in enumerate(constraints):
        place = panels.place(index)
        for trace in _limit_traces(data, answer, records, constraint):
            # A panel may lack what another one shows: the legend names each once.
            trace.showlegend = trace.name not in named
            named.add(trace.name)
            panels.figure.add_trace(trace, **place)
        _add_limit(panels.figure, records, constraint, place)
    panels.figure.update_yaxes(title=answer.unit, col=1)
    return finish(panels.figure, height=panels.height)


def front_figure(data: SweepData, answer: Answer) -> go.Figure | None:
    """Draw two objectives against each other, with the Pareto front."""
    other = answer.trade_off
    if other is None:
        return None
    records = [
        record
        for record in data.trials
        if record.value(answer.objective) is not None and record.value(other) is not None
    ]
    if not records:
        return None

    def place(record: TrialRecord) -> float:
        return _scale(other) * (record.value(other) or 0.0)

    figure = go.Figure(_trial_points(data, answer, records, place, metric=other))
    figure.add_trace(
        go.Scatter(
            x=[place(record) for record in answer.front],
            y=[record.value(answer.objective) for record in answer.front],
            name="Pareto front",
            mode="lines",
            line={"color": WINNER_COLOR, "width": 2},
            hoverinfo="skip",
        )
    )
    figure.update_xaxes(title=f"{other} ({unit_text(other)})")
    figure.update_yaxes(title=answer.unit)
    return finish(figure, height=330)


def convergence_figure(data: SweepData, answer: Answer) -> go.Figure | None:
    """Draw every trial's objective in the order of the trials, and the best feasible so far."""
    records = [record for record in data.trials if record.value(answer.objective) is not None]
    if not records:
        return None
    figure = go.Figure(_trial_points(data, answer, records, lambda record: record.number))
    best = best_so_far(data.trials, answer.objective)
    if best:
        figure.add_trace(
            go.Scatter(
                x=list(best),
                y=list(best.values()),
                name="best feasible so far",
                mode="lines",
                line={"shape": "hv", "color": WINNER_COLOR, "width": 2},
                hoverinfo="skip",
            )
        )
    _add_baseline(figure, answer)
    last = data.trials[-1].number
    figure.update_xaxes(title="trial", range=[-0.5, last + 0.5], dtick=1 if last < 20 else None)
    figure.update_yaxes(title=answer.unit)
    return finish(figure, height=330)


def best_so_far(trials: Sequence[TrialRecord], objective: str) -> dict[int, float]:
    """Return trial -> best value of a feasible trial up to it, each measured as it was."""
    best: dict[int, float] = {}
    incumbent: float | None = None
    for record in trials:
        value = record.value(objective) if record.feasible else None
        if value is not None and (incumbent is None or is_better(value, incumbent, objective)):
            incumbent = value
        if incumbent is not None:
            best[record.number] = incumbent
    return best


def steps_figure(data: SweepData, answer: Answer) -> go.Figure | None:
    """Draw every step of the baseline and of the shown trial: the scatter behind the interval."""
    key = STEP_KEYS.get(answer.objective)
    shown = answer.shown
    if key is None or shown is None:
        return None
    figure = go.Figure()
    sides = [(0, "baseline", BASELINE_COLOR)]
    if shown.number != 0:
        sides.append((shown.number, f"trial {shown.number}", WINNER_COLOR))
    for number, name, color in sides:
        steps = [step for step in data.last_attempt(number) if step.metrics.get(key) is not None]
        if steps:
            figure.add_trace(_step_trace(steps, key, name, color))
    if not figure.data:
        return None
    figure.update_xaxes(title="step of the job", dtick=1)
    figure.update_yaxes(title=answer.unit, rangemode="tozero")
    return finish(figure, height=300)


def phases_figure(answer: Answer) -> go.Figure | None:
    """Draw the step's phases of the baseline and of the shown trial as two bars."""
    records = [record for record in (answer.shown, answer.baseline) if record is not None]
    total_s = whole_metric(answer)
    records = [record for record in records if record.value(total_s) is not None]
    if not records:
        return None
    unique = list({record.number: record for record in records}.values())
    labels = ["baseline" if record.number == 0 else f"trial {record.number}" for record in unique]
    columns = [phase_seconds(record, total_s) for record in unique]
    parts = {name: [column[name] for column in columns] for name in columns[0]}
    figure = go.Figure()
    for name, seconds in parts.items():
        if any(seconds):
            figure.add_trace(
                go.Bar(
                    y=labels,
                    x=seconds,
                    name=name,
                    orientation="h",
                    marker={"color": PHASE_COLORS.get(name, OTHER_COLOR)},
                    hovertemplate=f"{name}: %{{x:.3g}} s<extra>%{{y}}</extra>",
                )
            )
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    figure.update_xaxes(title="seconds a step (medians)")
    return finish(figure, height=190 + 55 * len(unique), top_px=96)


def timeline_figure(data: SweepData) -> go.Figure | None:
    """Draw when each trial ran, trials at the same time below one another."""
    if not data.trials:
        return None
    lanes = lanes_of(data.trials)
    figure = go.Figure()
    for name, shown in by_mark(data.trials):
        figure.add_trace(
            go.Bar(
                y=[lanes[record.number] for record in shown],
                base=[record.started_at for record in shown],
                x=[1000 * duration_s(record) for record in shown],
                orientation="h",
                name=name,
                legendrank=list(MARKS).index(name),
                marker={"color": MARKS[name].color, "line": {"width": 0.5, "color": "#ffffff"}},
                hovertext=[_timeline_hover(data, record) for record in shown],
                hoverinfo="text",
            )
        )
    figure.update_layout(barmode="overlay", bargap=0.2)
    figure.update_xaxes(type="date", title="UTC")
    figure.update_yaxes(showticklabels=False, autorange="reversed", showgrid=False)
    return finish(figure, height=120 + 34 * (max(lanes.values()) + 1))


def lanes_of(records: Sequence[TrialRecord]) -> dict[int, int]:
    """Return trial -> lane, so that trials in one lane do not overlap in time."""
    free_at: list[datetime] = []
    lanes: dict[int, int] = {}
    for record in sorted(records, key=lambda record: record.started_at):
        start, end = (datetime.fromisoformat(t) for t in (record.started_at, record.ended_at))
        lane = next((i for i, free in enumerate(free_at) if free <= start), len(free_at))
        free_at[lane : lane + 1] = [end]
        lanes[record.number] = lane
    return lanes


def _add_limit(
    figure: go.Figure, records: Sequence[TrialRecord], constraint: Any, place: dict[str, int]
) -> None:
    """Shade what a constraint allows, and set the axis; the panel has its points already."""
    scale = _scale(constraint.metric)
    values = [v for record in records if (v := record.value(constraint.metric)) is not None]
    right = min(max([*values, constraint.max]) * 1.08, constraint.max * CLIP * 1.04)
    green, red = MARKS["feasible"].color, MARKS["failed"].color
    figure.add_vrect(
        x0=-0.04 * right * scale,
        x1=constraint.max * scale,
        fillcolor=green,
        opacity=0.11,
        line_width=0,
        layer="below",
        **place,
    )
    line = {"color": red, "width": 1.5, "dash": "dot"}
    figure.add_vline(x=constraint.max * scale, line=line, **place)
    figure.update_xaxes(
        title=f"{constraint.metric} ({unit_text(constraint.metric)})",
        **_limit_ticks(constraint.max * scale, right * scale),
        range=[-0.04 * right * scale, right * scale],
        **place,
    )


def _limit_ticks(limit: float, right: float) -> dict[str, list[Any]]:
    """Return ticks at the limit and at halves of it, as far as the axis goes."""
    values = [half * limit / 2 for half in range(int(2 * CLIP) + 1) if half * limit / 2 <= right]
    return {"tickvals": values, "ticktext": [f"{value:.3g}" for value in values]}


def _limit_traces(
    data: SweepData,
    answer: Answer,
    records: Sequence[TrialRecord],
    constraint: Any,
) -> list[go.Scatter]:
    scale = _scale(constraint.metric)
    cap = constraint.max * CLIP
    metric = constraint.metric

    def place(record: TrialRecord) -> float:
        return min(record.value(metric) or 0.0, cap) * scale

    placed = [record for record in records if record.value(metric) is not None]
    traces = _trial_points(data, answer, placed, place, metric=metric)
    for name, record, color, symbol in _landmarks(answer):
        if record.value(metric) is not None:
            traces.append(
                go.Scatter(
                    x=[place(record)],
                    y=[record.value(answer.objective)],
                    name=name,
                    mode="markers",
                    marker={"color": color, "symbol": symbol, "size": 15},
                    hoverinfo="skip",
                    # A name at the point would stand on its neighbours.
                    legendgroup=name,
                    cliponaxis=False,
                )
            )
    return traces


def _trial_points(
    data: SweepData,
    answer: Answer,
    records: Sequence[TrialRecord],
    place: Callable[[TrialRecord], float],
    *,
    metric: str | None = None,
) -> list[go.Scatter]:
    """Return trials by outcome, their objective over where they are placed.

    Args:
        data: The sweep.
        answer: Of ``data``.
        records: Trials with a value of the objective.
        place: Trial -> its place on the horizontal axis.
        metric: Another one that a point names when it is pointed at.
    """
    return [
        points(
            [place(record) for record in shown],
            [record.value(answer.objective) for record in shown],
            name=name,
            hover=[hover(data, answer, record, metric) for record in shown],
        )
        for name, shown in by_mark(records)
    ]


def _step_trace(steps: Sequence[StepRecord], key: str, name: str, color: str) -> go.Scatter:
    measured = [step.kind is StepKind.MEASURED for step in steps]
    return go.Scatter(
        x=[step.step for step in steps],
        y=[step.metrics[key] for step in steps],
        name=name,
        mode="lines+markers",
        line={"color": color, "width": 1},
        marker={"size": 10, "symbol": ["circle" if flag else "circle-open" for flag in measured]},
        text=[step.kind.value for step in steps],
        hovertemplate="step %{x} (%{text}): %{y:.4g}<extra>" + name + "</extra>",
    )


def _landmarks(answer: Answer) -> list[tuple[str, TrialRecord, str, str]]:
    """Return name, trial, colour and shape of the trials that every chart points out."""
    found = []
    if answer.baseline is not None and answer.baseline.value(answer.objective) is not None:
        found.append(("baseline", answer.baseline, BASELINE_COLOR, "square"))
    if answer.winner is not None and answer.winner.number != 0:
        found.append(("winner", answer.winner, WINNER_COLOR, "star"))
    return found


def _add_baseline(figure: go.Figure, answer: Answer) -> None:
    value = answer.baseline.value(answer.objective) if answer.baseline is not None else None
    if value is not None:
        figure.add_hline(
            y=value,
            line={"color": BASELINE_COLOR, "width": 1.5, "dash": "dash"},
            annotation_text="baseline",
            annotation_position="bottom right",
        )


def _exposed_first(constraints: Sequence[Any]) -> list[Any]:
    return sorted(constraints, key=lambda constraint: constraint.metric != "exposed_comm_ratio")


def _timeline_hover(data: SweepData, record: TrialRecord) -> str:
    lines = [f"<b>trial {record.number}</b>, {outcome(record).replace('_', ' ')}"]
    lines.append(f"{duration_s(record):.0f} s")
    if record.cause:
        lines.append(wrap(literal(record.cause[:200])))
    return "<br>".join(lines)


def _scale(metric: str) -> float:
    return 100.0 if METRICS[metric].unit == "ratio" else 1.0
