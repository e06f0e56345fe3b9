"""The charts of what the knobs do: importance, slices, pairs.

Runs in whatever process reports. Draws what :mod:`autotune.report.effects` computed.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from autotune.objective import TrialRecord
from autotune.report.answer import Answer
from autotune.report.drawing import WINNER_COLOR, by_mark, finish, grid, hover, points, wrap
from autotune.report.effects import Pair, Slice
from autotune.report.reading import SweepData


def importance_figure(importances: dict[str, float]) -> go.Figure | None:
    """Draw the knobs' importances, the greatest on top."""
    if not importances:
        return None
    knobs = list(importances)[::-1]
    figure = go.Figure(
        go.Bar(
            x=[100 * importances[knob] for knob in knobs],
            y=[wrap(knob) for knob in knobs],
            orientation="h",
            marker={"color": WINNER_COLOR},
            hovertemplate="%{x:.0f} %<extra>%{y}</extra>",
        )
    )
    figure.update_xaxes(title="importance (%)")
    return finish(figure, height=80 + 36 * len(knobs), top_px=12)


def slices_figure(
    data: SweepData, answer: Answer, records: Sequence[TrialRecord], slices: Sequence[Slice]
) -> go.Figure | None:
    """Draw every knob against the objective, with the median at each value."""
    if not slices:
        return None
    panels = grid(len(slices), 190, titles=[found.knob for found in slices])
    for index, found in enumerate(slices):
        place = panels.place(index)
        for trace in _slice_traces(data, answer, records, found, show=index == 0):
            panels.figure.add_trace(trace, **place)
        panels.figure.update_xaxes(
            tickvals=list(range(len(found.labels))),
            ticktext=list(found.labels),
            range=[-0.6, len(found.labels) - 0.4],
            **place,
        )
    panels.figure.update_yaxes(title=answer.unit, col=1)
    return finish(panels.figure, height=panels.height + 20, top_px=60)


def pair_figures(pairs: Sequence[Pair], unit: str) -> list[go.Figure]:
    """Draw pairs of knobs as maps of the median objective, all on one colour scale.

    Cells that nobody tried are empty; the last map has the scale's bar.
    """
    values = [
        value for pair in pairs for row in pair.medians for value in row if value is not None
    ]
    return [
        _pair_figure(pair, unit, (min(values), max(values)), has_bar=pair is pairs[-1])
        for pair in pairs
    ]


def _pair_figure(
    pair: Pair, unit: str, scale: tuple[float, float], *, has_bar: bool
) -> go.Figure:
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
            zmin=scale[0],
            zmax=scale[1],
            showscale=has_bar,
            colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12},
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(title=pair.x.knob, type="category", showgrid=False)
    figure.update_yaxes(title=wrap(pair.y.knob), type="category", showgrid=False)
    return finish(figure, height=300, top_px=12)


def _slice_traces(
    data: SweepData, answer: Answer, records: Sequence[TrialRecord], found: Slice, *, show: bool
) -> list[go.Scatter]:
    places = dict(zip((record.number for record in records), found.positions, strict=True))
    traces = [
        points(
            [places[record.number] for record in shown],
            [record.value(answer.objective) for record in shown],
            name=name,
            hover=[hover(data, answer, record) for record in shown],
            show=show,
        )
        for name, shown in by_mark(records)
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


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
