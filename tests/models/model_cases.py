"""A small space and trials of it, for the tests of the models."""

from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.knobs import KnobValue
from autotune.models.evidence import Encoder, Evidence
from autotune.objective import TrialRecord, TrialState

MICRO, RESHARD = "ppo_micro_batch_size_per_gpu", "reshard_after_forward"
THROUGHPUT, EXPOSED, PEAK = (
    "throughput_tokens_per_s_per_gpu",
    "exposed_comm_ratio",
    "peak_memory_ratio",
)
SIZES = (1, 2, 4, 8, 16, 32)
BASELINE: dict[str, KnobValue] = {MICRO: 1, RESHARD: True}
DISTRIBUTIONS: dict[str, BaseDistribution] = {
    MICRO: IntDistribution(1, 32, log=True),
    RESHARD: CategoricalDistribution([True, False]),
}
ENCODER = Encoder(DISTRIBUTIONS)


def setting(size: int, reshard: bool = True) -> dict[str, KnobValue]:
    return {MICRO: size, RESHARD: reshard}


def trial(
    size: int, reshard: Any = True, state: Any = TrialState.COMPLETE, **metrics: float
) -> Evidence:
    return Evidence(setting=setting(size, reshard), state=state, metrics=metrics)


def every_setting() -> list[dict[str, Any]]:
    return [setting(size, reshard) for size in SIZES for reshard in (True, False)]


def record_of(state: TrialState, metrics: dict[str, float | None]) -> TrialRecord:
    return TrialRecord(
        number=1,
        state=state,
        params={},
        setting=setting(8),
        overrides=[],
        metrics=metrics,
        absent={},
        violations={},
        feasible=False,
        cause="",
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:01:00+00:00",
        retries=0,
    )
