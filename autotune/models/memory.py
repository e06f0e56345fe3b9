"""Whether a setting fits into the device's memory, and how sure that is.

Runs in the driver. What a job holds is a sum of parts that grow with known knobs: parameters,
gradients and optimizer state by sharding and offload, activations by micro-batch, gathered
parameters by bucket and depth, the rollout's cache. Each part starts from a rough size and is
fitted to the peaks that were observed; a Gaussian process takes up what the sum leaves open, and
its spread is the margin, which shrinks as evidence grows. A trial that ran out of memory says that
its peak is above the device, by how much at least where the allocator told, and that every setting
that needs at least as much fails too. Holds for one world size: evidence from another is not read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.knobs import KnobValue
from autotune.models.evidence import Array, Batch, Encoder, Evidence, Setting
from autotune.models.gaussian_process import GaussianProcess, Prior, usual_length
from autotune.objective import TrialState

PEAK, PEAK_GIB = "peak_memory_ratio", "peak_reserved_gib"

MORE_WHEN_LARGER = (
    "ppo_micro_batch_size_per_gpu",
    "log_prob_micro_batch_size_per_gpu",
    "ppo_max_token_len_per_gpu",
    "log_prob_max_token_len_per_gpu",
    "critic_ppo_infer_max_token_len_per_gpu",
    "bucket_size",
    "forward_prefetch_depth",
    "backward_prefetch_depth",
    "forward_prefetch",
    "use_no_sync_for_gradient_accumulation",
    "rollout_gpu_memory_utilization",
    "rollout_max_num_seqs",
    "rollout_max_num_batched_tokens",
    "rollout_update_weights_bucket_megabytes",
)
"""Knobs that never lower the peak when they grow (False before True)."""
LESS_WHEN_LARGER = (
    "reshard_after_forward",
    "param_offload",
    "optimizer_offload",
    "offload_policy",
    "entropy_from_logits_with_chunking",
    "entropy_checkpointing",
    "enable_gradient_checkpointing",
    "rollout_free_cache_engine",
    "rollout_enforce_eager",
)
"""Knobs that never raise the peak when they grow."""

_DEPTHS = ("forward_prefetch_depth", "backward_prefetch_depth")
_PER_UNIT = "bucket_size"
_MICRO_BATCH = "ppo_micro_batch_size_per_gpu"
_ACTIVATIONS = (
    _MICRO_BATCH,
    "log_prob_micro_batch_size_per_gpu",
    "ppo_max_token_len_per_gpu",
    "log_prob_max_token_len_per_gpu",
    "critic_ppo_infer_max_token_len_per_gpu",
)
"""Sizes whose part is the activations of so many tokens."""

_PART, _PART_SPREAD = 0.05, 0.10
"""Share of the device that a switch, or a number at its baseline's value, is first thought to take,
and the standard deviation of that guess."""
_TOKENS, _TOKENS_SPREAD = 0.03, 0.05
"""The same for the activations of one micro-batch of the baseline's size: it ran beside weights,
gradients and optimizer, so that few of them filled the device."""
_REST, _REST_SPREAD = 0.3, 0.4
"""The same for everything that no knob moves."""
_OPEN, _NOISE = 0.02, 0.01
"""Share of the device that the sum leaves open, and by which a repetition differs."""
_OVER = 1.03
"""Least peak of a trial that ran out of memory: what it had asked for when it failed need not have
been the last that it wanted."""
_DEVICE_BYTES = 80 * 2**30
_CENSOR_ROUNDS = 2
_CERTAIN = 0.98
"""Probability of what dominance says: rules of monotony have exceptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One summand of the peak: a column of numbers, its first size and the spread of that."""

    column: Array
    size: float
    spread: float


class MemoryModel:
    """Fitted to the trials of one sweep.

    Args:
        encoder: Of the sweep's space.
        baseline: The base job's setting; numbers count in units of its values.
        evidence: Trials of this world size.
        static: Knob -> bytes that its part takes in the base job, where known: see
            :func:`autotune.models.static_memory.static_bytes`.
    """

    def __init__(
        self,
        encoder: Encoder,
        baseline: Setting,
        evidence: Sequence[Evidence],
        static: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._encoder, self._baseline, self._static = encoder, baseline, static
        self._device_bytes = device_bytes(evidence)
        self._fitting = [trial for trial in evidence if trial.is_measured]
        self._failed = [trial for trial in evidence if trial.state is TrialState.OUT_OF_MEMORY]
        self._order = MemoryOrder(baseline)
        observed = [trial for trial in self._fitting if PEAK in trial.metrics]
        self._process = self._fit(observed) if observed else None

    def ratio(self, batch: Batch) -> tuple[Array, Array] | None:
        """Return mean and standard deviation of the predicted peak as a share of the device.

        None where no trial has measured one.
        """
        if self._process is None:
            return None
        features, sizes, _ = self._features(batch.settings)
        mean, spread = self._process.predict(batch.points, features)
        return mean + features @ sizes, np.hypot(spread, self._process.noise)

    def fits(self, batch: Batch) -> Array:
        """Return the probability that each setting does not run out of memory."""
        predicted = self.ratio(batch)
        if predicted is None:
            chance = np.full(len(batch.settings), 0.5 if self._failed else 1.0)
        else:
            chance = np.asarray(ndtr((1 - predicted[0]) / predicted[1]))
        codes = self._order.codes(batch.settings)
        for trial in self._fitting:
            at_most = self._order.compare(self._order.codes([trial.setting]), codes)
            chance = np.where(at_most, np.maximum(chance, _CERTAIN), chance)
        for trial in self._failed:
            at_least = self._order.compare(codes, self._order.codes([trial.setting]))
            chance = np.where(at_least, np.minimum(chance, 1 - _CERTAIN), chance)
        return chance

    def _fit(self, observed: Sequence[Evidence]) -> GaussianProcess:
        """Fit to peaks, those above the device filled in with what is expected of them."""
        settings = [trial.setting for trial in observed]
        peaks = np.array([trial.metrics[PEAK] for trial in observed])
        process = self._regress(settings, peaks)
        failed = [trial.setting for trial in self._failed]
        for _ in range(_CENSOR_ROUNDS if failed else 0):
            features, sizes, _ = self._features(failed)
            mean, _ = process.predict(self._encoder.batch(failed).points, features)
            least = [max(trial.least_peak or 0.0, _OVER) for trial in self._failed]
            filled = np.maximum(mean + features @ sizes, least)
            process = self._regress([*settings, *failed], np.concatenate([peaks, filled]))
        return process

    def _regress(self, settings: Sequence[Setting], peaks: Array) -> GaussianProcess:
        features, sizes, spreads = self._features(settings)
        points = self._encoder.batch(settings).points
        prior = Prior(
            amplitude=_OPEN, noise=_NOISE, coefficient=spreads, length=usual_length(points)
        )
        return GaussianProcess(points, features, peaks - features @ sizes, prior)

    def _features(self, settings: Sequence[Setting]) -> tuple[Array, Array, Array]:
        """Return the parts' columns, their first sizes and the spreads of these."""
        parts = [_Part(column=np.ones(len(settings)), size=_REST, spread=_REST_SPREAD)]
        for name, base in self._baseline.items():
            if name == _PER_UNIT:
                parts.append(self._gathered(settings))
            elif name not in _DEPTHS and not isinstance(base, str):
                parts.append(self._knob_part(name, base, settings))
        parts.append(self._unshared(settings))
        columns = np.stack([part.column for part in parts], axis=1)
        sizes = np.array([part.size for part in parts])
        return columns, sizes, np.array([part.spread for part in parts])

    def _knob_part(self, name: str, base: KnobValue, settings: Sequence[Setting]) -> _Part:
        """Return the part of one knob: in units of the baseline's value, or of a switch."""
        values = np.array([float(setting[name]) for setting in settings])
        unit = 1.0 if isinstance(base, bool) or float(base) == 0 else abs(float(base))
        saves = name in LESS_WHEN_LARGER
        size = _PART if saves or name in MORE_WHEN_LARGER else 0.0
        spread = _PART_SPREAD
        if name in _ACTIVATIONS:
            size, spread = _TOKENS, _TOKENS_SPREAD
        if name in self._static:
            size = self._static[name] / self._device_bytes
            spread = max(size, _PART_SPREAD / 2)
        return _Part(column=1 - values / unit if saves else values / unit, size=size, spread=spread)

    def _gathered(self, settings: Sequence[Setting]) -> _Part:
        """Parameters of the units that are there at once: the bucket times one more than the
        depth."""
        depths = [
            np.array([float(setting[name]) for setting in settings])
            for name in _DEPTHS
            if name in self._baseline
        ]
        bucket = np.array([float(setting[_PER_UNIT]) for setting in settings])
        column = bucket * (1 + np.max(depths, axis=0, initial=0.0)) / self._device_bytes
        return _Part(column=column, size=1.0, spread=1.0)

    def _unshared(self, settings: Sequence[Setting]) -> _Part:
        """Activations that are kept because nothing recomputes them, in micro-batches."""
        base = float(self._baseline.get(_MICRO_BATCH, 1))
        column = [
            float(setting.get(_MICRO_BATCH, base))
            / base
            * (not setting.get("enable_gradient_checkpointing", True))
            for setting in settings
        ]
        return _Part(column=np.array(column), size=_PART, spread=_PART_SPREAD)


class MemoryOrder:
    """Which of two settings needs at least the memory of the other, by monotony alone.

    Args:
        knobs: Names of the sweep's knobs.
    """

    def __init__(self, knobs: Iterable[str]) -> None:
        self._knobs = tuple(knobs)
        self._is_ordered = np.array(
            [name in MORE_WHEN_LARGER or name in LESS_WHEN_LARGER for name in self._knobs]
        )
        self._ids: dict[KnobValue, float] = {}

    def at_least(self, settings: Sequence[Setting], others: Sequence[Setting]) -> NDArray[np.bool_]:
        """Compare settings one by one; a sequence of one is compared with all of the other."""
        return self.compare(self.codes(settings), self.codes(others))

    def compare(self, own: Array, other: Array) -> NDArray[np.bool_]:
        """Compare rows of :meth:`codes` as :meth:`at_least` compares settings."""
        kept = np.where(self._is_ordered, own >= other, own == other)
        return np.asarray(kept.all(axis=1))

    def codes(self, settings: Sequence[Setting]) -> Array:
        """Return one row a setting: numbers that grow with memory, or stand for a value."""
        columns = [self._column(name, [s[name] for s in settings]) for name in self._knobs]
        return np.stack(columns, axis=1)

    def _column(self, name: str, values: Sequence[KnobValue]) -> Array:
        if name in MORE_WHEN_LARGER or name in LESS_WHEN_LARGER:
            sign = 1.0 if name in MORE_WHEN_LARGER else -1.0
            return sign * np.array(values, dtype=float)
        return np.array([self._ids.setdefault(value, len(self._ids)) for value in values], float)


def device_bytes(evidence: Sequence[Evidence]) -> float:
    """Return the device's memory from a trial that measured its peak in GiB and as a share; 80 GiB
    where none did."""
    for trial in evidence:
        peak, ratio = trial.metrics.get(PEAK_GIB), trial.metrics.get(PEAK)
        if peak and ratio:
            return peak * 2**30 / ratio
    return float(_DEVICE_BYTES)
