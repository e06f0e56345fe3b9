"""Tables of ``autotune list``, ``show`` and ``compare`` for a terminal.

Runs in the shell's own process. Turns views into rich renderables; a pipe gets plain text as wide
as it needs, so that no cell is folded.
"""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from autotune.metrics import DETAILS, METRICS
from autotune.objective import StepRecord
from autotune.report.compare import Comparison, Difference, Side
from autotune.report.overview import SweepLine, TrialView
from autotune.report.summary import gain_text
from autotune.report.text import (
    duration_s,
    fidelity_note,
    format_duration,
    format_number,
    format_value,
    knob_text,
    moment_text,
    plural,
    ratio_text,
    step_values,
)

PIPE_COLUMNS = 400


def console() -> Console:
    """Return where to print: the terminal, or a pipe without a width of its own."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def list_table(sweeps: Sequence[SweepLine]) -> Table:
    """Return one row a sweep."""
    table = _table("sweep", "state", "trials", "winner", "objective", "gain", "verdict", "folder")
    for line in sweeps:
        gain = f"{ratio_text(line.gain.ratio)}x" if line.gain is not None else ""
        done = line.num_finished >= line.num_trials
        _row(
            table,
            line.sweep,
            ("running" if line.is_running else "finished" if done else "stopped")
            + (", update-only" if line.fidelity == "update" else ""),
            f"{line.num_finished}/{line.num_trials}",
            "none" if line.winner is None else f"trial {line.winner}",
            format_value(line.objective, line.value) if line.winner is not None else "",
            gain,
            line.verdict.value.replace("_", " "),
            str(line.folder),
        )
    return table


def trial_page(view: TrialView) -> Group:
    """Return one trial in full."""
    record = view.record
    parts: list[Text | Table] = [Text(_trial_headline(view))]
    note = fidelity_note(view.fidelity)
    if note:
        parts.append(Text(f"{note[0].upper()}{note[1:]}."))
    if record.cause:
        parts.append(Text(f"Cause: {record.cause}"))
    if view.gain is not None:
        parts.append(Text(f"{gain_text(view.gain)}."))
    parts += [Text(""), _settings_table(view), Text(""), _metrics_table(view)]
    if view.steps:
        parts += [Text(""), _steps_table(view.steps)]
    if view.log_path is not None:
        later = view.log_shared_with
        shared = "" if later is None else f" (its job went on with trials up to {later})"
        parts += [Text(f"\nEnd of {view.log_path}{shared}:"), Text("\n".join(view.log_tail))]
    return Group(*parts)


def comparison_page(comparison: Comparison) -> Group:
    """Return two trials side by side."""
    a, b = comparison.a, comparison.b
    parts: list[Text | Table] = [Text(f"a: {_side(a)}\nb: {_side(b)}")]
    note = fidelity_note(comparison.fidelity)
    if note:
        parts.append(Text(f"Both: {note}."))
    for title, found in (
        ("Settings", comparison.settings),
        ("Keys of the sweep file", comparison.config),
        ("Versions", comparison.versions),
    ):
        if found:
            parts += [Text(f"\n{title} that differ:"), _difference_table(found)]
    if not comparison.settings:
        parts.append(Text("\nThe two settings are the same."))
    table = _table("metric", "a", "b", "b / a")
    for pair in comparison.metrics:
        ratio = "" if pair.ratio is None else f"{pair.ratio:.3f}"
        cells = [metric_text(pair.metric, value) for value in (pair.a, pair.b)]
        _row(table, pair.metric, *cells, ratio)
    return Group(*parts, Text("\nMeasured:"), table)


def metric_text(name: str, value: float | None) -> str:
    """Return any number of a trial's record as a person reads it; of one that another version of
    this package wrote, the unit may not be known."""
    if value is None or name in METRICS or name in DETAILS:
        return format_value(name, value)
    return format_number(value)


def _trial_headline(view: TrialView) -> str:
    record = view.record
    took = format_duration(duration_s(record))
    retries = f", run again {plural(record.retries, 'time')}" if record.retries else ""
    role = " (baseline)" if record.number == 0 else ""
    return (
        f"Trial {record.number}{role} of {view.sweep}: {view.outcome.replace('_', ' ')}, "
        f"{moment_text(record.started_at)}, {took}{retries}"
    )


def _settings_table(view: TrialView) -> Table:
    changed = {change.knob: change.was for change in view.changes}
    table = _table("setting", "value", "baseline")
    for knob, value in view.record.setting.items():
        was = knob_text(changed[knob]) if knob in changed else ""
        note = "" if knob in view.record.params else " (does not act here)"
        _row(table, knob, knob_text(value) + note, was)
    return table


def _metrics_table(view: TrialView) -> Table:
    record = view.record
    table = _table("metric", "value", "baseline", "limit")
    for name, value in record.metrics.items():
        baseline = view.baseline.metrics.get(name) if view.baseline is not None else None
        reason = record.absent.get(name)
        shown = metric_text(name, value)
        violation = record.violations.get(name)
        verdict = "" if violation is None else "BROKEN" if violation > 0 else "kept"
        _row(
            table,
            name,
            shown if reason is None else f"{shown} ({reason})",
            metric_text(name, baseline),
            verdict,
        )
    return table


def _steps_table(steps: Sequence[StepRecord]) -> Table:
    table = _table("step", "kind", "time", "throughput")
    for step in steps:
        _row(table, str(step.step), step.kind.value, *step_values(step))
    return table


def _difference_table(found: Sequence[Difference]) -> Table:
    table = _table("", "a", "b")
    for entry in found:
        _row(table, entry.name, knob_text(entry.a), knob_text(entry.b))
    return table


def _side(side: Side) -> str:
    gain = ""
    if side.gain is not None:
        kind = "verified" if side.gain.is_verified else "in the sweep's own jobs"
        gain = f", {ratio_text(side.gain.ratio)} times its baseline ({kind})"
    return f"trial {side.trial} ({side.outcome_of}) of {side.folder}{gain}"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))
