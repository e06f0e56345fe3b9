"""The HTML report: one self-contained file, without network, for screen (light, dark) and paper.

Runs in whatever process reports. Arranges the answer, the charts and the records with the template
in ``page_files`` (Jinja2, everything escaped); plotly.js is inlined, so that a file has about 5 MB
and opens on a machine without network. Without JavaScript all but the charts is there.
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from autotune.config import to_yaml
from autotune.launch_script import quoted
from autotune.metrics import METRICS
from autotune.objective import TrialRecord, timestamp
from autotune.report import effects
from autotune.report.answer import Answer, LimitStatus, Verdict, gpu_seconds
from autotune.report.answer import answer as answer_of
from autotune.report.beside import disturbance_line
from autotune.report.by_itself import without_effect
from autotune.report.calibration_text import calibration_text
from autotune.report.domain_ends import domain_end_lines
from autotune.report.drawing import MARKS, mark
from autotune.report.jobs import TERMS, start_legend, startup_line
from autotune.report.phases import saved_line
from autotune.report.proof import begun_line, proof_of, ratios_text
from autotune.report.reading import SweepData, read_sweep
from autotune.report.repeats import count_text, repeat_marks, repetitions_line, settings_text
from autotune.report.summary import (
    CLAIMS,
    PAIRS_NOTE,
    TWO_KINDS_OF_JOBS,
    binding_text,
    front_note,
    gpu_word,
    hours_line,
    hours_text,
    next_step,
    source_text,
)
from autotune.report.text import (
    changed_knobs,
    duration_s,
    fidelity_note,
    format_duration,
    format_number,
    format_value,
    is_failed,
    knob_text,
    moment_text,
    outcome,
    plural,
    range_text,
    ratio_text,
    resources_text,
)
from autotune.store import redact, write_atomic

HTML_FILE = "report.html"
TONES = {
    Verdict.PROVEN: "good",
    Verdict.NOT_PROVEN: "warn",
    Verdict.WORSE: "bad",
    Verdict.NOT_VERIFIED: "warn",
    Verdict.BASELINE_IS_BEST: "calm",
    Verdict.NOTHING_FEASIBLE: "bad",
    Verdict.NOTHING_FINISHED: "calm",
}
MAX_SLICES = 12
"""Knobs drawn one by one; the most important ones of a larger space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The picture of a ratio with its interval; positions are percent of its width."""

    one: float
    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A constraint as a bar."""

    status: LimitStatus
    value: str
    limit: str
    baseline: str
    room: str
    """Head-room in words."""
    interval: str
    """Of the value over cold jobs; empty unless verified."""
    source: str
    """Which jobs the value is of; empty where there is no value."""
    width_percent: float
    tone: str
    is_binding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial in the table of all trials: what is shown, and what it is sorted by."""

    record: TrialRecord
    mark: str
    outcome: str
    objective: str
    limits: tuple[tuple[str, float | None, bool], ...]
    """Text, value, whether the limit is broken."""
    time_s: float
    time: str
    knobs: str
    role: str
    """``winner``, ``baseline`` or empty."""
    repeats: str
    """Which trials had the same setting, in words; empty for none."""


def report_page(data: SweepData, answer: Answer) -> str:
    """Return the whole report as the text of an HTML file."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_without_secrets
    )
    environment.filters["quoted"] = quoted
    template = environment.from_string(_file("page.html"))
    return template.render(**_context(data, answer))


def write_report(path: Path, data: SweepData, answer: Answer) -> None:
    """Write the report to a file, without the environment's secrets."""
    write_atomic(path, report_page(data, answer))


def renew_report(folder: Path) -> tuple[SweepData, Answer]:
    """Write the report of a sweep's folder into it as things stand, and return what it is from."""
    data = read_sweep(folder)
    found = answer_of(data)
    write_report(data.folder / HTML_FILE, data, found)
    return data, found


def _context(data: SweepData, answer: Answer) -> dict[str, Any]:
    from plotly.offline import get_plotlyjs

    shown, proof = answer.shown, proof_of(data)
    return {
        "data": data,
        "answer": answer,
        "config": data.config,
        "claim": CLAIMS[answer.verdict],
        "fidelity": fidelity_note(answer.fidelity),
        "verdict": answer.verdict.value.replace("_", " "),
        "tone": TONES[answer.verdict],
        "is_worse": answer.verdict is Verdict.WORSE,
        "interval": interval_of(answer),
        "gauges": [gauge_of(limit, answer.binding) for limit in answer.limits],
        "binding": binding_text(answer) if answer.limits else "",
        "shown": shown,
        "shown_name": trial_name(answer, shown),
        "rows": rows_of(answer, data),
        "count": count_text(data.trials),
        "settings": settings_text(data.trials),
        "repetitions": repetitions_line(answer),
        "costs": _cost_bars(data, answer),
        "hours": hours_text(answer, data),
        "begun": begun_line(data),
        "next": next_step(answer, data),
        "proof": proof,
        "hours_line": hours_line(answer.gain, gpu_word(data)) if answer.gain is not None else "",
        "resources": resources_text(data.config.resources),
        "saved": saved_line(answer),
        "domain_ends": domain_end_lines(data, answer.winner),
        "start_legend": start_legend(),
        "startup": startup_line(data.trials),
        "terms": TERMS,
        "two_kinds_of_jobs": TWO_KINDS_OF_JOBS,
        "pairs_note": PAIRS_NOTE,
        "ratios": ratios_text(proof.pairs) if proof is not None else [],
        "failures": failures_of(data.trials),
        "figures": figures_of(data, answer),
        "why_no_importance": effects.why_no_importance(
            effects.completed(data.trials, answer.objective)
        ),
        "without_effect": without_effect(data, answer),
        "metrics": [METRICS[name] for name in METRICS if _is_held(data, name)],
        "config_text": to_yaml(data.config),
        "calibration_text": calibration_text(data.calibration) if data.calibration else "",
        "gpu_word": gpu_word(data),
        "written_at": moment_text(timestamp()),
        "span": _span(data),
        "disturbance": disturbance_line(data),
        "css": _raw(_file("page.css")),
        "script": _raw(_file("page.js")),
        "plotly_js": _raw(get_plotlyjs()),
        "value": format_value,
        "number": format_number,
        "knob": knob_text,
        "plural": plural,
        "times": ratio_text,
        "shell": shlex.quote,
        "changed": changed_knobs,
        "front_note": front_note,
        "soft": soft,
    }


def interval_of(answer: Answer) -> Interval | None:
    """Return where the parts of a gain stand on a line that holds them all and 1."""
    gain = answer.gain
    if gain is None:
        return None
    points = [1.0, gain.ratio, *(v for v in (gain.low, gain.high) if v is not None)]
    low, high = min(points), max(points)
    pad = 0.08 * ((high - low) or 1.0)

    def place(value: float | None) -> float | None:
        return None if value is None else 100 * (value - low + pad) / (high - low + 2 * pad)

    return Interval(
        one=place(1.0) or 0.0,
        ratio=place(gain.ratio) or 0.0,
        low=place(gain.low),
        high=place(gain.high),
    )


def gauge_of(status: LimitStatus, binding: str | None) -> Gauge:
    """Return a constraint as a bar that is full at its limit."""
    room = status.headroom_ratio
    if room is None:
        text, tone = f"not measured: {status.reason}", "none"
    elif room < -1:
        text, tone = f"broken: {1 - room:.3g} times the limit", "bad"
    elif room < 0:
        text, tone = f"broken by {-100 * room:.0f} %", "bad"
    else:
        text, tone = f"{100 * room:.0f} % head-room", "warn" if room < 0.05 else "good"
    return Gauge(
        status=status,
        value=format_value(status.metric, status.value),
        limit=format_value(status.metric, status.max),
        baseline=format_value(status.metric, status.baseline),
        room=text,
        interval=_ends(status),
        source="" if status.value is None else source_text(status),
        width_percent=0.0 if room is None else min(100.0, max(0.0, 100 * (1 - room))),
        tone=tone,
        is_binding=status.metric == binding,
    )


def _ends(status: LimitStatus) -> str:
    if status.low is None or status.high is None:
        return ""
    return range_text(status.metric, status.low, status.high)


def rows_of(answer: Answer, data: SweepData) -> list[Row]:
    """Return all trials as rows of the table."""
    marks = repeat_marks(data.trials)
    return [row_of(record, answer, data, marks.get(record.number, "")) for record in data.trials]


def row_of(record: TrialRecord, answer: Answer, data: SweepData, repeats: str) -> Row:
    """Return a trial as a row of the table."""
    limits = []
    for constraint in data.config.constraints:
        value = record.metrics.get(constraint.metric)
        violation = record.violations.get(constraint.metric)
        text = format_value(constraint.metric, value)
        limits.append((text, value, violation is not None and violation > 0))
    return Row(
        record=record,
        mark=mark(record),
        outcome=outcome(record).replace("_", " "),
        objective=format_value(answer.objective, record.value(answer.objective)),
        limits=tuple(limits),
        time_s=duration_s(record),
        time=format_duration(duration_s(record)),
        knobs=changed_knobs(record.setting, data.baseline_setting),
        role=_role(record, answer),
        repeats=repeats,
    )


def failures_of(trials: Sequence[TrialRecord]) -> list[tuple[str, str, int, list[int]]]:
    """Return state, cause, number of trials and their numbers, the most frequent first."""
    failed = [record for record in trials if is_failed(record)]
    counts = Counter((record.state.value, record.cause) for record in failed)
    return [
        (
            state.replace("_", " "),
            cause,
            count,
            [r.number for r in failed if (r.state.value, r.cause) == (state, cause)],
        )
        for (state, cause), count in counts.most_common()
    ]


def figures_of(data: SweepData, answer: Answer) -> dict[str, Any]:
    """Return name -> figure as JSON that may stand in a script element; None: nothing to draw."""
    from autotune.report import effect_figures, figures

    records = effects.completed(data.trials, answer.objective)
    importances = effects.importances(records, answer.objective)
    knobs = list(importances) or effects.varied_knobs(records)
    slices = [effects.slice_of(records, knob, answer.objective) for knob in knobs[:MAX_SLICES]]
    pairs = effects.top_pairs(records, list(importances), answer.objective)
    drawn = {
        "limits": figures.limits_figure(data, answer),
        "convergence": figures.convergence_figure(data, answer),
        "steps": figures.steps_figure(data, answer),
        "front": figures.front_figure(data, answer),
        "phases": figures.phases_figure(answer),
        "timeline": figures.timeline_figure(data),
        "importance": effect_figures.importance_figure(importances),
        "slices": effect_figures.slices_figure(data, answer, records, slices),
    }
    for index, figure in enumerate(effect_figures.pair_figures(pairs, answer.unit)):
        drawn[f"pair{index}"] = figure
    return {name: None if figure is None else _embedded(figure) for name, figure in drawn.items()}


def trial_name(answer: Answer, record: TrialRecord | None) -> str:
    """Return what the report calls the trial that it is about."""
    if record is None:
        return "no trial"
    return "the baseline" if record.number == 0 else f"trial {record.number}"


def soft(name: str) -> Any:
    """Return a name that may break after its underscores and dots."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_.])", r"\1<wbr>", str(escape(name))))


def _role(record: TrialRecord, answer: Answer) -> str:
    if answer.winner is not None and record.number == answer.winner.number:
        return "winner"
    return "baseline" if record.number == 0 else ""


def _cost_bars(data: SweepData, answer: Answer) -> list[Mapping[str, Any]]:
    total = sum(cost.gpu_hours for cost in answer.costs) or 1.0
    return [
        {
            "outcome": cost.outcome.replace("_", " "),
            "num_trials": cost.num_trials,
            "hours": cost.gpu_hours,
            "percent": 100 * cost.gpu_hours / total,
            "color": MARKS[cost.outcome if cost.outcome in MARKS else "failed"].color,
        }
        for cost in answer.costs
    ]


def _span(data: SweepData) -> str:
    """Return the sweep's first start and last end, and what one trial cost."""
    if not data.trials:
        return ""
    start = min(record.started_at for record in data.trials)
    end = max(record.ended_at for record in data.trials)
    took = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    each = [gpu_seconds(record, data.config.resources.num_ranks) for record in data.trials]
    mean = format_number(sum(each) / len(each) / 3600)
    return (
        f"{moment_text(start)} to {moment_text(end)} ({format_duration(took)}), "
        f"{mean} {gpu_word(data)}-hours a trial (mean)"
    )


def _is_held(data: SweepData, metric: str) -> bool:
    return any(record.metrics.get(metric) is not None for record in data.trials)


def _embedded(figure: Any) -> Any:
    """Return a figure's JSON; no text of a record can end the script element around it."""
    return _raw(redact(figure.to_json()).replace("<", "\\u003c"))


def _without_secrets(value: Any) -> Any:
    """Mask secrets before a text is escaped; what is ready for the page passes."""
    from markupsafe import Markup

    return redact(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _raw(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _file(name: str) -> str:
    return (files("autotune.report") / "page_files" / name).read_text(encoding="utf-8")
