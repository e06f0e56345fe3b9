"""Whether settings are faster than the base job's own: the plan of cold jobs, when it may be looked
at them, and what they prove.

Runs in the driver. Pure functions over records. Jobs come in blocks that hold the baseline and each
candidate once, every other block in reverse (A B B A ...), so that the slow drift of a machine
meets all alike. A candidate is compared with the baseline of its own block; what a block gives is
one number, the logarithm of their ratio. :mod:`autotune.measure.sequential` says why jobs count and
steps do not, and when it may be looked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measure.sequential import error_of_look, planned_looks, t_interval
from autotune.objective import Constraint, TrialRecord, TrialState, is_maximised
from autotune.verification import ConstraintCheck, Decision, Estimate, Verdict, VerifyJob

BASELINE = 0
"""Number of the base job's own setting."""
ERROR = 0.05
"""Two-sided probability that any interval of one verification misses; faster by chance: half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a verification is going to do; fixed before its first job."""

    candidates: tuple[int, ...]
    """Trials whose settings are compared with the baseline."""
    max_jobs: int
    interval_width_ratio: float
    """A gain whose interval is narrower than this, relative to the gain, needs no more jobs."""

    @property
    def max_blocks(self) -> int:
        """Blocks that the jobs allow."""
        return self.max_jobs // (1 + len(self.candidates))


def order_of_block(block: int, candidates: Sequence[int]) -> list[int]:
    """Return the settings of one block in the order in which they run."""
    order = [BASELINE, *candidates]
    return order if block % 2 == 0 else order[::-1]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look says of one candidate."""

    gain_ratio: Estimate | None
    constraints: list[ConstraintCheck]
    decision: Decision
    reason: str

    def is_settled(self, interval_width_ratio: float) -> bool:
        """Say whether more jobs would change nothing that was asked."""
        if self.decision is Decision.WORSE:
            return True
        if self.gain_ratio is None:
            return False
        is_clear = all(check.verdict is not Verdict.UNCLEAR for check in self.constraints)
        return is_clear and self.gain_ratio.width_ratio <= interval_width_ratio


class Comparison:
    """Where a verification stands, derived from its jobs alone.

    Args:
        plan: What was planned.
        jobs: What has run, in order.
        objective: Metric that is compared.
        constraints: Limits that a setting must keep.
        is_over: Whether no job will follow although the plan would have more: the last look then
            takes what there is, with all the error probability that is left.
    """

    def __init__(
        self,
        plan: Plan,
        jobs: Sequence[VerifyJob],
        *,
        objective: str,
        constraints: Sequence[Constraint],
        is_over: bool = False,
    ) -> None:
        self._plan = plan
        self._jobs = list(jobs)
        self._objective = objective
        self._constraints = tuple(constraints)
        self.settled: dict[int, Finding] = {}
        """Candidates that need no more jobs."""
        self.open: dict[int, Finding] = {}
        """What the last look said of the others."""
        self._look()
        if is_over:
            self._last_look()

    @property
    def baseline_failure(self) -> str | None:
        """Why the base job itself cannot be measured."""
        return next(
            (
                f"the base job's own settings failed: {job.record.state.value}: {job.record.cause}"
                for job in self._jobs
                if job.trial == BASELINE and job.record.state is not TrialState.COMPLETE
            ),
            None,
        )

    def next_job(self) -> tuple[int, int] | None:
        """Return block and trial of the next job; None when no more is needed or allowed."""
        active = [number for number in self._plan.candidates if number not in self.settled]
        if not active or self.baseline_failure is not None:
            return None
        ran = {(job.block, job.trial) for job in self._jobs}
        for block in range(self._plan.max_blocks):
            for trial in order_of_block(block, self._plan.candidates):
                if (block, trial) not in ran and (trial in active or trial == BASELINE):
                    return block, trial
        return None

    def finding(self, number: int) -> Finding:
        """Return what is known of a candidate."""
        none_yet = Finding(None, [], Decision.NOT_PROVEN, "No planned look was reached.")
        return self.settled.get(number) or self.open.get(number) or none_yet

    def _look(self) -> None:
        """Replay the looks that the jobs allow, in order."""
        for number in self._plan.candidates:
            failure = self._failure_of(number)
            if failure is not None:
                self.settled[number] = Finding(None, [], Decision.WORSE, failure)
        self._looked_at = 0
        for pairs in planned_looks(self._plan.max_blocks):
            waiting = [number for number in self._plan.candidates if number not in self.settled]
            if not waiting or self._num_blocks(waiting) < pairs:
                return
            self._take(waiting, pairs, is_last=pairs == self._plan.max_blocks)

    def _last_look(self) -> None:
        """Look once more, at the blocks that ran since the last planned look."""
        waiting = [number for number in self._plan.candidates if number not in self.settled]
        pairs = self._num_blocks(waiting)
        if waiting and pairs > self._looked_at:
            self._take(waiting, pairs, is_last=True)

    def _take(self, waiting: Sequence[int], pairs: int, *, is_last: bool) -> None:
        error = error_of_look(
            pairs,
            before=self._looked_at,
            max_pairs=self._plan.max_blocks,
            error=ERROR / len(self._plan.candidates),
            is_last=is_last,
        )
        self._looked_at = pairs
        for number in waiting:
            finding = assess(
                self._records(BASELINE, pairs),
                self._records(number, pairs),
                objective=self._objective,
                constraints=self._constraints,
                error=error,
            )
            if finding.is_settled(self._plan.interval_width_ratio):
                self.settled[number] = finding
            else:
                self.open[number] = finding

    def _records(self, number: int, pairs: int) -> list[TrialRecord]:
        return [job.record for job in self._jobs if job.trial == number and job.block < pairs]

    def _num_blocks(self, waiting: Sequence[int]) -> int:
        """Return how many blocks, from the first on, hold the baseline and all that still count."""
        ran = {(job.block, job.trial) for job in self._jobs}
        block = 0
        while all((block, trial) in ran for trial in (BASELINE, *waiting)):
            block += 1
        return block

    def _failure_of(self, number: int) -> str | None:
        return next(
            (
                f"A cold job of it failed: {job.record.state.value}: {job.record.cause}."
                for job in self._jobs
                if job.trial == number and job.record.state is not TrialState.COMPLETE
            ),
            None,
        )


def assess(
    baseline: Sequence[TrialRecord],
    candidate: Sequence[TrialRecord],
    *,
    objective: str,
    constraints: Sequence[Constraint],
    error: float,
) -> Finding:
    """Compare a setting with the baseline, block by block.

    Args:
        baseline: The baseline's completed jobs, one a block.
        candidate: The setting's, in the same blocks.
        objective: Metric that is compared.
        constraints: Limits that the setting must keep.
        error: Two-sided error probability of the intervals.

    All conditions must hold together for a proof, so that no correction for their number is due
    (intersection-union test: Berger, Technometrics 24, 1982).
    """
    checks = [_check(constraint, baseline, candidate, error) for constraint in constraints]
    gain, absent = _gain(baseline, candidate, objective, error)
    decision, reason = _decide(gain, absent, checks)
    return Finding(gain, checks, decision, reason)


def estimate(values: Sequence[float], error: float) -> Estimate | None:
    """Return the mean over jobs with its t interval; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, low, high = t_interval(values, error)
    # What is never below 0 has no interval there.
    low = max(low, 0.0) if min(values) >= 0 else low
    return Estimate(value=mean, low=low, high=high, num_jobs=len(values))


def _gain(
    baseline: Sequence[TrialRecord],
    candidate: Sequence[TrialRecord],
    objective: str,
    error: float,
) -> tuple[Estimate | None, str]:
    """Return how many times better the candidate is: the geometric mean over blocks."""
    sign = 1.0 if is_maximised(objective) else -1.0
    logarithms = []
    for before, after in zip(baseline, candidate, strict=True):
        first, second = before.value(objective), after.value(objective)
        if first is None or second is None:
            return None, f"{objective} was not measured in every job"
        if first <= 0 or second <= 0:
            return None, f"{objective} is not above 0 in every job, so that it has no ratio"
        logarithms.append(sign * math.log(second / first))
    if len(logarithms) < 2:
        return None, "fewer than two blocks of jobs ran"
    mean, low, high = t_interval(logarithms, error)
    gain = Estimate(
        value=math.exp(mean), low=_exp(low), high=_exp(high), num_jobs=len(logarithms)
    )
    return gain, ""


def _exp(value: float) -> float:
    """Return e to a power, of an interval so wide that it says nothing too."""
    return math.exp(min(max(value, -700.0), 700.0))


def _check(
    constraint: Constraint,
    baseline: Sequence[TrialRecord],
    candidate: Sequence[TrialRecord],
    error: float,
) -> ConstraintCheck:
    measured = estimate(_values(candidate, constraint.metric), error)
    absent = ""
    if measured is None:
        reasons = [record.absent.get(constraint.metric, "") for record in candidate]
        absent = next((reason for reason in reasons if reason), "fewer than two jobs measured it")
        verdict = Verdict.NOT_MEASURED
    elif measured.high <= constraint.max:
        verdict = Verdict.KEPT
    elif measured.low > constraint.max:
        verdict = Verdict.BROKEN
    else:
        verdict = Verdict.UNCLEAR
    return ConstraintCheck(
        metric=constraint.metric,
        max=constraint.max,
        measured=measured,
        baseline=estimate(_values(baseline, constraint.metric), error),
        verdict=verdict,
        absent=absent,
    )


def _values(records: Sequence[TrialRecord], metric: str) -> list[float]:
    return [value for record in records if (value := record.value(metric)) is not None]


def _decide(
    gain: Estimate | None, absent: str, checks: Sequence[ConstraintCheck]
) -> tuple[Decision, str]:
    for check in checks:
        if check.verdict is Verdict.BROKEN and check.measured is not None:
            return Decision.WORSE, (
                f"It breaks {check.metric}: {_shown(check.measured)}, limit {check.max:g}."
            )
    if gain is None:
        return Decision.NOT_PROVEN, f"There is no ratio: {absent}."
    if gain.high < 1:
        return Decision.WORSE, f"It is slower: {_times(gain)} times the base job."
    if gain.low <= 1:
        return Decision.NOT_PROVEN, (
            f"The interval of the ratio holds 1: {_times(gain)}; more jobs may decide it."
        )
    for check in checks:
        if check.measured is None:
            return Decision.NOT_PROVEN, (
                f"{check.metric} was not measured ({check.absent}): measure it, or remove the "
                "constraint."
            )
        if check.verdict is Verdict.UNCLEAR:
            return Decision.NOT_PROVEN, (
                f"{check.metric} may break its limit: {_shown(check.measured)}, limit "
                f"{check.max:g}; more jobs may decide it."
            )
    return Decision.PROVEN, f"{_times(gain)} times the base job, all constraints kept."


def _times(gain: Estimate) -> str:
    """Return a ratio with one digit more, which may be close to 1."""
    return f"{gain.value:.4g} [{gain.low:.4g}, {gain.high:.4g}]"


def _shown(measured: Estimate) -> str:
    return f"{measured.value:.3g} [{measured.low:.3g}, {measured.high:.3g}]"
