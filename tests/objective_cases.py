"""Records that the tests of objectives and of trial metrics share."""

from typing import Any

from autotune.objective import StepKind, StepRecord, TrialRecord, TrialState

THROUGHPUT = "throughput_tokens_per_s_per_gpu"


def step(number: int, kind: StepKind, attempt: int = 0, **more: Any) -> StepRecord:
    return StepRecord(number=0, attempt=attempt, step=number, kind=kind, **more)


def record(number: int, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "number": number,
        "state": TrialState.COMPLETE,
        "params": {"ppo_micro_batch_size_per_gpu": number},
        "setting": {"ppo_micro_batch_size_per_gpu": number, "reshard_after_forward": True},
        "overrides": [],
        "metrics": {THROUGHPUT: 100.0},
        "absent": {},
        "violations": {},
        "feasible": True,
        "cause": "",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:00+00:00",
        "retries": 0,
    }
    return TrialRecord(**{**values, **changes})
