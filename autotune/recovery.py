"""What follows a job that ended: another job of the same trial, or the trial's end.

Runs in the trial actor. Pure functions. In this order:

1. Nobody's fault (a lost node, a full disk): the trial ends, and the searcher has it tried again.
2. A process of the job died for the first time in this trial: the same setting again, cold.
3. The job had started live: the same setting again, cold. A live job carries what earlier settings
   left (a fragmented allocator, a poisoned communicator), so its failure is not believed.
4. A recovery rule of the sweep file applies: the setting with the rule's knobs, cold, once. Never
   the baseline, which stands for the user's own settings.
5. The trial ends with its failure. A hang ends here at the latest: killed, marked, and the sweep
   goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.errors import BadInputError
from autotune.failure import Verdict
from autotune.knobs import KNOBS, Knob, KnobValue
from autotune.objective import Start, TrialState
from autotune.settings import RecoveryRuleConfig
from autotune.verl_bridge.job import Leaves
from autotune.verl_bridge.overrides import format_override

BASELINE = 0
MAX_JOBS = 4
"""Most jobs of one trial between two losses: the first, after a death, to confirm, by a rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRule:
    """A recovery rule that acts in a setting."""

    text: str
    """In words, e.g. ``nan: target_kl=0.05``."""
    overrides: list[str]


def is_repeated(verdict: Verdict, *, start: Start, deaths: int) -> bool:
    """Say whether the same setting is run again, cold, before its failure is believed.

    Args:
        verdict: How the job ended.
        start: How it was started.
        deaths: Earlier jobs of this trial that died.
    """
    if verdict.state is TrialState.INFRASTRUCTURE:
        return False
    return (verdict.has_died and deaths == 0) or start.is_live


def applies(
    rule: RecoveryRuleConfig, state: TrialState, peak_memory_ratio: float | None
) -> bool:
    """Say whether a rule answers to how a trial ended; its peak memory may be unmeasured."""
    if rule.when == "nan":
        return state is TrialState.NAN
    if rule.when == "hang":
        return state is TrialState.HANG
    is_above = (
        rule.above is not None
        and peak_memory_ratio is not None
        and state is TrialState.COMPLETE
        and peak_memory_ratio > rule.above
    )
    return state is TrialState.OUT_OF_MEMORY or is_above


def apply(
    rule: RecoveryRuleConfig, leaves: Leaves, swept: Mapping[str, KnobValue]
) -> AppliedRule | None:
    """Return what a rule changes in a job, or None when nothing of it acts there.

    Args:
        rule: A rule of the sweep file.
        leaves: The job's configuration, flattened.
        swept: The sweep's own knobs: those are the search's to turn.
    """
    changed = {
        name: value
        for name, value in rule.knobs.items()
        if name not in swept and _acts(KNOBS[name], value, leaves)
    }
    if not changed:
        return None
    written = {
        key: value
        for name, knob_value in changed.items()
        for key, value in KNOBS[name].to_overrides(knob_value, leaves).items()
    }
    knobs = ", ".join(f"{name}={format_value(value)}" for name, value in changed.items())
    return AppliedRule(
        text=f"{rule.when}: {knobs}",
        overrides=[
            format_override(key if key in leaves else f"++{key}", value)
            for key, value in written.items()
        ],
    )


def format_value(value: KnobValue) -> str:
    """Return a knob's value as YAML spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _acts(knob: Knob, value: KnobValue, leaves: Leaves) -> bool:
    if not knob.keys_in(leaves):
        return False
    if not all(requirement.holds(leaves) for requirement in knob.requires):
        return False
    try:
        return knob.from_config(leaves) != value
    except BadInputError:
        # Its roles have different values: one of them is not the rule's.
        return True


def first_rule(
    rules: Sequence[RecoveryRuleConfig], state: TrialState, peak_memory_ratio: float | None
) -> RecoveryRuleConfig | None:
    """Return the first rule that answers to how a trial ended."""
    return next((rule for rule in rules if applies(rule, state, peak_memory_ratio)), None)
