"""Which whole setting is drawn next: valid, likely to fit, and never asked before.

Runs in the driver. ``model`` takes the setting that our own models promise most of
(:mod:`autotune.models.promise`); Optuna's samplers know neither the rules between knobs nor which
settings are taken, so that their draws are brought to the nearest allowed setting and drawn again
until one is valid, new and predicted to fit. Reads the study only; writes the chosen setting to its
trial.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial
from optuna.trial import TrialState as StudyState

from autotune.knobs import KnobValue
from autotune.models.evidence import Encoder, Evidence, least_peak
from autotune.models.promise import Goal, Promise
from autotune.objective import TrialState
from autotune.settings import SearchConfig

Setting = dict[str, KnobValue]

SETTING, STATE, CAUSE, METRICS_OF_TRIAL = "setting", "state", "cause", "metrics"
"""User attributes of a trial of the study: its whole setting, canonical; how it ended, and why;
what the models read of its metrics."""

MAX_CANDIDATES = 2_048
"""Settings among which the models choose; all of the space where it has no more."""
_NUM_DRAWS = {"tpe": 50, "gp": 3}
"""Draws from a sampler before the nearest valid setting is taken; a Gaussian process is slow and
insists on its optimum."""
_NUM_NEIGHBOURS = 50
"""Random valid settings of which the one nearest to the sampler's wish is taken, or from which the
best settings' neighbours take their values."""
_FITS = 0.9
"""Probability of fitting into memory that a drawn setting must have."""
_NUM_SPREAD = 64
"""Settings of which a random start takes the one farthest from all that were asked."""


class SearchSpace(Protocol):
    """What the search asks of :class:`autotune.space.Space`."""

    def distributions(self) -> dict[str, BaseDistribution]: ...

    def baseline(self) -> Setting: ...

    def snap(self, params: Mapping[str, KnobValue]) -> Setting: ...

    def is_valid(self, params: Mapping[str, KnobValue]) -> bool: ...

    def random_valid(
        self, rng: np.random.Generator, exclude: Collection[Hashable]
    ) -> Setting | None: ...

    def is_small(self, limit: int) -> bool: ...

    def candidates(self, rng: np.random.Generator, limit: int) -> list[Setting]: ...

    def key(self, params: Mapping[str, KnobValue]) -> Hashable: ...

    def active(self, params: Mapping[str, KnobValue]) -> Setting: ...

    def overrides(self, params: Mapping[str, KnobValue]) -> list[str]: ...


class FeasibleSampler(BaseSampler):
    """Draws whole settings, valid and not asked before.

    Without state: what is drawn for a trial depends on the seed, the trial's number and the study
    alone, so that a resumed sweep goes on as if it had never stopped. The chosen setting is stored
    with the trial in one write before any parameter: a trial interrupted while it was being asked
    gets the same setting again.

    Args:
        space: The valid settings.
        settings: Kind of sampler, seed, random start, concurrency.
        goal: What is optimised and kept.
        earlier: What other sweeps found, where it holds for this one.
        static: Knob -> bytes of its part in the base job, where known.
    """

    def __init__(
        self,
        space: SearchSpace,
        settings: SearchConfig,
        goal: Goal,
        earlier: Sequence[Evidence] = (),
        static: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._static = static
        self._space = space
        self._settings = settings
        self._goal = goal
        self._earlier = tuple(earlier)
        self._encoder = Encoder(space.distributions())

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {
            name: distribution
            for name, distribution in self._space.distributions().items()
            if not distribution.single()
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        setting = trial.user_attrs.get(SETTING)
        if setting is None:
            setting = self._choose(study, trial, search_space)
            study._storage.set_trial_user_attr(trial._trial_id, SETTING, setting)
        return {name: setting[name] for name in search_space}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        raise AssertionError(f"{param_name} is drawn together with all other knobs")

    def asked(self, study: Study) -> set[Hashable]:
        """Return the settings that were asked or wait to be; lost trials may be asked again."""
        return {
            self._space.key(trial.user_attrs[SETTING])
            for trial in study.get_trials(deepcopy=False)
            if trial.state is not StudyState.FAIL and SETTING in trial.user_attrs
        }

    def is_exhausted(self, study: Study) -> bool:
        """Say whether no valid setting is left that was not asked."""
        rng = np.random.default_rng(self._settings.seed)
        return self._space.random_valid(rng, exclude=self.asked(study)) is None

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the second objective at which both ends and the middle of a front lie."""
        return (0.0, 0.5, 1.0) if len(self._goal.objectives) > 1 else (0.0,)

    def promise(self, study: Study, weight: float = 0.0) -> Promise:
        """Return the models, fitted to the study and to earlier sweeps.

        Args:
            study: The sweep's.
            weight: Of the second objective against the first, 0 to 1.
        """
        running = [
            trial.user_attrs[SETTING]
            for trial in study.get_trials(deepcopy=False, states=(StudyState.RUNNING,))
            if SETTING in trial.user_attrs
        ]
        return Promise(
            self._encoder,
            self._space.baseline(),
            [*self._earlier, *evidence_of(study)],
            self._goal,
            running=running,
            weight=weight,
            static=self._static,
        )

    def candidates(self, study: Study, seed: int) -> list[Setting]:
        """Return valid settings that were not asked: all of them in a small space, else random ones
        and neighbours of the best ones known."""
        asked = self.asked(study)
        rng = np.random.default_rng([self._settings.seed, seed])
        drawn = self._space.candidates(rng, MAX_CANDIDATES)
        found = {self._space.key(setting): setting for setting in drawn}
        if not self._space.is_small(MAX_CANDIDATES):
            found |= {self._space.key(near): near for near in self._neighbours(study, drawn)}
        return [setting for key, setting in found.items() if key not in asked]

    def _neighbours(self, study: Study, drawn: Sequence[Setting]) -> list[Setting]:
        """Return valid settings that differ from a contender in one knob, with others' values."""
        near = [
            self._space.snap({**best, name: other[name]})
            for best in self.promise(study).contenders()
            for other in drawn[:_NUM_NEIGHBOURS]
            for name in other
        ]
        return [setting for setting in near if self._space.is_valid(setting)]

    def _choose(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Setting:
        asked = self.asked(study)
        rng = np.random.default_rng([self._settings.seed, trial.number])
        finished = study.get_trials(deepcopy=False, states=(StudyState.COMPLETE,))
        kind = self._settings.sampler
        is_start = len(finished) < self._settings.num_startup_trials
        if kind == "model":
            return self._promising(study, trial, rng, is_start=is_start)
        if kind == "random" or is_start:
            return self._random(rng, asked)
        sampler = self._sampler(int(rng.integers(2**31)))
        models = self.promise(study)
        for _ in range(_NUM_DRAWS[kind]):
            drawn = sampler.sample_relative(study, trial, search_space)
            setting = self._space.snap(drawn)
            if self._space.is_valid(setting) and self._space.key(setting) not in asked:
                if models.fits([setting])[0] >= _FITS:
                    return setting
        candidates = [self._random(rng, asked) for _ in range(_NUM_NEIGHBOURS)]
        fits = models.fits(candidates)
        likely = [s for s, chance in zip(candidates, fits) if chance >= min(_FITS, fits.max())]
        return min(likely, key=lambda setting: _distance(setting, drawn, search_space))

    def _promising(
        self, study: Study, trial: FrozenTrial, rng: np.random.Generator, *, is_start: bool
    ) -> Setting:
        candidates = self.candidates(study, trial.number)
        if not candidates:
            return self._random(rng, self.asked(study))
        weight = 0.0
        if len(self._goal.objectives) > 1:
            weight = float(np.random.default_rng([self._settings.seed, trial.number]).uniform())
        models = self.promise(study, weight)
        if not is_start or not models.is_fitted:
            return candidates[models.choose(candidates)]
        fits = models.fits(candidates)
        likely = np.flatnonzero(fits >= min(_FITS, fits.max()))
        chosen = rng.choice(likely, size=min(_NUM_SPREAD, len(likely)), replace=False)
        points = self._encoder.batch([candidates[index] for index in chosen]).points
        known = [
            other.user_attrs[SETTING]
            for other in study.get_trials(deepcopy=False)
            if SETTING in other.user_attrs and other.number != trial.number
        ]
        others = self._encoder.batch(known).points
        distances = np.abs(points[:, None, :] - others[None, :, :]).sum(axis=2).min(axis=1)
        return candidates[int(chosen[np.argmax(distances)])]

    def _sampler(self, seed: int) -> BaseSampler:
        if self._settings.sampler == "gp":
            return GPSampler(seed=seed, n_startup_trials=1)
        is_concurrent = self._settings.max_concurrent > 1
        return TPESampler(
            seed=seed, n_startup_trials=1, multivariate=True, constant_liar=is_concurrent
        )

    def _random(self, rng: np.random.Generator, asked: Collection[Hashable]) -> Setting:
        setting = self._space.random_valid(rng, exclude=asked)
        assert setting is not None, "asked for a setting of an exhausted space"
        return setting


def evidence_of(study: Study) -> list[Evidence]:
    """Return what the finished trials of a study say; lost ones say nothing."""
    return [
        Evidence(
            setting=trial.user_attrs[SETTING],
            state=TrialState(trial.user_attrs[STATE]),
            metrics=trial.user_attrs[METRICS_OF_TRIAL],
            least_peak=least_peak(trial.user_attrs.get(CAUSE, "")),
        )
        for trial in study.get_trials(deepcopy=False, states=(StudyState.COMPLETE,))
        if SETTING in trial.user_attrs and METRICS_OF_TRIAL in trial.user_attrs
    ]


def ask_parameters(trial: Trial, space: SearchSpace) -> None:
    """Give a trial the parameters that it lacks, through Optuna's public calls."""
    for name, distribution in space.distributions().items():
        if isinstance(distribution, IntDistribution):
            trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
        elif isinstance(distribution, FloatDistribution):
            trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
        else:
            assert isinstance(distribution, CategoricalDistribution), distribution
            trial.suggest_categorical(name, distribution.choices)


def _distance(
    setting: Mapping[str, Any],
    wish: Mapping[str, Any],
    search_space: Mapping[str, BaseDistribution],
) -> float:
    """Return the sum over the knobs of their distances, each between 0 and 1."""
    return math.fsum(
        _knob_distance(setting[name], wish[name], distribution)
        for name, distribution in search_space.items()
    )


def _knob_distance(a: Any, b: Any, distribution: BaseDistribution) -> float:
    if not isinstance(distribution, IntDistribution | FloatDistribution):
        return float(a != b)
    if distribution.log:
        return abs(math.log(a / b)) / math.log(distribution.high / distribution.low)
    return abs(a - b) / (distribution.high - distribution.low)
