"""Simulated landscapes, each with another model, other links and other knobs: a held-out test.

Runs in a benchmark's processes. The models' priors were not fitted to them. The shape is that of
FSDP2 training: launches fall with the micro-batch, collectives with the bucket, prefetch hides a
part of them, memory is a sum of parts, and KL scatter grows where kernels change. The sizes of all
effects, the knobs, the limits and every setting's own deviation are drawn from the seed. Not
measured.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autotune.landscape import Landscape, Row
from autotune.objective import TrialState
from autotune.settings import ConstraintConfig

MICRO, LOG_PROB = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
BUCKET, DEPTH, RESHARD = "bucket_size", "forward_prefetch_depth", "reshard_after_forward"
DYNAMIC, RECOMPUTE = "use_dynamic_bsz", "enable_gradient_checkpointing"
NO_SYNC, OFFLOAD = "use_no_sync_for_gradient_accumulation", "optimizer_offload"
ROLLOUT = "rollout_gpu_memory_utilization"
THROUGHPUT, EXPOSED = "throughput_tokens_per_s_per_gpu", "exposed_comm_ratio"
KL, PEAK = "kl_std", "peak_memory_ratio"
MAX_EXPOSED, MAX_KL = 0.2, 1e-4
MAX_SETTINGS = 4_000
_DEVICE_BYTES = 80 * 2**30

Draw = Callable[[float, float], float]
Setting = Mapping[str, Any]


def simulated_landscape(seed: int) -> Landscape:
    """Return the landscape of a seed: equal seeds, equal landscapes."""
    rng = np.random.default_rng([seed, 2])
    while True:
        landscape = _landscape(f"simulated_{seed}", rng)
        if any(landscape.is_feasible(row.setting) for row in landscape.rows):
            return landscape


def _landscape(name: str, rng: np.random.Generator) -> Landscape:
    domains = _domains(rng)
    settings = [
        dict(zip(domains, values, strict=True)) for values in itertools.product(*domains.values())
    ]
    compute, exposed = _times(rng, settings)
    deviation = np.exp(rng.uniform(0.0, 0.02) * rng.standard_normal(len(settings)))
    # The links are as slow as it takes for a given share of the settings to keep the limit.
    ratio = np.quantile(exposed / compute, rng.uniform(0.3, 0.9))
    exposed = exposed * MAX_EXPOSED / (1 - MAX_EXPOSED) / ratio
    steps = (compute + exposed) * deviation
    memory = _memory(rng, settings)
    memory = memory / np.quantile(memory, rng.uniform(0.55, 0.9))
    scatter = _scatter(rng, settings)
    scatter = scatter * MAX_KL / np.quantile(scatter, rng.uniform(0.5, 1.0)) * 0.99
    rows = [
        _row(setting, peak, [1000 / step, share, kl])
        for setting, peak, step, share, kl in zip(
            settings, memory, steps, exposed / (compute + exposed), scatter, strict=True
        )
    ]
    return Landscape(
        name=name,
        origin="Simulated, see scripts/search_bench/simulated.py.",
        objective=THROUGHPUT,
        constraints=(
            ConstraintConfig(metric=EXPOSED, max=MAX_EXPOSED),
            ConstraintConfig(metric=KL, max=MAX_KL),
        ),
        relative_noise={THROUGHPUT: rng.uniform(0.01, 0.05), EXPOSED: 0.05, KL: 0.08, PEAK: 0.005},
        baseline=_baseline(rng, rows),
        rows=tuple(rows),
    )


def _domains(rng: np.random.Generator) -> dict[str, list[Any]]:
    """Return the knobs of a sweep with their values: four that act in every job, and others."""
    domains: dict[str, list[Any]] = {
        MICRO: [2**power for power in range(int(rng.integers(5, 8)))],
        BUCKET: [2**26 * 4**power for power in range(int(rng.integers(3, 5)))],
        DEPTH: list(range(int(rng.integers(3, 5)))),
        RESHARD: [False, True],
    }
    others: dict[str, list[Any]] = {
        LOG_PROB: [1, 4, 16, 64],
        DYNAMIC: [False, True],
        RECOMPUTE: [False, True],
        NO_SYNC: [False, True],
        OFFLOAD: [False, True],
        ROLLOUT: [0.3, 0.4, 0.5, 0.6, 0.7],
    }
    for name in rng.permutation(list(others)).tolist():
        size = math.prod(len(values) for values in domains.values()) * len(others[name])
        if size <= MAX_SETTINGS:
            domains[name] = others[name]
    return domains


def _column(settings: list[dict[str, Any]], name: str, fixed: float) -> np.ndarray:
    """Return a knob's values as numbers; what the base job has where it is not turned."""
    return np.array([float(setting.get(name, fixed)) for setting in settings])


def _times(
    rng: np.random.Generator, settings: list[dict[str, Any]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return computation and exposed communication of a step, the latter in any unit."""
    micro, log_prob = _column(settings, MICRO, 1), _column(settings, LOG_PROB, 4)
    depth, bucket = _column(settings, DEPTH, 0), _column(settings, BUCKET, 2**26)
    no_sync = _column(settings, NO_SYNC, 0)
    update = 1 + rng.uniform(0.3, 4.0) / micro + rng.uniform(0.0, 0.04) * np.log2(micro) ** 1.5
    update = update * (1 - rng.uniform(0.1, 0.3) * (1 - _column(settings, RECOMPUTE, 1)))
    update = update * (1 - rng.uniform(-0.05, 0.15) * _column(settings, DYNAMIC, 0))
    scoring = rng.uniform(0.1, 0.5) * (1 + rng.uniform(0.2, 2.0) / log_prob)
    offload = rng.uniform(0.02, 0.3) * _column(settings, OFFLOAD, 0)
    cramped = 0.7 - _column(settings, ROLLOUT, 0.5)
    rollout = rng.uniform(0.1, 1.5) * (1 + rng.uniform(0, 1) * cramped)
    gathers = 1 + rng.uniform(0.2, 0.9) * _column(settings, RESHARD, 1)
    scatters = 1 + rng.uniform(0.0, 1.5) * (1 - no_sync) / micro
    latency = 1 + 2 ** rng.uniform(24, 27) / bucket
    # One bucket is exposed whatever is prefetched: nothing is there to hide it.
    hidden = rng.uniform(0.05, 0.4) + rng.uniform(0.4, 0.9) ** (2 * depth)
    tail = rng.uniform(0.0, 0.5) * bucket / 2**32
    return update + scoring + offload + rollout, gathers * scatters * latency * hidden + tail


def _memory(rng: np.random.Generator, settings: list[dict[str, Any]]) -> np.ndarray:
    """Return peaks, in any unit."""
    micro, depth = _column(settings, MICRO, 1), _column(settings, DEPTH, 0)
    kept = 1 + rng.uniform(1.0, 5.0) * (1 - _column(settings, RECOMPUTE, 1))
    activations = rng.uniform(0.005, 0.05) * micro * kept
    logits = rng.uniform(0.0, 0.01) * _column(settings, LOG_PROB, 4)
    states = rng.uniform(0.1, 0.4) * (1 - _column(settings, OFFLOAD, 0))
    gathered = rng.uniform(0.05, 0.3) * (1 - _column(settings, RESHARD, 1))
    units = _column(settings, BUCKET, 2**26) * (1 + depth) / _DEVICE_BYTES
    gradients = rng.uniform(0.05, 0.2) * _column(settings, NO_SYNC, 0)
    training = activations + states + gathered + units + gradients + rng.uniform(0.1, 0.3)
    cache = rng.uniform(0.0, 0.6) * _column(settings, ROLLOUT, 0.5)
    return np.maximum(training, logits + states + 0.2) + cache


def _scatter(rng: np.random.Generator, settings: list[dict[str, Any]]) -> np.ndarray:
    """Return the spread of KL, in any unit: kernels that vary with sizes, and one switch of bad
    repute."""
    micro, depth = _column(settings, MICRO, 1), _column(settings, DEPTH, 0)
    scatter = 1 + rng.uniform(0.0, 0.4) * np.log2(micro)
    scatter = scatter * (1 + rng.uniform(0.0, 1.5) * _column(settings, DYNAMIC, 0) * (micro >= 8))
    scatter = scatter + rng.choice([0.0, 1.0]) * (depth == depth.max())
    return np.asarray(scatter + rng.choice([0.0, 0.5]) * (_column(settings, RESHARD, 1) == 0))


def _row(setting: dict[str, Any], peak: float, measured: list[float]) -> Row:
    if peak > 1:
        return Row(setting=setting, state=TrialState.OUT_OF_MEMORY, repetitions=())
    values = dict(zip((THROUGHPUT, EXPOSED, KL), measured, strict=True))
    return Row(
        setting=setting, state=TrialState.COMPLETE, repetitions=({**values, PEAK: float(peak)},)
    )


def _baseline(rng: np.random.Generator, rows: list[Row]) -> dict[str, Any]:
    """Return what a team starts with: small sizes, nothing that is off by default."""
    usual = {RESHARD: True, DYNAMIC: False, RECOMPUTE: True, NO_SYNC: False, ROLLOUT: 0.5}
    usual |= {LOG_PROB: 4, DEPTH: 0, BUCKET: 2**26, OFFLOAD: False}
    runs = [
        row.setting
        for row in rows
        if row.state is TrialState.COMPLETE
        and all(row.setting[name] == usual[name] for name in row.setting if name != MICRO)
    ]
    runs = runs or [row.setting for row in rows if row.state is TrialState.COMPLETE]
    return runs[int(rng.integers(min(len(runs), 3)))]
