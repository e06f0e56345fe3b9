"""The charts of the HTML report, as Plotly figures.

Runs in whatever process reports. Each function draws what others computed and returns None where
there is nothing to draw. Colours of text, axes and background belong to the page's style sheet,
which knows light, dark and paper; the figures only colour their marks, in tones that stand on
both, and tell outcomes apart by shape too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from autotune.metrics import METRICS, PHASES
from autotune.objective import (
    StepKind,
    StepRecord,
    TrialRecord,
    TrialState,
    best_feasible,
)
from autotune.report.answer import STEP_KEYS, Answer
from autotune.report.effects import Pair, Slice
from autotune.report.reading import SweepData
from autotune.report.text import changed_knobs, duration_s, format_value, outcome

BASELINE_COLOR, WINNER_COLOR = "#7d8896", "#2f6fed"
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


@dataclass(frozen=True, slots=True)
class Mark:
    """How one outcome looks."""

    color: str
    symbol: str


MARKS = {
    "feasible": Mark("#12967f", "circle"),
    "infeasible": Mark("#d98200", "diamond-open"),
    "failed": Mark("#d2453b", "x"),
}


def mark(record: TrialRecord) -> str:
    """Return which of :data:`MARKS` a trial has."""
    return outcome(record) if record.state is TrialState.COMPLETE else "failed"


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
    columns = min(3, len(constraints))
    rows = -(-len(constraints) // columns)
    figure = make_subplots(
        rows=rows, cols=columns, shared_yaxes=True, horizontal_spacing=0.03, vertical_spacing=0.2
    )
    for index, constraint in enumerate(constraints):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        scale = _scale(constraint.metric)
        values = [v for record in records if (v := record.value(constraint.metric)) is not None]
        right = min(max([*values, constraint.max]) * 1.08, constraint.max * CLIP * 1.04)
        figure.add_vrect(
            x0=0,
            x1=constraint.max * scale,
            fillcolor=MARKS["feasible"].color,
            opacity=0.10,
            line_width=0,
            **place,
        )
        figure.add_vline(
            x=constraint.max * scale,
            line={"color": MARKS["failed"].color, "width": 1.5, "dash": "dot"},
            **place,
        )
        for trace in _limit_traces(data, answer, records, constraint, show=index == 0):
            figure.add_trace(trace, **place)
        figure.update_xaxes(
            title=f"{constraint.metric} ({_unit(constraint.metric)})",
            range=[0, right * scale],
            **place,
        )
    figure.update_yaxes(title=answer.unit, col=1)
    return _finish(figure, height=40 + 330 * rows)


def convergence_figure(data: SweepData, answer: Answer) -> go.Figure | None:
    """Draw every trial's objective in the order of the trials, and the best feasible so far."""
    records = [record for record in data.trials if record.value(answer.objective) is not None]
    if not records:
        return None
    figure = go.Figure()
    for name, shown in _by_mark(records):
        figure.add_trace(
            _points(
                [record.number for record in shown],
                [record.value(answer.objective) for record in shown],
                name=name,
                hover=[_hover(data, answer, record) for record in shown],
            )
        )
    best = [
        (record.number, found.value(answer.objective))
        for index, record in enumerate(data.trials)
        if (found := best_feasible(data.trials[: index + 1], answer.objective)) is not None
    ]
    if best:
        figure.add_trace(
            go.Scatter(
                x=[number for number, _ in best],
                y=[value for _, value in best],
                name="best feasible so far",
                mode="lines",
                line={"shape": "hv", "color": WINNER_COLOR, "width": 2},
                hoverinfo="skip",
            )
        )
    _add_baseline(figure, answer)
    figure.update_xaxes(title="trial", rangemode="tozero")
    figure.update_yaxes(title=answer.unit)
    return _finish(figure, height=330)


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
    return _finish(figure, height=300)


def phases_figure(answer: Answer) -> go.Figure | None:
    """Draw the step's phases of the baseline and of the shown trial as two bars."""
    records = [record for record in (answer.shown, answer.baseline) if record is not None]
    records = [record for record in records if record.value("step_s") is not None]
    if not records:
        return None
    unique = list({record.number: record for record in records}.values())
    labels = ["baseline" if record.number == 0 else f"trial {record.number}" for record in unique]
    parts = {name: [r.value(f"phase_{name}_s") or 0.0 for r in unique] for name in PHASES}
    total = [record.value("step_s") or 0.0 for record in unique]
    known = [sum(column) for column in zip(*parts.values(), strict=True)]
    parts["other"] = [max(0.0, whole - part) for whole, part in zip(total, known, strict=True)]
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
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="seconds a step (medians)")
    return _finish(figure, height=150 + 60 * len(unique))


def timeline_figure(data: SweepData) -> go.Figure | None:
    """Draw when each trial ran, trials at the same time below one another."""
    if not data.trials:
        return None
    lanes = lanes_of(data.trials)
    figure = go.Figure()
    for name, shown in _by_mark(data.trials):
        figure.add_trace(
            go.Bar(
                y=[lanes[record.number] for record in shown],
                base=[record.started_at for record in shown],
                x=[1000 * duration_s(record) for record in shown],
                orientation="h",
                name=name,
                marker={"color": MARKS[name].color, "line": {"width": 0.5, "color": "#ffffff"}},
                hovertext=[_timeline_hover(data, record) for record in shown],
                hoverinfo="text",
            )
        )
    figure.update_layout(barmode="overlay", bargap=0.2)
    figure.update_xaxes(type="date", title="UTC")
    figure.update_yaxes(showticklabels=False, autorange="reversed", showgrid=False)
    return _finish(figure, height=120 + 34 * (max(lanes.values()) + 1))


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


def importance_figure(importances: dict[str, float]) -> go.Figure | None:
    """Draw the knobs' importances, the greatest on top."""
    if not importances:
        return None
    knobs = list(importances)[::-1]
    figure = go.Figure(
        go.Bar(
            x=[100 * importances[knob] for knob in knobs],
            y=[_wrap(knob) for knob in knobs],
            orientation="h",
            marker={"color": WINNER_COLOR},
            hovertemplate="%{x:.0f} %<extra>%{y}</extra>",
        )
    )
    figure.update_xaxes(title="importance (%)")
    return _finish(figure, height=90 + 36 * len(knobs))


def slices_figure(
    data: SweepData, answer: Answer, records: Sequence[TrialRecord], slices: Sequence[Slice]
) -> go.Figure | None:
    """Draw every knob against the objective, with the median at each value."""
    if not slices:
        return None
    columns = min(3, len(slices))
    rows = -(-len(slices) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.55 / rows if rows > 1 else 0.0,
        subplot_titles=[found.knob for found in slices],
    )
    for index, found in enumerate(slices):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        for trace in _slice_traces(data, answer, records, found, show=index == 0):
            figure.add_trace(trace, **place)
        figure.update_xaxes(
            tickvals=list(range(len(found.labels))),
            ticktext=list(found.labels),
            range=[-0.6, len(found.labels) - 0.4],
            **place,
        )
    figure.update_annotations(font_size=12)
    figure.update_yaxes(title=answer.unit, col=1)
    return _finish(figure, height=70 + 250 * rows)


def pair_figure(pair: Pair, unit: str) -> go.Figure:
    """Draw two knobs as a map of the median objective; cells that nobody tried are empty."""
    texts = [
        [f"{value:.0f}" if value is not None and value >= 100 else _short(value) for value in row]
        for row in pair.medians
    ]
    figure = go.Figure(
        go.Heatmap(
            z=[list(row) for row in pair.medians],
            x=list(pair.x.labels),
            y=list(pair.y.labels),
            text=texts,
            customdata=[list(row) for row in pair.counts],
            texttemplate="%{text}",
            hovertemplate=f"%{{z:.4g}} {unit}, %{{customdata}} trials<extra></extra>",
            colorscale="Viridis",
            showscale=False,
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(title=pair.x.knob, type="category", showgrid=False)
    figure.update_yaxes(title=_wrap(pair.y.knob), type="category", showgrid=False)
    return _finish(figure, height=320)


def _limit_traces(
    data: SweepData,
    answer: Answer,
    records: Sequence[TrialRecord],
    constraint: Any,
    *,
    show: bool,
) -> list[go.Scatter]:
    scale = _scale(constraint.metric)
    cap = constraint.max * CLIP
    traces = []
    for name, shown in _by_mark(records):
        placed = [record for record in shown if record.value(constraint.metric) is not None]
        traces.append(
            _points(
                [min(record.value(constraint.metric) or 0.0, cap) * scale for record in placed],
                [record.value(answer.objective) for record in placed],
                name=name,
                hover=[_hover(data, answer, record, constraint.metric) for record in placed],
                show=show,
            )
        )
    for name, record, color, symbol in _landmarks(answer):
        value = record.value(constraint.metric)
        if value is not None:
            traces.append(
                go.Scatter(
                    x=[min(value, cap) * scale],
                    y=[record.value(answer.objective)],
                    name=name,
                    mode="markers+text",
                    text=[name],
                    textposition="top center",
                    marker={"color": color, "symbol": symbol, "size": 15},
                    hoverinfo="skip",
                    showlegend=False,
                    cliponaxis=False,
                )
            )
    return traces


def _slice_traces(
    data: SweepData, answer: Answer, records: Sequence[TrialRecord], found: Slice, *, show: bool
) -> list[go.Scatter]:
    places = dict(zip((record.number for record in records), found.positions, strict=True))
    traces = [
        _points(
            [places[record.number] for record in shown],
            [record.value(answer.objective) for record in shown],
            name=name,
            hover=[_hover(data, answer, record) for record in shown],
            show=show,
        )
        for name, shown in _by_mark(records)
    ]
    traces.append(
        go.Scatter(
            x=list(range(len(found.labels))),
            y=list(found.medians),
            name="median",
            mode="lines+markers",
            line={"color": WINNER_COLOR, "width": 1.5},
            marker={"symbol": "line-ew-open", "size": 16, "line": {"width": 2.5}},
            hoverinfo="skip",
            showlegend=show,
        )
    )
    return traces


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


def _points(
    x: Sequence[Any], y: Sequence[Any], *, name: str, hover: Sequence[str], show: bool = True
) -> go.Scatter:
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=name,
        legendgroup=name,
        showlegend=show,
        mode="markers",
        marker={
            "color": MARKS[name].color,
            "symbol": MARKS[name].symbol,
            "size": 8,
            "opacity": 0.8,
        },
        hovertext=list(hover),
        hoverinfo="text",
    )


def _by_mark(records: Sequence[TrialRecord]) -> list[tuple[str, list[TrialRecord]]]:
    groups = [(name, [record for record in records if mark(record) == name]) for name in MARKS]
    return [(name, shown) for name, shown in groups if shown]


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


def _hover(data: SweepData, answer: Answer, record: TrialRecord, metric: str | None = None) -> str:
    lines = [f"<b>trial {record.number}</b>, {outcome(record).replace('_', ' ')}"]
    lines.append(format_value(answer.objective, record.value(answer.objective)))
    if metric is not None:
        lines.append(f"{metric}: {format_value(metric, record.value(metric))}")
    changes = changed_knobs(record.setting, data.baseline_setting)
    return "<br>".join([*lines, *changes.split(", ")])


def _timeline_hover(data: SweepData, record: TrialRecord) -> str:
    lines = [f"<b>trial {record.number}</b>, {outcome(record).replace('_', ' ')}"]
    lines.append(f"{duration_s(record):.0f} s")
    if record.cause:
        lines.append(_wrap(record.cause[:200]))
    return "<br>".join(lines)


def _scale(metric: str) -> float:
    return 100.0 if METRICS[metric].unit == "ratio" else 1.0


def _unit(metric: str) -> str:
    return "%" if METRICS[metric].unit == "ratio" else METRICS[metric].unit


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _wrap(text: str, width: int = 24) -> str:
    """Return a text with breaks at underscores and spaces, for the narrow room of an axis."""
    lines = [""]
    for part in text.replace("_", "_ ").split(" "):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        glue = "" if not lines[-1] or lines[-1].endswith("_") else " "
        lines[-1] += glue + part
    return "<br>".join(lines)


def _finish(figure: go.Figure, *, height: int) -> go.Figure:
    """Give a figure what all of them share."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 64, "r": 16, "t": 36, "b": 52},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 12, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=8)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8)
    return figure
