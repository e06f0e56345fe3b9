"""The tuners that are compared: each begins with the baseline and exports one setting.

Runs in a benchmark's processes. A tuner sees only what a trial would report:

model, model_tpe, model_gp: ``SweepSearcher`` with its three samplers.
random: settings at random; exports the best that was measured feasible.
ray_optuna: Ray Tune's own OptunaSearch; a failed trial is an error; exports what
    ``ResultGrid.get_best_result`` would: the largest throughput.
ray_optuna_feasible: the same, exporting the best that was measured feasible.
optuna_tpe, optuna_gp, optuna_botorch: Optuna used with care: constraints of every trial set,
    failures told as violated, ordinal numbers, a fifth of the budget on the three best again.
    BoTorch comes through Optuna's integration and is left out where that is not installed.
deepspeed: the largest micro-batch that a memory model extrapolates to fit, doubling until the
    throughput no longer grows by 5 %, for one group of the other switches after the other.
"""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autotune.knobs import KnobValue
from autotune.landscape import Landscape, LandscapeSpace, key_of
from autotune.objective import TrialRecord, best_feasible, is_maximised
from autotune.replay import run_directly
from autotune.settings import SearchConfig

REPEAT_RATIO, NUM_TOP = 0.2, 3
NUM_RANDOM = 6
"""Trials of Optuna's samplers before they learn, the baseline included."""
PLATEAU = 1.05
MICRO_BATCH = "ppo_micro_batch_size_per_gpu"

Setting = dict[str, KnobValue]


class Session:
    """Trials of one method: the baseline is trial 0, then whatever is asked for."""

    def __init__(self, landscape: Landscape, budget: int, seed: int) -> None:
        self.landscape, self.budget, self.seed = landscape, budget, seed
        self.space = LandscapeSpace(landscape)
        self.rng = np.random.default_rng([seed, 7])
        self.records: list[TrialRecord] = []
        self.run(landscape.baseline)

    @property
    def is_over(self) -> bool:
        return len(self.records) >= self.budget

    def run(self, setting: Mapping[str, KnobValue]) -> TrialRecord:
        """Measure a setting."""
        suggestion = {
            "number": len(self.records),
            "attempt": 0,
            "setting": dict(setting),
            "params": dict(setting),
            "overrides": [],
        }
        record = self.landscape.trial(suggestion, self.seed)
        self.records.append(record)
        return record

    def repeat_best(self) -> None:
        """Spend what is left on the best settings that were measured feasible, in turn."""
        feasible = [record for record in self.records if record.feasible]
        feasible.sort(key=lambda record: -(record.value(self.landscape.objective) or 0.0))
        unique = list({key_of(record.setting): record.setting for record in feasible}.values())
        for index in range(self.budget - len(self.records)):
            if unique:
                self.run(unique[:NUM_TOP][index % min(len(unique), NUM_TOP)])

    def best_measured(self) -> Setting | None:
        """Return the best setting that was measured feasible once."""
        feasible = [record for record in self.records if record.feasible]
        best = max(
            feasible, key=lambda r: r.value(self.landscape.objective) or 0.0, default=None
        )
        return best.setting if best is not None else None


Method = Callable[[Landscape, int, int], tuple[list[TrialRecord], Setting | None]]


def ours(sampler: str) -> Method:
    """Return the searcher with one of its samplers."""

    def run(
        landscape: Landscape, budget: int, seed: int
    ) -> tuple[list[TrialRecord], Setting | None]:
        settings = SearchConfig(
            sampler=sampler,
            num_trials=budget,
            max_concurrent=1,
            seed=seed,
            num_startup_trials=2 if sampler == "model" else NUM_RANDOM,
        )
        found = run_directly(landscape, settings, seed=seed)
        return found.records, found.best.setting if found.best is not None else None

    return run


def random(
    landscape: Landscape, budget: int, seed: int
) -> tuple[list[TrialRecord], Setting | None]:
    session = Session(landscape, budget, seed)
    while not session.is_over:
        taken = {key_of(record.setting) for record in session.records}
        setting = session.space.random_valid(session.rng, exclude=taken)
        session.run(setting if setting is not None else landscape.baseline)
    return session.records, session.best_measured()


def ray_optuna(only_feasible: bool) -> Method:
    """Return Ray Tune's OptunaSearch, asked and told as its controller does."""

    def run(
        landscape: Landscape, budget: int, seed: int
    ) -> tuple[list[TrialRecord], Setting | None]:
        from ray.tune.search.optuna import OptunaSearch

        session = Session(landscape, budget, seed)
        search = OptunaSearch(
            space=session.space.distributions(),
            metric=landscape.objective,
            mode="max" if is_maximised(landscape.objective) else "min",
            points_to_evaluate=[dict(landscape.baseline)],
            seed=seed,
        )
        search.suggest("0")
        _tell_ray(search, "0", session.records[0], landscape.objective)
        while not session.is_over:
            name = str(len(session.records))
            asked = search.suggest(name)
            assert asked is not None
            record = session.run(_existing(session.space, asked))
            _tell_ray(search, name, record, landscape.objective)
        if only_feasible:
            return session.records, session.best_measured()
        complete = [r for r in session.records if r.value(landscape.objective) is not None]
        best = max(complete, key=lambda r: r.value(landscape.objective) or 0.0, default=None)
        return session.records, best.setting if best is not None else None

    return run


def _tell_ray(search: Any, name: str, record: TrialRecord, objective: str) -> None:
    value = record.value(objective)
    if value is None:
        search.on_trial_complete(name, error=True)
    else:
        search.on_trial_complete(name, result={**record.metrics, objective: value})


def optuna_direct(kind: str) -> Method:
    """Return Optuna's sampler under constraints, used with care."""

    def run(
        landscape: Landscape, budget: int, seed: int
    ) -> tuple[list[TrialRecord], Setting | None]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = _optuna_sampler(kind, seed)
        is_larger_better = is_maximised(landscape.objective)
        study = optuna.create_study(
            direction="maximize" if is_larger_better else "minimize", sampler=sampler
        )
        session = Session(landscape, budget, seed)
        distributions = session.space.distributions()
        study.enqueue_trial(dict(landscape.baseline))
        record: TrialRecord | None = session.records[0]
        while record is not None:
            trial = study.ask()
            asked = {name: _suggest(trial, name, d) for name, d in distributions.items()}
            if trial.number > 0:
                record = session.run(_existing(session.space, asked))
            values = [r.value(landscape.objective) for r in session.records]
            known = [value for value in values if value is not None]
            for constraint in landscape.constraints:
                violation = record.violations.get(constraint.metric)
                trial.set_constraint(constraint.metric, 0.0 if violation is None else violation)
            trial.set_constraint("failed", 1.0 if record.state.is_failure else -1.0)
            value = record.value(landscape.objective)
            worst = min(known, default=0.0) if is_larger_better else max(known, default=0.0)
            study.tell(trial, worst if value is None else value)
            if len(session.records) >= budget - int(REPEAT_RATIO * budget):
                break
        session.repeat_best()
        best = best_feasible(session.records, landscape.objective)
        return session.records, best.setting if best is not None else None

    return run


def _optuna_sampler(kind: str, seed: int) -> Any:
    from optuna.samplers import GPSampler, TPESampler

    if kind == "gp":
        return GPSampler(seed=seed, n_startup_trials=NUM_RANDOM)
    if kind == "botorch":
        from optuna_integration import BoTorchSampler

        return BoTorchSampler(seed=seed, n_startup_trials=NUM_RANDOM)
    return TPESampler(seed=seed, n_startup_trials=NUM_RANDOM, multivariate=True)


def deepspeed(
    landscape: Landscape, budget: int, seed: int
) -> tuple[list[TrialRecord], Setting | None]:
    session = Session(landscape, budget, seed)
    sizes = sorted({int(row.setting[MICRO_BATCH]) for row in landscape.rows})
    groups = {
        key_of(_others(row.setting)): _others(row.setting) for row in landscape.rows
    }
    first = key_of(_others(landscape.baseline))
    order = [first, *(key for key in groups if key != first)]
    rest = order[1:]
    session.rng.shuffle(rest)
    for key in [first, *rest]:
        before = 0.0
        peaks: dict[int, float] = {}
        for size in sizes:
            setting = {**groups[key], MICRO_BATCH: size}
            if key_of(setting) not in landscape.by_key or not _extrapolates(peaks, size):
                break
            known = [r for r in session.records if r.setting == setting]
            if not known and session.is_over:
                return session.records, session.best_measured()
            record = known[0] if known else session.run(setting)
            value = record.value(landscape.objective)
            if value is None or value < PLATEAU * before:
                break
            before = value
            peaks[size] = record.metrics.get("peak_memory_ratio") or 0.0
    return session.records, session.best_measured()


def _extrapolates(peaks: Mapping[int, float], size: int) -> bool:
    """Say whether a line through the last two peaks stays within the device."""
    if len(peaks) < 2:
        return True
    (a, low), (b, high) = sorted(peaks.items())[-2:]
    return high + (high - low) / (b - a) * (size - b) <= 1.0


def _others(setting: Mapping[str, KnobValue]) -> Setting:
    return {name: value for name, value in setting.items() if name != MICRO_BATCH}


def _suggest(trial: Any, name: str, distribution: Any) -> KnobValue:
    choices = getattr(distribution, "choices", None)
    if choices is not None:
        return trial.suggest_categorical(name, choices)
    if isinstance(distribution.low, int):
        return trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def _existing(space: LandscapeSpace, asked: Mapping[str, KnobValue]) -> Setting:
    """Return the nearest setting that exists: parameters are offloaded with the optimizer only."""
    setting = space.snap(asked)
    return setting if space.is_valid(setting) else {**setting, "optimizer_offload": True}


METHODS: dict[str, Method] = {
    "model": ours("model"),
    "random": random,
    "ray_optuna": ray_optuna(only_feasible=False),
    "ray_optuna_feasible": ray_optuna(only_feasible=True),
    "optuna_tpe": optuna_direct("tpe"),
    "deepspeed": deepspeed,
    "optuna_gp": optuna_direct("gp"),
    "optuna_botorch": optuna_direct("botorch"),
    "model_tpe": ours("tpe"),
    "model_gp": ours("gp"),
}
_NEEDS = {"optuna_botorch": ("optuna_integration", "botorch")}
"""Packages that a method needs besides ours."""


def missing_packages(method: str) -> list[str]:
    """Return the packages that a method needs and that are not installed."""
    return [name for name in _NEEDS.get(method, ()) if importlib.util.find_spec(name) is None]
