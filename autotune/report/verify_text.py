"""A verification as text: one line a job while it runs, and what it found.

Runs in the driver. Pure functions from records to text.
"""

from collections.abc import Mapping
from typing import Any

from autotune.objective import BASELINE, TrialRecord, TrialState
from autotune.report.text import (
    device_word,
    estimate_text,
    format_number,
    format_value,
    interval_text,
    plural,
)
from autotune.settings import SweepConfig
from autotune.verification import CandidateResult, Decision, Estimate, Verification

_WORDS = {
    Decision.PROVEN: "Proven faster",
    Decision.NOT_PROVEN: "Not proven",
    Decision.WORSE: "Worse",
}


def job_text(record: TrialRecord, config: SweepConfig) -> str:
    """Return what one cold job measured, on one line."""
    if record.state is not TrialState.COMPLETE:
        return f"failed ({record.state.value}): {record.cause}"
    objective = config.objective.metric
    limits = [
        f"{limit.metric} {format_value(limit.metric, record.value(limit.metric))}"
        for limit in config.constraints
    ]
    return ", ".join([format_value(objective, record.value(objective)), *limits])


def setting_name(trial: int, *, is_file: bool = False) -> str:
    """Return what a verification calls a setting: of one of the sweep's trials, or of a file."""
    if trial == BASELINE:
        return "baseline"
    return "the file's setting" if is_file else f"trial {trial}"


def knowledge_text(candidate: CandidateResult, found: Verification) -> str:
    """Return what is known of a setting, how well against what was asked, and why it ended."""
    word, gain = _WORDS[candidate.decision], candidate.gain_ratio
    if gain is None:
        return f"{word}; no gain was measured: {found.why_ended}."
    return (
        f"{word}; its interval is {100 * gain.width_ratio:.0f} % of the gain wide, "
        f"{100 * found.interval_width_ratio:.0f} % was asked: {found.why_ended}."
    )


def hours_text(found: Verification, device: str) -> str:
    """Return what the jobs of a verification cost."""
    hours = format_number(found.gpu_seconds / 3600)
    return f"{hours} {device_word(device)}-hours in {plural(found.num_jobs, 'cold job')}"


def verification_text(found: Verification, device: str) -> str:
    """Return the outcome: each setting's decision, gain and constraints, and what it cost.

    Args:
        found: The outcome.
        device: ``resources.device`` of the sweep.
    """
    what = found.sweep if found.file is None else f"{found.file} on the base job of {found.sweep}"
    lines = [
        f"Verified {what}: {plural(found.num_jobs, 'cold job')} of whole steps, interleaved.",
        f"  base job: {estimate_text(found.objective, found.baseline)}",
    ]
    for candidate in found.candidates:
        lines += _candidate_lines(candidate, found)
    if found.file is not None:
        lines += [f"  {claim_text(found.claim, found.candidates[0], found.objective)}"]
    return "\n".join([*lines, f"  cost: {hours_text(found, device)}."])


def claim_text(
    claim: Mapping[str, Any] | None, candidate: CandidateResult, objective: str
) -> str:
    """Say whether the gain that a file states comes out again.

    Args:
        claim: Of the file, see :func:`autotune.claim.read_claim`.
        candidate: What was measured of its setting.
        objective: What was compared.
    """
    if claim is None or claim["gain_ratio"] is None:
        return "The file states no gain to hold this against."
    low, value, high = claim["gain_ratio"]
    claimed = Estimate(value=value, low=low, high=high, num_jobs=0)
    unproven = "" if claim["proven"] else ", unproven,"
    stated = f"The file claims {interval_text(claimed)} times{unproven} in {claim['objective']}"
    gain = candidate.gain_ratio
    if claim["objective"] != objective:
        return f"{stated}; {objective} was compared here, so that it stays open."
    if gain is None:
        return f"{stated}; no gain was measured here."
    stated = f"{stated}, measured here {interval_text(gain)}"
    if gain.high < low:
        return f"{stated}: it does not come out here, the gain is smaller."
    if gain.low > high:
        return f"{stated}: the gain is larger here."
    if gain.low <= 1:
        return f"{stated}: the intervals overlap, but here no gain is proven."
    if not candidate.is_proven:
        return f"{stated}: it comes out again, but the setting is not proven here."
    return f"{stated}: it comes out again."


def _candidate_lines(candidate: CandidateResult, found: Verification) -> list[str]:
    decision = candidate.decision.value.replace("_", " ").upper()
    is_file = found.file is not None
    mark = ", the winner" if candidate.number == found.winner and not is_file else ""
    lines = [
        f"  {setting_name(candidate.number, is_file=is_file)}: {decision}{mark}. "
        f"{candidate.reason}",
        f"    {knowledge_text(candidate, found)}",
        f"    {found.objective}: {estimate_text(found.objective, candidate.objective)}",
    ]
    for check in candidate.constraints:
        reason = f" ({check.absent})" if check.measured is None else ""
        lines.append(
            f"    {check.metric}: {estimate_text(check.metric, check.measured)}{reason}, limit "
            f"{format_value(check.metric, check.max)}, {check.verdict.value.replace('_', ' ')}; "
            f"base job {estimate_text(check.metric, check.baseline)}"
        )
    return lines
