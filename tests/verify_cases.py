"""Made-up cold jobs of a verification."""

from collections.abc import Callable, Mapping

from autotune.comparison import Comparison, Plan
from autotune.objective import TrialRecord, TrialState, evaluate
from autotune.settings import ConstraintConfig
from autotune.verification import VerifyJob

OBJECTIVE = "throughput_tokens_per_s_per_gpu"
LIMIT = ConstraintConfig(metric="exposed_comm_ratio", max=0.2)


def record(
    number: int,
    throughput: float | None,
    *,
    exposed: float | None = 0.1,
    state: TrialState = TrialState.COMPLETE,
    cause: str = "",
) -> TrialRecord:
    metrics = {OBJECTIVE: throughput, LIMIT.metric: exposed}
    violations, satisfied = evaluate(metrics, [LIMIT])
    return TrialRecord(
        number=number,
        state=state,
        params={},
        setting={},
        overrides=[],
        metrics=metrics,
        absent={name: "no such step" for name, value in metrics.items() if value is None},
        violations=violations,
        feasible=satisfied and state is TrialState.COMPLETE,
        cause=cause,
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:01:00+00:00",
        retries=0,
    )


def look(plan: Plan, jobs: list[VerifyJob], *, is_over: bool = False) -> Comparison:
    return Comparison(plan, jobs, objective=OBJECTIVE, constraints=[LIMIT], is_over=is_over)


def run(
    plan: Plan,
    throughput: Callable[[int, int], float],
    exposed: Mapping[int, float] | None = None,
) -> tuple[list[VerifyJob], Comparison]:
    """Run a plan to its end: ``throughput(trial, position)`` is what each job measures."""
    jobs: list[VerifyJob] = []
    comparison = look(plan, jobs)
    while (coming := comparison.next_job()) is not None:
        block, trial = coming
        number = len(jobs)
        value = record(number, throughput(trial, number), exposed=(exposed or {}).get(trial, 0.1))
        jobs.append(VerifyJob(plan="p", block=block, trial=trial, record=value))
        comparison = look(plan, jobs)
    return jobs, comparison
