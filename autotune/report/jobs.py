"""How the trials' jobs were started, confirmed in fresh jobs, and recovered by rules, in words.

Runs in whatever process reports. Pure functions from records to lines. A trial that ran with a
recovery rule is not a trial of its setting: every report must say so beside its number.
"""

from collections.abc import Sequence

from autotune.measure.stats import median
from autotune.objective import Start, TrialRecord
from autotune.report.text import format_number

_STARTS = {
    Start.COLD: "in a fresh job",
    Start.ROLLOUT: "live with the rollout restarted",
    Start.ENGINE: "live with engines rebuilt",
    Start.HOT: "live with engines kept",
}


TERMS = {
    "cold": "a job in fresh processes: the start of a sweep's first trial, of every job of a proof",
    "engine": "start of a trial in the live job of the trial before it, training engines rebuilt",
    "hot": "start of a trial in the live job of the trial before it, engines kept: weights, "
    "optimizer and settings put back",
    "rollout": "start of a trial in the live job of the trial before it, the rollout's servers "
    "started again, training engines kept or rebuilt",
    "pair": "a cold job of a setting and one of the baseline in the same block; it gives one ratio",
    "interleaved": "the blocks' jobs run in turn, every other block in reverse (baseline, setting, "
    "setting, baseline, ...), so that the slow drift of a machine meets all alike",
}
"""Words of the reports -> what they mean."""


def start_legend() -> str:
    """Return what the kinds of start mean, on one line."""
    return "; ".join(f"{start.value}: {TERMS[start.value]}" for start in Start)


def startup_line(records: Sequence[TrialRecord]) -> str:
    """Return what a start took, by its kind; empty when none is known."""
    parts = []
    for start, words in _STARTS.items():
        values = [
            value
            for record in records
            if record.start is start and (value := record.metrics.get("startup_s")) is not None
        ]
        if values:
            parts.append(f"{format_number(median(values))} s {words} ({len(values)})")
    return f"Start-up (median): {', '.join(parts)}." if parts else ""


def repeated_lines(records: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each trial whose first word was not taken for its last."""
    lines = []
    for record in records:
        lines += [
            f"trial {record.number}: {job.state.value} {_STARTS[job.start]} "
            f"({job.cause}), run again: {record.as_asked().state.value}"
            for job in record.other_jobs
            if not job.rule and not _is_asked(record, job.cause)
        ]
    return lines


def recovered_lines(records: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each trial that a recovery rule was tried with."""
    lines = []
    for record in records:
        if record.recovery is not None:
            asked = record.recovery.asked
            lines.append(
                f"trial {record.number}: {asked.state.value} as asked, ran with the rule "
                f"{record.recovery.rule}"
            )
        lines += [
            f"trial {record.number}: {record.state.value}; the rule {job.rule} did not help: "
            f"{job.state.value} ({job.cause})"
            for job in record.other_jobs
            if job.rule
        ]
    return lines


def _is_asked(record: TrialRecord, cause: str) -> bool:
    """Whether a job is the one that a recovery rule answered to."""
    return record.recovery is not None and record.recovery.asked.cause == cause
