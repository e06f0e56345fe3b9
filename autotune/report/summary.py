"""The answer of a sweep as text: the winner against the baseline, its constraints, times, failures.

Runs in whatever process reports. Pure functions from the answer to text; ``autotune sweep`` ends
with it and ``autotune report`` prints it. Start-up and step time are stated apart: the first is
paid once a trial, the second is what was tuned.
"""

import shlex
from collections import Counter
from dataclasses import dataclass

from autotune.report.answer import Answer, LimitStatus, Verdict
from autotune.report.beside import disturbance_line
from autotune.report.domain_ends import domain_end_lines
from autotune.report.gain import Gain
from autotune.report.jobs import recovered_lines, repeated_lines, startup_line
from autotune.report.proof import begun_jobs, begun_line
from autotune.report.reading import SweepData
from autotune.report.repeats import has_repeats, repetitions_line, settings_text
from autotune.report.text import (
    changed_knobs,
    device_word,
    fidelity_note,
    format_number,
    format_value,
    is_failed,
    knob_text,
    plural,
    range_text,
    ratio_text,
)
from autotune.store import BEST_FILE

STEP_TIME = ("throughput_tokens_per_s_per_gpu", "step_s")
"""Metrics of the whole step, whose gain is what a production run saves."""
CLAIMS = {
    Verdict.PROVEN: "Proven: measured again against the baseline in fresh jobs.",
    Verdict.NOT_PROVEN: "Not proven: measured again, and the interval leaves it open.",
    Verdict.WORSE: "Worse: measured again, and not as good as the baseline: change nothing.",
    Verdict.NOT_VERIFIED: "Not verified: the best of many, not yet compared in fresh jobs.",
    Verdict.BASELINE_IS_BEST: "Nothing to change: no feasible trial beats the baseline.",
    Verdict.NOTHING_FEASIBLE: "No trial is feasible.",
    Verdict.NOTHING_FINISHED: "No trial has finished yet.",
}


PAIRS_NOTE = (
    "The proof's ratio is the geometric mean over its pairs, not the quotient of the two means."
)
TWO_KINDS_OF_JOBS = (
    "The sweep's live jobs and the proof's cold jobs differ (another time, fresh processes): "
    "compare ratios within each only."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """A command, and what it is for."""

    title: str
    command: str


def summary_text(answer: Answer, data: SweepData, *, with_next: bool = True) -> str:
    """Return the answer in lines that read from the top down.

    Args:
        answer: Of ``data``.
        data: The sweep.
        with_next: Whether the last line names what follows, by commands for the sweep's folder.
    """
    lines = [counts_line(answer, data)]
    note = fidelity_note(answer.fidelity)
    if note:
        lines.append(f"Trials are {note}; only the verification runs whole steps.")
    lines += [*_headline(answer, data), *_change_lines(answer), *front_lines(answer, data)]
    lines += domain_end_lines(data, answer.winner)
    if answer.limits:
        lines += ["Constraints:", *(f"  {limit_text(limit)}" for limit in answer.limits)]
        lines.append(binding_text(answer))
    lines += _time_lines(answer, data) + _job_lines(data) + _failure_lines(data)
    last = [disturbance_line(data), begun_line(data)]
    last += [next_text(answer, data)] if with_next else []
    return "\n".join([*lines, *(line for line in last if line)])


def next_text(answer: Answer, data: SweepData) -> str:
    """Say how the winner gets into production; empty where nothing is to be done, or not yet."""
    step = next_step(answer, data)
    return f"{step.title}: {step.command}" if step is not None else ""


def next_step(answer: Answer, data: SweepData) -> NextStep | None:
    """Return what brings the winner into production; None where nothing does, or not yet."""
    if answer.production is not None:
        return NextStep(title="Production", command=answer.production)
    if answer.winner is None or answer.is_running or begun_jobs(data):
        return None
    folder = shlex.quote(str(data.folder))
    if answer.verdict is Verdict.PROVEN:
        other = ""
        if answer.exported is not None:
            other = f" ({BEST_FILE} there holds the setting of trial {answer.exported})"
        return NextStep(
            title=f"Not exported yet{other}; for production", command=f"autotune export {folder}"
        )
    if answer.verdict is Verdict.NOT_VERIFIED:
        return NextStep(
            title="To prove it before production", command=f"autotune verify {folder}"
        )
    if answer.verdict is Verdict.NOT_PROVEN and data.verification is not None:
        more = 2 * data.verification.max_jobs
        return NextStep(
            title="To decide it with more jobs",
            command=f"autotune verify {folder} verify.max_jobs={more}",
        )
    return None


def counts_line(answer: Answer, data: SweepData) -> str:
    """Return how many trials ended how, and what they cost."""
    counts = {cost.outcome: cost.num_trials for cost in answer.costs}
    others = [counts.get(name, 0) for name in ("feasible", "infeasible", "stopped")]
    stopped = f"{counts['stopped']} stopped early, " if "stopped" in counts else ""
    lost = f", {counts['infrastructure']} lost" if "infrastructure" in counts else ""
    running = ", running" if answer.is_running else ""
    settings = f" ({settings_text(data.trials)})" if has_repeats(data.trials) else ""
    return (
        f"Sweep {answer.sweep}{running}: {answer.num_finished} of {answer.num_trials} trials "
        f"finished{settings}: {counts.get('feasible', 0)} feasible, {counts.get('infeasible', 0)} "
        f"infeasible, {stopped}{answer.num_finished - sum(others)} failed{lost}; "
        f"{hours_text(answer, data)}."
    )


def hours_text(answer: Answer, data: SweepData) -> str:
    """Return what the sweep cost, its proof apart."""
    word = f"{gpu_word(data)}-hours"
    total = f"{format_number(sum(cost.gpu_hours for cost in answer.costs))} {word}"
    if answer.proof_gpu_hours is None:
        return total
    return f"{total}, and {format_number(answer.proof_gpu_hours)} for the proof"


def gpu_word(data: SweepData) -> str:
    """Return what a rank holds."""
    return device_word(data.config.resources.device)


def gain_text(gain: Gain) -> str:
    """Return the gain with its interval."""
    ratio = ratio_text(gain.ratio)
    if gain.low is None or gain.high is None:
        return f"{ratio} times the baseline (no interval: {gain.basis})"
    interval = f"95 % interval {ratio_text(gain.low)} to {ratio_text(gain.high)}"
    return f"{ratio} times the baseline ({interval}: {gain.basis})"


def hours_line(gain: Gain, word: str) -> str:
    """Return what 100 hours of the base job become; empty where the gain is none of a step's time.

    Args:
        gain: Of the winner.
        word: What hours are counted in, see :func:`gpu_word`.
    """
    if gain.metric not in STEP_TIME or gain.ratio <= 1:
        return ""
    ends = ""
    if gain.low is not None and gain.high is not None:
        ends = f" ({100 / gain.high:.0f} to {100 / gain.low:.0f})"
    return f"100 {word}-hours of the base job become {100 / gain.ratio:.0f}{ends}."


def source_text(limit: LimitStatus) -> str:
    """Return which jobs a constraint's value is of."""
    if limit.num_jobs is None:
        return "in the sweep's job"
    return f"in {plural(limit.num_jobs, 'cold job')}"


def limit_text(limit: LimitStatus) -> str:
    """Return a constraint's value against its limit, in words."""
    bound = format_value(limit.metric, limit.max)
    if limit.value is None or limit.headroom_ratio is None:
        return f"{limit.metric}: not measured ({limit.reason}), limit {bound}"
    room = f"head-room {100 * limit.headroom_ratio:.0f} %"
    state = "BROKEN" if limit.headroom_ratio < 0 else room
    value = format_value(limit.metric, limit.value)
    if limit.low is not None and limit.high is not None:
        value += f" ({range_text(limit.metric, limit.low, limit.high)}, {source_text(limit)})"
    floor = format_value(limit.metric, limit.baseline)
    return f"{limit.metric}: {value} of {bound}, {state}; baseline {floor}"


def binding_text(answer: Answer) -> str:
    """Return which constraint held back a better setting."""
    bound = next((limit for limit in answer.limits if limit.metric == answer.binding), None)
    if bound is not None:
        rivals = "better trials" if answer.winner is not None else "trials"
        return f"Binding: {bound.metric}, which {_count(bound.num_refused, rivals)}."
    measured = [limit for limit in answer.limits if limit.headroom_ratio is not None]
    closest = min(measured, key=lambda limit: limit.headroom_ratio or 0.0, default=None)
    if closest is None:
        return "Binding: unknown, no constraint was measured."
    return f"Binding: none, no better trial was refused; the closest limit is {closest.metric}."


def _count(number: int, plural: str) -> str:
    """Return "1 trial breaks" or "2 trials break"."""
    return f"1 {plural[:-1]} breaks" if number == 1 else f"{number} {plural} break"


def _headline(answer: Answer, data: SweepData) -> list[str]:
    shown = answer.shown
    if shown is None:
        return [CLAIMS[answer.verdict]]
    value = format_value(answer.objective, shown.value(answer.objective))
    if answer.winner is None:
        knobs = changed_knobs(shown.setting, data.baseline_setting)
        return [
            CLAIMS[answer.verdict],
            f"Least infeasible: trial {shown.number}, {answer.objective} {value} [{knobs}]",
        ]
    title = "Best of the sweep" if answer.verdict is Verdict.WORSE else "Winner"
    line = f"{title}: trial {shown.number}, {answer.objective} {value}"
    repeated = [text] if (text := repetitions_line(answer)) else []
    if answer.verdict is Verdict.BASELINE_IS_BEST:
        return [f"{line}: the baseline itself.", *repeated, CLAIMS[answer.verdict]]
    if answer.gain is None:
        return [f"{line}; the baseline was not measured.", *repeated, CLAIMS[answer.verdict]]
    in_sweep = []
    if answer.gain.is_verified:
        assert answer.baseline is not None
        own = format_value(answer.objective, answer.baseline.value(answer.objective))
        ratio = ""
        if answer.sweep_gain is not None:
            ratio = f", {ratio_text(answer.sweep_gain.ratio)} times"
        in_sweep = [f"In the sweep's own jobs: {value}, baseline {own}{ratio}. {TWO_KINDS_OF_JOBS}"]
        in_sweep.append(PAIRS_NOTE)
        line = f"{title}: trial {shown.number}, {answer.gain.metric} "
        line += format_value(answer.gain.metric, answer.gain.winner)
    return [
        f"{line}, {gain_text(answer.gain)}.",
        *repeated,
        _baseline_line(answer, answer.gain),
        CLAIMS[answer.verdict],
        *in_sweep,
    ]


def _baseline_line(answer: Answer, gain: Gain) -> str:
    assert answer.baseline is not None
    value = format_value(gain.metric, gain.baseline)
    note = "" if answer.baseline.feasible else ", which breaks a constraint itself"
    return f"Baseline: {value}{note}."


def front_lines(answer: Answer, data: SweepData) -> list[str]:
    """Return the Pareto front of two objectives, one trial a line; none for one objective."""
    if answer.trade_off is None:
        return []
    lines = [f"Pareto front of {answer.objective} and {answer.trade_off}:"]
    for record in answer.front:
        values = [
            format_value(metric, record.value(metric))
            for metric in (answer.objective, answer.trade_off)
        ]
        knobs = changed_knobs(record.setting, data.baseline_setting)
        lines.append(f"  trial {record.number}: {', '.join(values)} [{knobs}]")
    return [*lines, f"  {front_note(answer)}"]


def front_note(answer: Answer) -> str:
    """Say what a Pareto front holds, and how the winner stands to it."""
    text = "No feasible setting beats one of these in both metrics"
    if answer.winner is None:
        return f"{text}."
    if answer.winner.number in [record.number for record in answer.front]:
        return f"{text}; trial {answer.winner.number} is the winner by {answer.objective} alone."
    return (
        f"{text}. Trial {answer.winner.number}, the winner, is not among them: it is chosen by "
        f"{answer.objective} alone, and a setting that was measured again goes before a faster one "
        "that was not."
    )


def _change_lines(answer: Answer) -> list[str]:
    if not answer.changes:
        return []
    width = max(len(change.knob) for change in answer.changes)
    return [
        "It changed:" if answer.verdict is Verdict.WORSE else "Change:",
        *(
            f"  {change.knob:<{width}}  {knob_text(change.was)} -> {knob_text(change.now)}"
            for change in answer.changes
        ),
    ]


def _time_lines(answer: Answer, data: SweepData) -> list[str]:
    """Return start-up and step time apart."""
    startup = startup_line(data.trials)
    lines = [startup] if startup else []
    is_replayed = answer.fidelity == "update"
    name, word = ("update_only_s", "Update-only step") if is_replayed else ("step_s", "Step")
    shown = {r.number: r.metrics.get(name) for r in (answer.baseline, answer.shown) if r}
    texts = [
        f"{format_number(value)} s ({'baseline' if number == 0 else f'trial {number}'})"
        for number, value in shown.items()
        if value is not None
    ]
    return lines + ([f"{word}: {', '.join(texts)}."] if texts else [])


def _job_lines(data: SweepData) -> list[str]:
    recovered, repeated = recovered_lines(data.trials), repeated_lines(data.trials)
    return [
        *(["Recovery rules:", *(f"  {line}" for line in recovered)] if recovered else []),
        *(["Run again:", *(f"  {line}" for line in repeated)] if repeated else []),
    ]


def _failure_lines(data: SweepData) -> list[str]:
    failed = [record for record in data.trials if is_failed(record)]
    counts = Counter(record.state for record in failed)
    return [
        f"{state.value}: {count} {'trial' if count == 1 else 'trials'}, "
        f"e.g. trial {example.number}: {example.cause}"
        for state, count in counts.items()
        if (example := next(record for record in failed if record.state is state))
    ]
