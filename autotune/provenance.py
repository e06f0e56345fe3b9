"""Where exported settings come from: the comment block of an export.

Runs in the driver. Pure functions from records to text. The block is for a person; its last line is
for a program, see :mod:`autotune.claim`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.claim import claim_line
from autotune.knobs import KNOBS
from autotune.objective import TrialRecord, TrialState
from autotune.report.answer import production_command
from autotune.report.by_itself import effect_of
from autotune.report.reading import SweepData
from autotune.report.text import (
    estimate_text,
    fidelity_note,
    format_value,
    pairs_text,
    plural,
    ratio_text,
)
from autotune.settings import SweepConfig
from autotune.verification import CandidateResult, Decision, Estimate, Verification


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The setting that is exported, and what supports it."""

    record: TrialRecord
    """The trial that had it."""
    baseline: TrialRecord
    verification: Verification | None
    candidate: CandidateResult | None
    """What the verification found about it; None where it was not verified."""
    doubts: Sequence[str]
    """Why it is not proven, as sentences; empty where it is."""

    @property
    def gain_ratio(self) -> Estimate | None:
        """The verified gain."""
        return self.candidate.gain_ratio if self.candidate is not None else None


def header(data: SweepData, choice: Choice, folder: Path) -> list[str]:
    """Return the provenance block, without ``#``, of files that are written to a folder."""
    versions = data.versions
    commit = f", commit {versions['autotune-commit']}" if "autotune-commit" in versions else ""
    return [
        f"Settings for verl, found by verl-autotune {versions.get('verl-autotune', '')}{commit}: "
        f"sweep '{data.config.name}', trial {choice.record.number}.",
        "",
        *verdict_lines(choice, data.config),
        "",
        "Constraints:",
        *constraint_lines(data, choice),
        "",
        *_hardware_lines(data, choice),
        "Versions: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + ".",
        "",
        f"Run it: {production_command(folder)}",
        "(with verl-autotune installed where the job needs its plug-ins)",
    ]


def verdict_lines(choice: Choice, config: SweepConfig) -> list[str]:
    """Say how much better the setting is, how sure that is, and what the trials measured."""
    objective, note = config.objective.metric, fidelity_note(config.trial.fidelity)
    gain, candidate = choice.gain_ratio, choice.candidate
    lines = []
    if choice.doubts:
        lines.append("UNPROVEN, exported with --allow-unproven:")
        lines += [f"  {doubt}" for doubt in choice.doubts]
    if gain is not None and candidate is not None and choice.verification is not None:
        metric = choice.verification.objective
        lines.append(
            f"{'Verified' if choice.doubts else 'PROVEN'}: {ratio_text(gain.value)} times the base "
            f"job in {metric}, 95 % interval {ratio_text(gain.low)} to {ratio_text(gain.high)}, "
            f"from {pairs_text(gain.num_jobs)}."
        )
        for name, measured in (
            ("base job", choice.verification.baseline),
            ("this setting", candidate.objective),
        ):
            lines.append(f"  {name}: {estimate_text(metric, measured)}")
    before, after = choice.baseline.value(objective), choice.record.value(objective)
    lines.append(
        f"In the sweep, one job each{f' ({note})' if note else ''}: "
        f"base job {format_value(objective, before)}, trial {choice.record.number} "
        f"{format_value(objective, after)}."
    )
    return lines


def constraint_lines(data: SweepData, choice: Choice) -> list[str]:
    """Say what each constraint measured, beside its limit and the base job's own value."""
    lines = []
    checks = {check.metric: check for check in choice.candidate.constraints} if (
        choice.candidate is not None
    ) else {}  # fmt: skip
    for constraint in data.config.constraints:
        name, limit = constraint.metric, format_value(constraint.metric, constraint.max)
        check = checks.get(name)
        if check is not None:
            reason = f" ({check.absent})" if check.measured is None else ""
            lines.append(
                f"  {name}: {estimate_text(name, check.measured)}{reason}, limit {limit}; base job "
                f"{estimate_text(name, check.baseline)}"
            )
            continue
        own, base = choice.record.metrics.get(name), choice.baseline.metrics.get(name)
        reason = f" ({choice.record.absent[name]})" if name in choice.record.absent else ""
        lines.append(
            f"  {name}: {format_value(name, own)}{reason}, limit {limit}; base job "
            f"{format_value(name, base)}"
        )
    return lines


def changes(
    choice: Choice, trials: Sequence[TrialRecord], objective: str
) -> dict[str, tuple[str, ...]]:
    """Return verl key -> what is said of its change: the knob, was, is, and the measured effect."""
    said: dict[str, tuple[str, ...]] = {}
    setting, base = choice.record.setting, choice.baseline.setting
    for name, value in setting.items():
        if value == base[name]:
            continue
        effect = _effect(name, choice, trials, objective)
        for key in KNOBS[name].keys:
            said[key] = (f"tuned: {name} was {_plain(base[name])}, is {_plain(value)}; {effect}",)
    return said


def claim_of(data: SweepData, choice: Choice) -> str:
    """Return the line that a program reads, see :mod:`autotune.claim`."""
    gain, verification = choice.gain_ratio, choice.verification
    objective = data.config.objective.metric
    if gain is not None and verification is not None:
        objective = verification.objective
    return claim_line(
        sweep=data.config.name,
        trial=choice.record.number,
        objective=objective,
        proven=not choice.doubts,
        gain_ratio=None if gain is None else [gain.low, gain.value, gain.high],
    )


def doubts_of(
    record: TrialRecord, verification: Verification | None, candidate: CandidateResult | None
) -> list[str]:
    """Return why a setting is not proven, as sentences; none where it is."""
    found = []
    if not record.feasible:
        is_complete = record.state is TrialState.COMPLETE
        cause = "it breaks a constraint" if is_complete else record.cause
        found.append(f"Trial {record.number} is not feasible: {cause}.")
    if verification is None:
        found.append("It was measured in one job and never compared with the base job again.")
    elif candidate is None:
        found.append("The verification compared other settings.")
    elif candidate.decision is not Decision.PROVEN:
        decision = candidate.decision.value.replace("_", " ")
        found.append(f"The verification says: {decision}. {candidate.reason}")
    return found


def _effect(
    knob: str, choice: Choice, trials: Sequence[TrialRecord], objective: str
) -> str:
    """Say what a knob did by itself, from two trials of the sweep that differ in nothing else."""
    found = effect_of(knob, choice.record, choice.baseline, trials, objective)
    if found is None:
        return "not measured by itself"
    return (
        f"by itself {ratio_text(found.ratio)} times in {objective} (trial {found.after.number} "
        f"against {found.before.number}, one job each)"
    )


def _hardware_lines(data: SweepData, choice: Choice) -> list[str]:
    resources, links = data.config.resources, data.calibration
    device = links.device_name if links is not None else resources.device
    verified = ""
    if choice.verification is not None and choice.candidate is not None:
        verified = f", verified {choice.verification.ended_at[:10]},"
    lines = [
        f"Measured {choice.record.ended_at[:10]}{verified} on {plural(resources.nodes, 'node')} x "
        f"{resources.ranks_per_node} {device}, world size {resources.num_ranks}."
    ]
    if links is None:
        return [*lines, "Links: not calibrated."]
    gather = links.constants.all_gather
    return [
        *lines,
        f"Links ({links.backend}): all-gather {gather.bandwidth_bytes_per_s / 1e9:.3g} GB/s "
        f"after {gather.latency_s * 1e6:.3g} us, calibrated {links.measured_at[:10]}.",
    ]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
