"""How long a step of a setting takes, and which share of it is exposed communication.

Runs in the driver. A step is computation (with launches and everything else that is not
communication) plus exposed communication, and the two obey different knobs: the first falls with
the micro-batch, the second with buckets, prefetch and resharding. Each is a regression of its
logarithm (:mod:`autotune.models.gaussian_process`) over the knobs and their reciprocals, so that
effects multiply; where communication was not measured, the step is one part. Times are relative:
for a throughput, seconds a token and GPU; else seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from autotune.metrics import STEP_KEYS
from autotune.models.evidence import RECIPROCAL, Array, Batch, Encoder, Evidence
from autotune.models.gaussian_process import GaussianProcess, Prior, usual_length
from autotune.objective import is_maximised

TIMES = tuple(STEP_KEYS)
"""Metrics that are a step's time, or tokens over it."""
EXPOSED = "exposed_comm_ratio"

_SHARE_FLOOR = 1e-3
"""Exposed shares below it are as good as none."""
_TIME_NOISE, _SHARE_NOISE = 0.04, 0.06
"""Relative spread of one trial's time and of its communication, before any was repeated."""
_OPEN = 0.3
"""What the linear part leaves open of a logarithm."""
_LEVEL, _EFFECT = 1.0, 0.5
"""Spread of the level and of one knob's whole effect, as logarithms."""


REST_EFFECTS = {
    RECIPROCAL + "ppo_micro_batch_size_per_gpu": 0.4,
    RECIPROCAL + "log_prob_micro_batch_size_per_gpu": 0.2,
    "ppo_micro_batch_size_per_gpu": -0.2,
    "log_prob_micro_batch_size_per_gpu": -0.1,
    "param_offload": 0.1,
    "optimizer_offload": 0.1,
    "offload_policy": 0.1,
    "enable_gradient_checkpointing": 0.2,
    "use_remove_padding": -0.2,
    "use_dynamic_bsz": -0.1,
    "rollout_enforce_eager": 0.2,
}
"""What is expected of a knob before it was tried, over its whole range, as a logarithm of the
step's time without exposed communication: fewer launches with larger micro-batches (on two H200 a
step of a 0.5B model was 4.6 times faster at micro-batch 64 than at 1), copies with offload,
recomputation."""
EXPOSED_EFFECTS = {
    RECIPROCAL + "ppo_micro_batch_size_per_gpu": 0.4,
    "ppo_micro_batch_size_per_gpu": -0.2,
    "bucket_size": -0.3,
    "forward_prefetch_depth": -0.3,
    "backward_prefetch_depth": -0.3,
    "forward_prefetch": -0.2,
    "reshard_after_forward": 0.3,
    "use_no_sync_for_gradient_accumulation": -0.2,
}
"""The same for exposed communication: fewer and larger collectives, issued earlier. The first
trials follow these signs; a few measurements outweigh them."""


class Regression:
    """A Gaussian process over settings, centred on its values.

    Args:
        batch: The settings that were measured.
        values: Logarithms of what was measured.
        noise: Standard deviation of one of them.
        effects: What is expected of features by name; the others are as likely up as down.
    """

    def __init__(
        self,
        batch: Batch,
        values: Array,
        noise: float,
        effects: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._effects = np.array([effects.get(name, 0.0) for name in batch.names])
        values = values - batch.features @ self._effects
        self._mean = float(values.mean())
        coefficients = np.full(batch.features.shape[1], _EFFECT)
        coefficients[0] = _LEVEL
        prior = Prior(
            amplitude=_OPEN,
            noise=noise,
            coefficient=coefficients,
            length=usual_length(batch.points),
        )
        self._process = GaussianProcess(batch.points, batch.features, values - self._mean, prior)

    @property
    def noise(self) -> float:
        """Standard deviation of one measurement."""
        return self._process.noise

    def predict(self, batch: Batch) -> tuple[Array, Array]:
        """Return mean and standard deviation of the noise-free value."""
        mean, spread = self._process.predict(batch.points, batch.features)
        return mean + self._mean + batch.features @ self._effects, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What is expected of some settings, one entry each."""

    log_time: Array
    log_time_spread: Array
    log_odds_exposed: Array | None
    """log(share / (1 - share)) of exposed communication; None where it was not measured."""
    log_odds_spread: Array | None


class StepTimeModel:
    """Fitted to the trials of one sweep that measured a time.

    Args:
        encoder: Of the sweep's space.
        evidence: At least one has the metric.
        metric: One of :data:`TIMES`.
    """

    def __init__(self, encoder: Encoder, evidence: Sequence[Evidence], metric: str) -> None:
        timed = [trial for trial in evidence if trial.metrics.get(metric, 0.0) > 0]
        assert timed, f"no trial measured {metric}"
        batch = encoder.batch([trial.setting for trial in timed])
        sign = -1.0 if is_maximised(metric) else 1.0
        times = sign * np.log([trial.metrics[metric] for trial in timed])
        odds = _log_odds(encoder, timed)
        self._exposed: Regression | None = None
        if odds is None:
            self._rest = Regression(batch, times, _TIME_NOISE, REST_EFFECTS)
            return
        rest, exposed = times - np.logaddexp(0, odds), times - np.logaddexp(0, -odds)
        self._rest = Regression(batch, rest, _TIME_NOISE, REST_EFFECTS)
        self._exposed = Regression(batch, exposed, _SHARE_NOISE, EXPOSED_EFFECTS)

    @property
    def noise(self) -> float:
        """Relative standard deviation of one trial's time."""
        return self._rest.noise

    def predict(self, batch: Batch) -> StepTimes:
        """Return the noise-free times and shares of settings."""
        rest, rest_spread = self._rest.predict(batch)
        if self._exposed is None:
            return StepTimes(
                log_time=rest,
                log_time_spread=rest_spread,
                log_odds_exposed=None,
                log_odds_spread=None,
            )
        exposed, exposed_spread = self._exposed.predict(batch)
        share = 1 / (1 + np.exp(rest - exposed))
        return StepTimes(
            log_time=np.logaddexp(rest, exposed),
            log_time_spread=np.hypot((1 - share) * rest_spread, share * exposed_spread),
            log_odds_exposed=exposed - rest,
            log_odds_spread=np.hypot(rest_spread, exposed_spread),
        )


def _log_odds(encoder: Encoder, timed: Sequence[Evidence]) -> Array | None:
    """Return each trial's log-odds of exposed communication, predicted where it was not measured
    (a trial that was stopped early has no profiled step)."""
    known = [trial for trial in timed if EXPOSED in trial.metrics]
    if not known:
        return None
    shares = np.clip([trial.metrics[EXPOSED] for trial in known], _SHARE_FLOOR, 1 - _SHARE_FLOOR)
    values = np.log(shares / (1 - shares))
    if len(known) == len(timed):
        return np.asarray(values)
    model = Regression(encoder.batch([t.setting for t in known]), values, _SHARE_NOISE)
    filled = model.predict(encoder.batch([trial.setting for trial in timed]))[0]
    filled[[EXPOSED in trial.metrics for trial in timed]] = values
    return filled
