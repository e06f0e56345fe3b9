"""A verification as text: one line a job while it runs, and what it found.

Runs in the driver. Pure functions from records to text.
"""

from collections.abc import Sequence

from autotune.objective import BASELINE, TrialState
from autotune.report.text import device_word, format_number, format_value, plural
from autotune.settings import SweepConfig
from autotune.verification import CandidateResult, Decision, Estimate, Verification, VerifyJob

_WORDS = {
    Decision.PROVEN: "Proven faster",
    Decision.NOT_PROVEN: "Not proven",
    Decision.WORSE: "Worse",
}


def job_line(job: VerifyJob, num_done: int, max_jobs: int, config: SweepConfig) -> str:
    """Return what one cold job measured, on one line."""
    name = setting_name(job.trial)
    record = job.record
    if record.state is not TrialState.COMPLETE:
        measured = f"failed ({record.state.value}): {record.cause}"
    else:
        metrics = [config.objective.metric, *(limit.metric for limit in config.constraints)]
        values = [format_value(metric, record.value(metric)) for metric in metrics]
        limits = [
            f"{metric} {value}" for metric, value in zip(metrics[1:], values[1:], strict=True)
        ]
        measured = ", ".join([values[0], *limits])
    return f"verify job {num_done} of at most {max_jobs}, {name}: {measured}"


def setting_name(trial: int) -> str:
    """Return what a verification calls the setting of one of the sweep's trials."""
    return "baseline" if trial == BASELINE else f"trial {trial}"


def knowledge_text(candidate: CandidateResult, found: Verification) -> str:
    """Return what is known of a setting, how well against what was asked, and why it ended."""
    word, gain = _WORDS[candidate.decision], candidate.gain_ratio
    if gain is None:
        return f"{word}; no gain was measured: {found.why_ended}."
    return (
        f"{word}; its size is known to {100 * gain.width_ratio:.0f} % of the gain, "
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
    lines = [
        f"Verified {found.sweep}: {plural(found.num_jobs, 'cold job')} of whole steps, "
        "interleaved.",
        f"  base job: {_measured(found.objective, found.baseline)}",
    ]
    for candidate in found.candidates:
        lines += _candidate_lines(candidate, found)
    lines += _claim_lines(found)
    return "\n".join([*lines, f"  cost: {hours_text(found, device)}."])


def _candidate_lines(candidate: CandidateResult, found: Verification) -> list[str]:
    decision = candidate.decision.value.replace("_", " ").upper()
    mark = ", the winner" if candidate.number == found.winner else ""
    lines = [
        f"  trial {candidate.number}: {decision}{mark}. {candidate.reason}",
        f"    {knowledge_text(candidate, found)}",
        f"    {found.objective}: {_measured(found.objective, candidate.objective)}",
    ]
    for check in candidate.constraints:
        own = f"n/a ({check.absent})" if check.measured is None else _measured(
            check.metric, check.measured
        )  # fmt: skip
        lines.append(
            f"    {check.metric}: {own}, limit {format_value(check.metric, check.max)}, "
            f"{check.verdict.value.replace('_', ' ')}; base job "
            f"{_measured(check.metric, check.baseline)}"
        )
    return lines


def _claim_lines(found: Verification) -> Sequence[str]:
    if found.claim is None or not found.candidates:
        return ()
    claimed, gain = found.claim["gain_ratio"], found.candidates[0].gain_ratio
    if claimed is None or gain is None:
        return ("  The file states no gain to hold this against.",) if claimed is None else ()
    low, value, high = claimed
    comes_out = gain.low <= high and low <= gain.high
    verdict = "comes out again" if comes_out else "does not come out here"
    return (
        f"  The file claims {value:.3g} [{low:.3g}, {high:.3g}], measured here {gain.value:.3g} "
        f"[{gain.low:.3g}, {gain.high:.3g}]: it {verdict}.",
    )


def _measured(metric: str, measured: Estimate | None) -> str:
    if measured is None:
        return "n/a"
    return (
        f"{format_value(metric, measured.value)} [{format_value(metric, measured.low)}, "
        f"{format_value(metric, measured.high)}]"
    )
