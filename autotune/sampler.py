"""Which whole setting an Optuna sampler draws: valid, and never asked before.

Runs in the driver. Optuna's samplers know neither the rules between knobs nor which settings are
taken; here their draws are brought to the nearest allowed setting and drawn again until one is
valid and new. Reads the study only; writes the chosen setting to its trial.
"""

import math
from collections.abc import Collection, Hashable, Mapping
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
from autotune.settings import SearchConfig

Setting = dict[str, KnobValue]

SETTING = "setting"
"""User attribute of a trial of the study: its whole setting, canonical."""

_NUM_DRAWS = {"tpe": 50, "gp": 3}
"""Draws from a sampler before the nearest valid setting is taken; a Gaussian process is slow and
insists on its optimum."""
_NUM_NEIGHBOURS = 50
"""Random valid settings of which the one nearest to the sampler's wish is taken."""


class SearchSpace(Protocol):
    """What the search asks of :class:`autotune.space.Space`."""

    def distributions(self) -> dict[str, BaseDistribution]: ...

    def baseline(self) -> Setting: ...

    def snap(self, params: Mapping[str, KnobValue]) -> Setting: ...

    def is_valid(self, params: Mapping[str, KnobValue]) -> bool: ...

    def random_valid(
        self, rng: np.random.Generator, exclude: Collection[Hashable]
    ) -> Setting | None: ...

    def key(self, params: Mapping[str, KnobValue]) -> Hashable: ...

    def active(self, params: Mapping[str, KnobValue]) -> Setting: ...

    def overrides(self, params: Mapping[str, KnobValue]) -> list[str]: ...


class FeasibleSampler(BaseSampler):
    """Draws whole settings from an Optuna sampler, valid and not asked before.

    Without state: what is drawn for a trial depends on the seed, the trial's number and the study
    alone, so that a resumed sweep goes on as if it had never stopped. The chosen setting is stored
    with the trial in one write before any parameter: a trial interrupted while it was being asked
    gets the same setting again.

    Args:
        space: The valid settings.
        settings: Kind of sampler, seed, random start, concurrency.
    """

    def __init__(self, space: SearchSpace, settings: SearchConfig) -> None:
        self._space = space
        self._settings = settings

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

    def _choose(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Setting:
        asked = self.asked(study)
        rng = np.random.default_rng([self._settings.seed, trial.number])
        finished = study.get_trials(deepcopy=False, states=(StudyState.COMPLETE,))
        kind = self._settings.sampler
        if kind == "random" or len(finished) < self._settings.num_startup_trials:
            return self._random(rng, asked)
        sampler = self._sampler(int(rng.integers(2**31)))
        for _ in range(_NUM_DRAWS[kind]):
            drawn = sampler.sample_relative(study, trial, search_space)
            setting = self._space.snap(drawn)
            if self._space.is_valid(setting) and self._space.key(setting) not in asked:
                return setting
        return self._nearest(drawn, search_space, rng, asked)

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

    def _nearest(
        self,
        wish: Mapping[str, Any],
        search_space: Mapping[str, BaseDistribution],
        rng: np.random.Generator,
        asked: Collection[Hashable],
    ) -> Setting:
        candidates = [self._random(rng, asked) for _ in range(_NUM_NEIGHBOURS)]
        return min(candidates, key=lambda setting: _distance(setting, wish, search_space))


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
