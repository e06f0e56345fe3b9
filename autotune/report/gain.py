"""How much better a trial is than the baseline: by a verification, or in the sweep's own jobs.

Runs in whatever process reports. Pure functions from :class:`~autotune.report.reading.SweepData`. A
verification's interval is over cold jobs; without one it is a bootstrap over the measured steps of
one job each, which says less: jobs differ too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.metrics import STEP_KEYS
from autotune.objective import BASELINE, StepKind, StepRecord, TrialRecord, is_maximised
from autotune.report.reading import SweepData
from autotune.report.text import pairs_text
from autotune.verification import CandidateResult

CONFIDENCE = 0.95
_RESAMPLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much better the winner is than the baseline."""

    ratio: float
    """Winner / baseline of the objective, or baseline / winner where less is better: above 1 is
    better."""
    low: float | None
    """Lower end of the 95 % interval; None with its reason in ``basis``."""
    high: float | None
    basis: str
    """What the interval covers, in words."""
    baseline: float
    """The baseline's value of ``metric``, of the jobs that the ratio is made of."""
    winner: float
    """The winner's value of ``metric``, of the same jobs."""
    is_verified: bool
    """Whether these are a verification's cold jobs, not those of the sweep."""
    metric: str
    """What is compared: the objective, or, where trials replay their rollout, what the verification
    compares in its place."""


def gain(data: SweepData, winner: TrialRecord | None) -> Gain | None:
    """Return a trial's gain over the baseline; None where there is nothing to set it against.

    A verification's word counts before that of the sweep's own jobs.
    """
    return _verified_gain(data, winner) or sweep_gain(data, winner)


def sweep_gain(data: SweepData, winner: TrialRecord | None) -> Gain | None:
    """Return a trial's gain over the baseline in the sweep's own jobs; None as :func:`gain`."""
    objective = data.config.objective.metric
    reference = data.baseline.value(objective) if data.baseline is not None else None
    value = winner.value(objective) if winner is not None else None
    if winner is None or is_baseline(data, winner) or not reference or not value:
        return None
    better, worse = (value, reference) if is_maximised(objective) else (reference, value)
    interval = step_interval(
        data.last_attempt(winner.number), data.last_attempt(0), objective=objective
    )
    basis = "scatter of the measured steps within one job each; jobs differ too"
    low, high = interval or (None, None)
    return Gain(
        ratio=better / worse,
        low=low,
        high=high,
        basis="one value a trial" if interval is None else basis,
        baseline=reference,
        winner=value,
        is_verified=False,
        metric=objective,
    )


def _verified_gain(data: SweepData, winner: TrialRecord | None) -> Gain | None:
    verified = verified_result(data, winner)
    if verified is None or verified.gain_ratio is None:
        return None
    assert data.verification is not None and data.verification.baseline is not None
    assert verified.objective is not None
    estimate, metric = verified.gain_ratio, data.verification.objective
    basis = pairs_text(estimate.num_jobs)
    is_same = metric == data.config.objective.metric
    return Gain(
        ratio=estimate.value,
        low=estimate.low,
        high=estimate.high,
        basis=basis if is_same else f"{basis}, in {metric} of whole steps",
        baseline=data.verification.baseline.value,
        winner=verified.objective.value,
        is_verified=True,
        metric=metric,
    )


def step_interval(
    winner: Sequence[StepRecord], baseline: Sequence[StepRecord], *, objective: str, seed: int = 0
) -> tuple[float, float] | None:
    """Return a percentile bootstrap interval of the ratio of the two medians over measured steps.

    None unless both have at least two measured steps that report the objective.
    """
    key = STEP_KEYS.get(objective)
    samples = [_measured(steps, key) for steps in (winner, baseline)] if key else [[], []]
    if min(len(values) for values in samples) < 2:
        return None
    rng = np.random.default_rng(seed)
    medians = [
        np.median(
            np.asarray(values)[rng.integers(len(values), size=(_RESAMPLES, len(values)))], axis=1
        )
        for values in samples
    ]
    ratios = medians[0] / medians[1] if is_maximised(objective) else medians[1] / medians[0]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


def is_baseline(data: SweepData, record: TrialRecord) -> bool:
    """Say whether a trial ran the base job's own setting, as trial 0 or as a repetition of it."""
    return record.number == BASELINE or record.setting == data.baseline_setting


def verified_result(data: SweepData, record: TrialRecord | None) -> CandidateResult | None:
    """Return what a verification found about a trial's setting; None where it did not run it."""
    if data.verification is None or record is None:
        return None
    return data.verification.of(record.number)


def _measured(steps: Sequence[StepRecord], key: str) -> list[float]:
    values = [step.metrics.get(key) for step in steps if step.kind is StepKind.MEASURED]
    return [float(value) for value in values if isinstance(value, int | float)]
