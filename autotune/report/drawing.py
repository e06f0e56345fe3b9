"""What all charts of the HTML report share: how outcomes look, points, hover texts, layout.

Runs in whatever process reports. Colours of text, axes and background belong to the page's style
sheet, which knows light, dark and paper; charts only colour their marks, in tones that stand on
both, and tell outcomes apart by shape too.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from autotune.objective import TrialRecord
from autotune.report.answer import Answer
from autotune.report.reading import SweepData
from autotune.report.text import changed_knobs, format_value, is_failed, outcome

BASELINE_COLOR, WINNER_COLOR = "#7d8896", "#2f6fed"


GAP_PX = 84
"""Room between two rows of panels, for the axis titles of the upper one."""
TOP_PX, BOTTOM_PX = 40, 52
"""Room above and below the axes, for the legend and the axis titles."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How one outcome looks."""

    color: str
    symbol: str


@dataclass(frozen=True, slots=True)
class Panels:
    """A figure of several panels."""

    figure: go.Figure
    columns: int
    height: int
    """Pixels of the whole figure."""

    def place(self, index: int) -> dict[str, int]:
        """Return where a panel is."""
        return {"row": index // self.columns + 1, "col": index % self.columns + 1}


MARKS = {
    "feasible": Mark("#12967f", "circle"),
    "infeasible": Mark("#d98200", "diamond-open"),
    "stopped": Mark("#8a93a0", "triangle-down"),
    "failed": Mark("#d2453b", "x"),
}


def mark(record: TrialRecord) -> str:
    """Return which of :data:`MARKS` a trial has."""
    return "failed" if is_failed(record) else outcome(record)


def points(
    x: Sequence[Any], y: Sequence[Any], *, name: str, hover: Sequence[str], show: bool = True
) -> go.Scatter:
    """Return the trials of one outcome as points; the legend names outcomes in the order of
    MARKS."""
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=name,
        legendgroup=name,
        legendrank=list(MARKS).index(name),
        showlegend=show,
        mode="markers",
        marker={
            "color": MARKS[name].color,
            "symbol": MARKS[name].symbol,
            "size": 8,
            "opacity": 0.85,
            "line": {"width": 1.5},
        },
        hovertext=list(hover),
        hoverinfo="text",
    )


def by_mark(records: Sequence[TrialRecord]) -> list[tuple[str, list[TrialRecord]]]:
    """Return the trials by how they look, without empty groups; feasible ones last, which are
    then drawn above all others."""
    groups = [(name, [r for r in records if mark(r) == name]) for name in reversed(MARKS)]
    return [(name, shown) for name, shown in groups if shown]


def hover(data: SweepData, answer: Answer, record: TrialRecord, metric: str | None = None) -> str:
    """Return what a point says when it is pointed at."""
    lines = [f"<b>trial {record.number}</b>, {outcome(record).replace('_', ' ')}"]
    lines.append(format_value(answer.objective, record.value(answer.objective)))
    if metric is not None:
        lines.append(f"{metric}: {format_value(metric, record.value(metric))}")
    changes = changed_knobs(record.setting, data.baseline_setting)
    return "<br>".join([*lines, *literal(changes).split(", ")])


def literal(text: str) -> str:
    """Return a record's text as a chart shows it word by word: Plotly reads some HTML."""
    return html.escape(text, quote=False)


def wrap(text: str, width: int = 24) -> str:
    """Return a text with breaks at underscores and spaces, for the narrow room of an axis."""
    lines = [""]
    for part in text.replace("_", "_ ").split(" "):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        glue = "" if not lines[-1] or lines[-1].endswith("_") else " "
        lines[-1] += glue + part
    return "<br>".join(lines)


def finish(figure: go.Figure, *, height: int, top_px: int = TOP_PX) -> go.Figure:
    """Give a figure what all of them share."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 64, "r": 16, "t": top_px, "b": BOTTOM_PX},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"size": 12, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "yref": "container", "y": 1, "yanchor": "top", "x": 0},
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=8)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8)
    return figure


def grid(num_panels: int, panel_px: int, *, titles: Sequence[str] | None = None) -> Panels:
    """Return an empty figure of equal panels, three a row, that share their vertical axis."""
    columns = max(1, min(3, num_panels))
    rows = -(-num_panels // columns)
    inner_px = rows * panel_px + (rows - 1) * GAP_PX
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=GAP_PX / inner_px if rows > 1 else 0.0,
        subplot_titles=titles,
    )
    figure.update_annotations(font_size=12)
    return Panels(figure=figure, columns=columns, height=inner_px + TOP_PX + BOTTOM_PX)
