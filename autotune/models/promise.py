"""Which setting is worth a trial: expected improvement under constraints, memory and failures.

Runs in the driver. Puts the models of a sweep together: step time and exposed communication,
each other constraint, memory, failures of other kinds. A candidate's promise is the expected
improvement over the best setting that is feasible beyond doubt, times the probability that the
candidate is feasible (Gardner et al., 2014); one that is predicted not to fit is refused. The
same models say which settings to measure again and what one more trial is expected to gain. Knows
no Optuna and draws no random numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.special import ndtr

from autotune.models.evidence import Array, Batch, Encoder, Evidence, Setting
from autotune.models.memory import PEAK, PEAK_GIB, MemoryModel
from autotune.models.step_time import (
    EXPOSED,
    TIMES,
    Regression,
    StepTimeModel,
    StepTimes,
)
from autotune.objective import Constraint, TrialState, is_maximised

_MUST_FIT = 0.9
"""Settings that fit with a smaller probability are refused."""
_BEYOND_DOUBT = 0.8
"""Probability of being feasible from which a measured setting is one to beat."""
_CONTENDER, _DOUBT_COST = 0.4, 0.1
"""Probability of being feasible from which a measured setting is worth confirming, and what doubt
costs it against others: this times the logarithm of the probability, added to the score."""
_NUM_CONTENDERS = 3
_CONSTRAINT_NOISE = 0.08
"""Relative spread of a constraint's metric between two trials, before any was repeated."""
_FLOOR = 1e-3
"""Share of its limit below which a constraint's metric does not matter."""
_WORKS, _WORKS_WEIGHT = 0.97, 0.3
"""Probability that a setting neither hangs nor crashes, and how many trials this belief is
worth."""
_REACH = 0.25
"""How far, in shares of a knob's range, a failure speaks for its neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a sweep optimises and keeps."""

    objectives: tuple[str, ...]
    """One metric, or two that are traded against each other."""
    limits: Mapping[str, float]
    """Metric -> largest value that is feasible."""

    @property
    def objective(self) -> str:
        """The first objective: the one that a single winner is chosen by."""
        return self.objectives[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that the models read."""
        return tuple(dict.fromkeys([*self.objectives, *self.limits, EXPOSED, PEAK, PEAK_GIB]))


def goal_of(
    objective: str, constraints: Sequence[Constraint], trade_off: str | None = None
) -> Goal:
    """Return the goal of a sweep: its objective, a second one to trade against, its limits."""
    return Goal(
        objectives=(objective,) if trade_off is None else (objective, trade_off),
        limits={constraint.metric: constraint.max for constraint in constraints},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is expected of some settings, one entry each."""

    score: Array
    """Logarithm of the objective, negated where less is better."""
    spread: Array
    """Standard deviation of ``score``."""
    fits: Array
    """Probability of not running out of memory."""
    feasible: Array
    """Probability of completing within every limit."""


class Promise:
    """The models of a sweep, fitted.

    Args:
        encoder: Of the sweep's space.
        baseline: The base job's setting.
        evidence: Finished trials, in the order in which they finished.
        goal: Objective and limits.
        running: Settings of trials that run: the models' own prediction stands for each, so that
            two trials are not sent to one place.
        weight: Of the second objective against the first, 0 to 1.
        static: What :class:`autotune.models.memory.MemoryModel` is told of sizes in bytes.
    """

    def __init__(
        self,
        encoder: Encoder,
        baseline: Setting,
        evidence: Sequence[Evidence],
        goal: Goal,
        *,
        running: Sequence[Setting] = (),
        weight: float = 0.0,
        static: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._static = static
        self._weight = weight
        self._encoder, self._baseline, self._goal = encoder, baseline, goal
        self._fit(evidence)
        if running and self.is_fitted:
            self._fit([*evidence, *self._imagine(running)])

    @property
    def is_fitted(self) -> bool:
        """Whether any trial has measured the objective."""
        return bool(self._measured)

    def outlook(self, settings: Sequence[Setting]) -> Outlook:
        """Return what is expected of settings."""
        return self._outlook(self._encoder.batch(settings))

    def fits(self, settings: Sequence[Setting]) -> Array:
        """Return the probability that each setting does not run out of memory."""
        return self._memory.fits(self._encoder.batch(settings))

    def choose(self, candidates: Sequence[Setting]) -> int:
        """Return the index of the candidate that is worth a trial most."""
        assert candidates
        if not self.is_fitted:
            return int(np.argmax(self.fits(candidates)))
        outlook = self.outlook(candidates)
        fits = outlook.fits
        if fits.max() < _MUST_FIT:
            return int(np.argmax(fits))
        gain = self._log_gain(outlook) + _log(outlook.feasible)
        return int(np.argmax(np.where(fits >= _MUST_FIT, gain, -np.inf)))

    def expected_gain(self, candidates: Sequence[Setting]) -> float:
        """Return the most that one more trial is expected to gain, as a share of the best
        objective; infinite while nothing feasible is known."""
        if not self.is_fitted or self._best() is None:
            return math.inf
        outlook = self.outlook(candidates)
        gain = np.exp(self._log_gain(outlook)) * outlook.feasible
        return float(np.max(np.where(outlook.fits >= _MUST_FIT, gain, 0.0), initial=0.0))

    def contenders(self) -> list[Setting]:
        """Return the measured settings that may be the best feasible one, most promising first."""
        settings = self._measured_settings()
        if not settings:
            return []
        outlook = self.outlook(settings)
        hope = outlook.score + 0.5 * outlook.spread + _DOUBT_COST * _log(outlook.feasible)
        order = np.argsort(-hope, kind="stable")
        likely = [int(i) for i in order if outlook.feasible[i] >= _CONTENDER]
        if not likely:
            likely = [int(np.argmax(outlook.feasible))]
        return [settings[index] for index in likely[:_NUM_CONTENDERS]]

    # Fitting.

    def _fit(self, evidence: Sequence[Evidence]) -> None:
        goal, encoder = self._goal, self._encoder
        self._evidence = list(evidence)
        self._memory = MemoryModel(encoder, self._baseline, evidence, self._static)
        self._measured = [trial for trial in evidence if goal.objective in trial.metrics]
        self._time: StepTimeModel | None = None
        self._objective: Regression | None = None
        self._limits: dict[str, Regression] = {}
        if not self._measured:
            return
        if goal.objective in TIMES:
            self._time = StepTimeModel(encoder, self._measured, goal.objective)
        else:
            batch = encoder.batch([trial.setting for trial in self._measured])
            values = np.log([max(t.metrics[goal.objective], _FLOOR) for t in self._measured])
            self._objective = Regression(batch, values, _CONSTRAINT_NOISE)
        self._second: Regression | None = None
        if self._weight > 0:
            second = [trial for trial in self._measured if goal.objectives[1] in trial.metrics]
            values = np.log([max(t.metrics[goal.objectives[1]], _FLOOR) for t in second])
            batch = encoder.batch([trial.setting for trial in second])
            self._second = Regression(batch, values, _CONSTRAINT_NOISE) if second else None
        for metric, limit in goal.limits.items():
            if metric != PEAK and not (metric == EXPOSED and self._time is not None):
                self._fit_limit(metric, limit)

    def _fit_limit(self, metric: str, limit: float) -> None:
        trials = [trial for trial in self._evidence if metric in trial.metrics]
        if trials:
            values = np.log([max(t.metrics[metric] / limit, _FLOOR) for t in trials])
            batch = self._encoder.batch([trial.setting for trial in trials])
            self._limits[metric] = Regression(batch, values, _CONSTRAINT_NOISE)

    def _imagine(self, settings: Sequence[Setting]) -> list[Evidence]:
        """Return what the models expect of trials that run, as if it had been measured."""
        batch = self._encoder.batch(settings)
        times = self._time.predict(batch) if self._time is not None else None
        score, _ = self._first_score(batch, times)
        sign = 1.0 if is_maximised(self._goal.objective) else -1.0
        metrics = {self._goal.objective: np.exp(sign * score)}
        if times is not None and times.log_odds_exposed is not None:
            metrics[EXPOSED] = 1 / (1 + np.exp(-times.log_odds_exposed))
        for name, model in self._limits.items():
            metrics[name] = np.exp(model.predict(batch)[0]) * self._goal.limits[name]
        return [
            Evidence(
                setting=dict(setting),
                state=TrialState.STOPPED,
                metrics={name: float(values[index]) for name, values in metrics.items()},
            )
            for index, setting in enumerate(settings)
        ]

    # Predicting.

    def _outlook(self, batch: Batch) -> Outlook:
        assert self.is_fitted
        times = self._time.predict(batch) if self._time is not None else None
        score, spread = self._score(batch, times)
        fits = self._memory.fits(batch)
        feasible = fits * self._works(batch)
        for metric, limit in self._goal.limits.items():
            feasible = feasible * self._keeps(metric, limit, batch, times)
        return Outlook(score=score, spread=spread, fits=fits, feasible=feasible)

    def _score(self, batch: Batch, times: StepTimes | None) -> tuple[Array, Array]:
        """Return mean and spread of the score: of the first objective, or of both as weighted."""
        mean, spread = self._first_score(batch, times)
        if self._second is None:
            return mean, spread
        other, other_spread = self._second.predict(batch)
        sign = 1.0 if is_maximised(self._goal.objectives[1]) else -1.0
        own = 1 - self._weight
        return (
            own * mean + self._weight * sign * other,
            np.hypot(own * spread, self._weight * other_spread),
        )

    def _first_score(self, batch: Batch, times: StepTimes | None) -> tuple[Array, Array]:
        if times is not None:
            return -times.log_time, times.log_time_spread
        assert self._objective is not None
        mean, spread = self._objective.predict(batch)
        return (mean if is_maximised(self._goal.objective) else -mean), spread

    def _keeps(self, metric: str, limit: float, batch: Batch, times: StepTimes | None) -> Array:
        """Return the probability that a limit is kept; 1 where nothing has been measured."""
        predicted: tuple[Array, Array] | None = None
        level = 0.0
        if metric == PEAK:
            predicted, level = self._memory.ratio(batch), limit
        elif metric == EXPOSED and times is not None:
            if times.log_odds_exposed is not None and times.log_odds_spread is not None:
                predicted = times.log_odds_exposed, times.log_odds_spread
                level = math.log(limit / (1 - limit)) if limit < 1 else math.inf
        elif metric in self._limits:
            predicted = self._limits[metric].predict(batch)
        if predicted is None:
            return np.ones(len(batch.settings))
        return np.asarray(ndtr((level - predicted[0]) / predicted[1]))

    def _works(self, batch: Batch) -> Array:
        """Return the probability of no failure other than memory, by the nearest trials."""
        broken = [trial for trial in self._evidence if _is_broken(trial)]
        if not broken:
            return np.ones(len(batch.settings))
        good = self._weights(batch.points, self._measured).sum(axis=1) + _WORKS * _WORKS_WEIGHT
        bad = self._weights(batch.points, broken).sum(axis=1) + (1 - _WORKS) * _WORKS_WEIGHT
        return np.asarray(good / (good + bad))

    def _weights(self, points: Array, trials: Sequence[Evidence]) -> Array:
        others = self._encoder.batch([trial.setting for trial in trials]).points
        squares = ((points[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
        return np.asarray(np.exp(-0.5 * squares / _REACH**2))

    def _measured_settings(self) -> list[Setting]:
        """Return the settings of trials that completed, each once."""
        unique = {
            tuple(trial.setting.items()): trial.setting
            for trial in self._measured
            if trial.is_measured
        }
        return list(unique.values())

    def _best(self) -> float | None:
        """Return the best expected score among measured settings that are feasible beyond doubt."""
        settings = self._measured_settings()
        if not settings:
            return None
        outlook = self.outlook(settings)
        scores = outlook.score[outlook.feasible >= _BEYOND_DOUBT]
        return float(scores.max()) if len(scores) else None

    def _log_gain(self, outlook: Outlook) -> Array:
        """Return the logarithm of the expected improvement; over the worst setting while none is
        feasible beyond doubt, so that a fast setting is worth some doubt then too."""
        best = self._best()
        if best is None:
            known = self._measured_settings()
            best = float(np.min(self.outlook(known).score if known else outlook.score))
        z = (outlook.score - best) / outlook.spread
        return _log(outlook.spread * (z * ndtr(z) + np.exp(-z * z / 2) / math.sqrt(2 * math.pi)))


def _is_broken(trial: Evidence) -> bool:
    return trial.state in (TrialState.NAN, TrialState.HANG, TrialState.CRASH)


def _log(values: Array) -> Array:
    return np.asarray(np.log(np.maximum(values, 1e-30)))
