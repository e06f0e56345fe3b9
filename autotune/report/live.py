"""How a running sweep looks to a person: a live table in a terminal, plain lines elsewhere.

Runs in the driver. Told of events by its owner, it prints; it starts nothing, reads no file and
knows no Ray. What is shown is built by pure functions from records and from the trials that run.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.knobs import KnobValue
from autotune.measure.stats import median
from autotune.objective import Constraint, StepRecord, TrialRecord, best_feasible
from autotune.report.text import (
    SweepOutline,
    changed_knobs,
    duration_s,
    fidelity_note,
    format_duration,
    format_value,
    outcome,
    step_line,
    trial_line,
)

MIN_ROWS = 4
LINES_A_ROW = 3
"""Lines of the terminal that one row may take, so that the table does not outgrow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTrial:
    """A trial that has not ended."""

    number: int
    setting: Mapping[str, KnobValue]
    elapsed_s: float
    num_steps: int
    """Steps done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial in the table; every entry is ready to print."""

    number: int
    state: str
    knobs: str
    objective: str
    constraints: tuple[str, ...]
    elapsed: str
    is_best: bool


class LiveTable:
    """Shows the progress of a sweep; a context manager that owns the terminal's lower lines.

    Args:
        outline: The sweep.
        console: Where to print; a table where it is a terminal, else one line an event.
        finished: Trials of earlier runs of this sweep.
        clock: Seconds that never run backwards.
    """

    def __init__(
        self,
        outline: SweepOutline,
        console: Console,
        finished: Sequence[TrialRecord] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outline = outline
        self._console = console
        self._clock = clock
        self._finished = {record.number: record for record in finished}
        self._running: dict[int, RunningTrial] = {}
        self._started: dict[int, float] = {}
        self._guard = threading.Lock()
        self._live = Live(
            get_renderable=self.table, console=console, refresh_per_second=2, transient=False
        )

    def __enter__(self) -> "LiveTable":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def trial_started(self, number: int, setting: Mapping[str, KnobValue]) -> None:
        """Tell that a trial's job is being started."""
        with self._guard:
            self._started[number] = self._clock()
            self._running[number] = RunningTrial(
                number=number, setting=dict(setting), elapsed_s=0.0, num_steps=0
            )
        self._say(f"trial {number} started: {changed_knobs(setting, self._outline.baseline)}")

    def step_finished(self, step: StepRecord) -> None:
        """Tell that a running trial has done a step."""
        with self._guard:
            trial = self._running[step.number]
            self._running[step.number] = replace(trial, num_steps=trial.num_steps + 1)
        self._say(step_line(step, self._outline))

    def trial_lost(self, number: int, cause: str) -> None:
        """Tell that a trial's job was lost through no fault of its setting."""
        with self._guard:
            self._running.pop(number, None)
        self._say(f"trial {number} was lost: {cause}")

    def trial_finished(self, record: TrialRecord) -> None:
        """Tell that a trial has ended with a record."""
        with self._guard:
            self._running.pop(record.number, None)
            self._finished[record.number] = record
            records, running = self._snapshot()
        progress = progress_line(records, running, self._outline)
        self._say(f"{trial_line(record, records, self._outline)}; {progress}")

    def table(self) -> Table:
        """Return the table as it stands now."""
        with self._guard:
            records, running = self._snapshot()
        max_rows = max(MIN_ROWS, self._console.height // LINES_A_ROW)
        rows = visible(build_rows(records, running, self._outline), max_rows)
        return render(rows, progress_line(records, running, self._outline), self._outline)

    def _snapshot(self) -> tuple[list[TrialRecord], list[RunningTrial]]:
        now = self._clock()
        running = [
            replace(trial, elapsed_s=now - self._started[trial.number])
            for trial in self._running.values()
        ]
        return list(self._finished.values()), running

    def _say(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def build_rows(
    records: Sequence[TrialRecord], running: Sequence[RunningTrial], outline: SweepOutline
) -> list[Row]:
    """Return one row a trial by number; a trial that runs again hides its lost record."""
    best = best_feasible(records, outline.objective)
    rows = {
        record.number: _finished_row(record, outline, is_best=record is best) for record in records
    }
    rows |= {trial.number: _running_row(trial, outline) for trial in running}
    return [rows[number] for number in sorted(rows)]


def visible(rows: Sequence[Row], max_rows: int) -> list[Row]:
    """Return the rows that fit on a screen: the newest, and the best one in any case."""
    newest = list(rows[-max_rows:])
    best = [row for row in rows if row.is_best and row not in newest]
    return [*best, *newest[len(best) :]]


def render(rows: Sequence[Row], progress: str, outline: SweepOutline) -> Table:
    """Draw rows as a table, the best one marked."""
    table = Table(title=f"sweep {outline.name}", caption=progress, caption_justify="left")
    table.add_column("trial", justify="right")
    table.add_column("state")
    table.add_column("knobs changed", overflow="fold", ratio=1)
    table.add_column(_title(outline.objective), justify="right", max_width=16)
    for constraint in outline.constraints:
        limit = format_value(constraint.metric, constraint.max)
        title = f"{_title(constraint.metric)}\nmax {limit}"
        table.add_column(title, justify="right", max_width=12)
    table.add_column("time", justify="right")
    for row in rows:
        number = f"* {row.number}" if row.is_best else str(row.number)
        cells = [number, row.state, row.knobs, row.objective, *row.constraints, row.elapsed]
        table.add_row(*(Text(cell) for cell in cells), style="bold green" if row.is_best else "")
    return table


def time_left_s(
    records: Sequence[TrialRecord], running: Sequence[RunningTrial], outline: SweepOutline
) -> float | None:
    """Estimate the time to the sweep's end from the finished trials; None before the first one.

    Every trial still to finish takes the median duration of the finished ones, less what the
    running ones have done, and as many run at once as may.
    """
    counted = [record for record in records if record.state.is_setting_fault]
    if not counted:
        return None
    each = median([duration_s(record) for record in counted])
    num_left = max(outline.num_trials - len(counted), len(running))
    done = sum(min(trial.elapsed_s, each) for trial in running)
    return (num_left * each - done) / outline.max_concurrent


def progress_line(
    records: Sequence[TrialRecord], running: Sequence[RunningTrial], outline: SweepOutline
) -> str:
    """Return how far the sweep is, the best trial so far and the time left."""
    num_finished = sum(record.state.is_setting_fault for record in records)
    parts = [f"{num_finished} of {outline.num_trials} trials"]
    best = best_feasible(records, outline.objective)
    if best is not None:
        value = format_value(outline.objective, best.value(outline.objective))
        parts.append(f"best so far trial {best.number} with {value}")
    left = time_left_s(records, running, outline)
    if left is not None and num_finished < outline.num_trials:
        parts.append(f"about {format_duration(left)} left")
    note = fidelity_note(outline.fidelity)
    return ", ".join([*parts, note] if note else parts)


def _finished_row(record: TrialRecord, outline: SweepOutline, *, is_best: bool) -> Row:
    return Row(
        number=record.number,
        state=outcome(record).replace("_", " "),
        knobs=changed_knobs(record.setting, outline.baseline),
        objective=format_value(outline.objective, record.value(outline.objective)),
        constraints=tuple(
            _value_and_mark(record, constraint) for constraint in outline.constraints
        ),
        elapsed=format_duration(duration_s(record)),
        is_best=is_best,
    )


def _running_row(trial: RunningTrial, outline: SweepOutline) -> Row:
    steps = f"step {trial.num_steps}/{outline.steps_per_trial}"
    return Row(
        number=trial.number,
        state=steps if trial.num_steps else "starting",
        knobs=changed_knobs(trial.setting, outline.baseline),
        objective="",
        constraints=("",) * len(outline.constraints),
        elapsed=format_duration(trial.elapsed_s),
        is_best=False,
    )


def _title(metric: str) -> str:
    """Return a metric's name in words, which a narrow column may break."""
    return metric.replace("_", " ")


def _value_and_mark(record: TrialRecord, constraint: Constraint) -> str:
    violation = record.violations.get(constraint.metric)
    text = format_value(constraint.metric, record.metrics.get(constraint.metric))
    return f"{text} !" if violation is not None and violation > 0 else text
