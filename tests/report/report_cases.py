"""Records that the report's tests share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweep_maker import SweepSpec, make_config

from autotune.knobs import KnobValue
from autotune.objective import StepKind, StepRecord, TrialRecord, TrialState, evaluate
from autotune.report.reading import SweepData
from autotune.report.text import SweepOutline
from autotune.settings import ConstraintConfig, ObjectiveConfig

MICRO = "ppo_micro_batch_size_per_gpu"
THROUGHPUT = "throughput_tokens_per_s_per_gpu"
BASELINE: dict[str, KnobValue] = {MICRO: 2, "reshard_after_forward": True}
OUTLINE = SweepOutline(
    name="demo",
    objective=THROUGHPUT,
    constraints=[
        ConstraintConfig(metric="peak_memory_ratio", max=0.9),
        ConstraintConfig(metric="exposed_comm_ratio", max=0.2),
    ],
    baseline=BASELINE,
    num_trials=9,
    steps_per_trial=6,
    max_concurrent=1,
    fidelity="full",
)


def trial(
    number: int, throughput: float = 100.0, memory: float = 0.5, **changes: Any
) -> TrialRecord:
    """A trial of 100 s; number 0 is the baseline, the others have a micro-batch of 8 x number."""
    setting = dict(BASELINE) if number == 0 else {**BASELINE, MICRO: 8 * number}
    metrics = {
        THROUGHPUT: throughput,
        "peak_memory_ratio": memory,
        "exposed_comm_ratio": None,
        "startup_s": 60.0,
        "step_s": 200.0 / throughput,
    }
    violations, feasible = evaluate(metrics, OUTLINE.constraints)
    values: dict[str, Any] = {
        "number": number,
        "state": TrialState.COMPLETE,
        "params": setting,
        "setting": setting,
        "overrides": [],
        "metrics": metrics,
        "absent": {"exposed_comm_ratio": "no profiled step finished"},
        "violations": violations,
        "feasible": feasible,
        "cause": "",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:40+00:00",
        "retries": 0,
    }
    return TrialRecord(**{**values, **changes})


def failed(
    number: int, state: TrialState = TrialState.OUT_OF_MEMORY, **changes: Any
) -> TrialRecord:
    values: dict[str, Any] = {
        "state": state,
        "metrics": {},
        "absent": {},
        "violations": {"peak_memory_ratio": None, "exposed_comm_ratio": None},
        "feasible": False,
        "cause": "rank 1 ran out of memory",
    }
    return trial(number, **{**values, **changes})


def measured(number: int, throughputs: Sequence[float]) -> list[StepRecord]:
    """A warm-up step that must not count, and measured steps."""
    values = [1.0, *throughputs]
    kinds = [StepKind.WARMUP] + [StepKind.MEASURED] * len(throughputs)
    return [
        StepRecord(
            number=number,
            attempt=0,
            step=index,
            kind=kind,
            metrics={"perf/throughput": value, "timing_s/step": 200.0 / value},
        )
        for index, (kind, value) in enumerate(zip(kinds, values, strict=True), start=1)
    ]


def two_objectives(trials: Sequence[TrialRecord], **changes: Any) -> SweepData:
    """The sweep `demo` with peak memory as second objective."""
    data = sweep_data(trials, **changes)
    objective = ObjectiveConfig(metric=THROUGHPUT, trade_off="peak_memory_ratio")
    return replace(data, config=replace(data.config, objective=objective))


def sweep_data(
    trials: Sequence[TrialRecord],
    steps: Mapping[int, Sequence[StepRecord]] | None = None,
    **changes: Any,
) -> SweepData:
    """The sweep `demo` of nine trials on eight GPUs with the constraints of OUTLINE."""
    limits = tuple((constraint.metric, constraint.max) for constraint in OUTLINE.constraints)
    spec = SweepSpec(name=OUTLINE.name, budget=OUTLINE.num_trials, limits=limits)
    values: dict[str, Any] = {
        "folder": Path("/sweeps/demo"),
        "config": make_config(spec, Path("/sweeps")),
        "versions": {"verl": "0.9.1"},
        "trials": trials,
        "steps": steps or {},
        "is_running": False,
        "exported": 1,
        "calibration": None,
        "verification": None,
        "verify_jobs": (),
    }
    return SweepData(**{**values, **changes})
