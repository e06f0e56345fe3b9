"""Many sweeps on one line each, and one trial in full.

Runs in whatever process reports. Pure functions over :class:`~autotune.report.reading.SweepData`,
but for the end of a log file that :func:`view_trial` reads.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.objective import StepRecord, TrialRecord
from autotune.redaction import redact
from autotune.report.answer import Change, Verdict, answer, changes
from autotune.report.gain import Gain, gain
from autotune.report.reading import SweepData
from autotune.report.text import outcome

LOG_TAIL_LINES = 20
MAX_LINE = 300
"""Characters of a log's line; verl prints all metrics of a step on one."""
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLine:
    """One sweep in an overview."""

    sweep: str
    folder: Path
    is_running: bool
    fidelity: str
    """As :attr:`autotune.report.answer.Answer.fidelity`."""
    num_finished: int
    num_trials: int
    verdict: Verdict
    winner: int | None
    """As :attr:`autotune.report.answer.Answer.winner`, by number."""
    objective: str
    value: float | None
    """The winner's objective."""
    gain: Gain | None
    last_ended_at: str | None
    """When its last trial ended; ISO 8601, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """One trial in full."""

    sweep: str
    folder: Path
    fidelity: str
    """As :attr:`autotune.report.answer.Answer.fidelity`."""
    outcome: str
    """``feasible``, ``infeasible``, or the state of a trial that failed."""
    record: TrialRecord
    changes: tuple[Change, ...]
    """Knobs that it sets otherwise than the baseline."""
    baseline: TrialRecord | None
    gain: Gain | None
    """Against the baseline."""
    steps: Sequence[StepRecord]
    """Of its last job."""
    log_path: Path | None
    """What its job printed; with a job restarted in place, the file of the trial that launched
    it."""
    log_shared_with: int | None
    """The last trial that wrote to this log; None: it ends with this trial."""
    log_tail: Sequence[str]


def overview(data: SweepData) -> SweepLine:
    """Return a sweep on one line."""
    found = answer(data)
    return SweepLine(
        sweep=found.sweep,
        folder=data.folder,
        is_running=found.is_running,
        fidelity=found.fidelity,
        num_finished=found.num_finished,
        num_trials=found.num_trials,
        verdict=found.verdict,
        winner=found.winner.number if found.winner is not None else None,
        objective=found.objective,
        value=found.winner.value(found.objective) if found.winner is not None else None,
        gain=found.gain,
        last_ended_at=max((record.ended_at for record in data.trials), default=None),
    )


def view_trial(data: SweepData, number: int, *, log_lines: int = LOG_TAIL_LINES) -> TrialView:
    """Return everything known of one trial.

    Raises:
        BadInputError: No trial of that number has ended.
    """
    record = data.trial(number)
    log_path = data.log_path(number)
    return TrialView(
        sweep=data.config.name,
        folder=data.folder,
        fidelity=data.config.trial.fidelity,
        outcome=outcome(record),
        record=record,
        changes=changes(data, record),
        baseline=data.baseline,
        gain=gain(data, record),
        steps=data.last_attempt(number),
        log_path=log_path,
        log_shared_with=_last_writer(data, number),
        log_tail=tail(log_path, log_lines) if log_path is not None else [],
    )


def tail(path: Path, num_lines: int) -> list[str]:
    """Return the last lines of a text file without colours, secrets masked, long ones cut.

    What a progress bar wrote over itself counts as one line.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    text = _TERMINAL_CODES.sub("", redact(text)).rstrip("\r\n")
    lines = [line.rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
    return [shorten(line, MAX_LINE) for line in lines[-num_lines:]] if num_lines else []


def shorten(text: str, length: int) -> str:
    """Return a text that is not longer than ``length`` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _last_writer(data: SweepData, number: int) -> int | None:
    """Return the last trial that wrote to a trial's log, if it is a later one."""
    log = data.log_path(number)
    later = [r.number for r in data.trials if r.number > number and data.log_path(r.number) == log]
    return max(later, default=None)
