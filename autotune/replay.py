"""A search in recorded measurements: what would N trials have found?

Runs in the driver, with the searcher, the sampler and the store of a real sweep; only the trials
are played back from a landscape. :func:`run_in_tune` goes through Ray Tune's controller as a sweep
does, steps and early stops included; :func:`run_directly` asks and tells the searcher in a loop,
which is what benchmarks need. Imports its sibling ``tuning``.
"""

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.landscape import Landscape, LandscapeSpace
from autotune.objective import (
    RECORD,
    STEP_RECORD,
    StepKind,
    StepRecord,
    TrialRecord,
    TrialState,
    best_feasible,
    is_maximised,
)
from autotune.search import SweepSearcher
from autotune.settings import SearchConfig
from autotune.store import SweepStore

MEASURED_STEPS = 3
"""Measured steps of a trial that is played back, after one of warm-up."""
_STEP_SPREAD = 0.03
"""Relative standard deviation of a step around its trial's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search in a landscape came to, held against the truth."""

    records: list[TrialRecord]
    best: TrialRecord | None
    """What the sweep would have exported."""
    is_feasible: bool
    """Whether that setting keeps the constraints in truth."""
    optimum_ratio: float
    """Its true objective / the best true objective of a feasible setting, at most 1; 0 where
    nothing or something infeasible is exported."""
    num_failed: int
    """Trials that ran out of memory, hung or broke."""
    stop_reason: str | None


def run_directly(
    landscape: Landscape, settings: SearchConfig, *, seed: int, folder: Path | None = None
) -> Outcome:
    """Search a landscape without Ray, one trial after the other.

    Args:
        landscape: What trials come to.
        settings: As in a sweep file; ``max_concurrent`` is 1.
        seed: Of the noise.
        folder: The sweep's folder; None: a temporary one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        store = SweepStore(folder if folder is not None else Path(temporary) / landscape.name)
        with store.locked():
            searcher = searcher_of(landscape, settings, store)
            while isinstance(suggestion := searcher.suggest("trial"), dict):
                record = landscape.trial(suggestion, seed)
                searcher.on_trial_complete("trial", {RECORD: json.dumps(record.to_dict())})
            return judge(landscape, store.read_trials(), searcher.stop_reason)


def run_in_tune(
    landscape: Landscape, settings: SearchConfig, *, seed: int, folder: Path
) -> Outcome:
    """Search a landscape through Ray Tune; goes on with a folder that was interrupted.

    Args:
        landscape: What trials come to.
        settings: As in a sweep file.
        seed: Of the noise.
        folder: The sweep's folder.
    """
    from autotune.early_stop import EarlyStopScheduler
    from autotune.tuning import local_cluster, run_tuner

    store = SweepStore(folder)
    with store.locked(), local_cluster(num_cpus=settings.max_concurrent):
        searcher = searcher_of(landscape, settings, store)
        run_tuner(
            searcher,
            playback_of(landscape, seed),
            max_concurrent=settings.max_concurrent,
            callbacks=[],
            scheduler=EarlyStopScheduler(searcher),
            has_next=searcher.has_next,
        )
        searcher.close()
        return judge(landscape, store.read_trials(), searcher.stop_reason)


def searcher_of(landscape: Landscape, settings: SearchConfig, store: SweepStore) -> SweepSearcher:
    """Return the searcher of a sweep over a landscape's settings."""
    return SweepSearcher(
        LandscapeSpace(landscape),
        settings,
        objective=landscape.objective,
        constraints=landscape.constraints,
        records=store,
        max_retries=1,
        steps_per_trial=1 + MEASURED_STEPS,
    )


def judge(
    landscape: Landscape, records: list[TrialRecord], stop_reason: str | None = None
) -> Outcome:
    """Hold what a search found against the truth."""
    best = best_feasible(records, landscape.objective)
    is_feasible = best is not None and landscape.is_feasible(best.setting)
    return Outcome(
        records=records,
        best=best,
        is_feasible=is_feasible,
        optimum_ratio=ratio_to_optimum(landscape, best.setting) if best is not None else 0.0,
        num_failed=sum(record.state.is_failure for record in records),
        stop_reason=stop_reason,
    )


def ratio_to_optimum(landscape: Landscape, setting: Mapping[str, Any]) -> float:
    """Return a setting's true objective relative to the feasible optimum; 0 if infeasible."""
    if not landscape.is_feasible(setting):
        return 0.0
    value = landscape.true_metrics(setting)[landscape.objective]
    best = landscape.optimum
    return value / best if is_maximised(landscape.objective) else best / value


def playback_of(landscape: Landscape, seed: int) -> Any:
    """Return a Trainable that plays a landscape's trials back, step by step."""
    from ray import tune

    class Playback(tune.Trainable):
        def setup(
            self,
            config: dict[str, Any],
            landscape: Landscape | None = None,
            seed: int = 0,
        ) -> None:
            assert landscape is not None
            self._landscape, self._seed = landscape, seed
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._suggestion, self._step = new_config, 0
            self._record = self._landscape.trial(new_config, self._seed)
            return True

        def step(self) -> dict[str, Any]:
            self._step += 1
            is_last = self._step > MEASURED_STEPS
            if self._record.state is not TrialState.COMPLETE or is_last:
                return {"done": True, RECORD: json.dumps(self._record.to_dict())}
            step = step_of(self._suggestion, self._record, self._step, self._seed)
            return {"done": False, STEP_RECORD: json.dumps(step.to_dict())}

    return tune.with_parameters(Playback, landscape=landscape, seed=seed)


def step_of(
    suggestion: Mapping[str, Any], record: TrialRecord, step: int, seed: int
) -> StepRecord:
    """Return one step of a trial that is played back; the first one is warm-up."""
    rng = np.random.default_rng([seed, record.number, step])
    throughput = record.metrics.get("throughput_tokens_per_s_per_gpu")
    metrics: dict[str, Any] = {}
    if throughput is not None:
        speed = throughput * math.exp(_STEP_SPREAD * rng.standard_normal())
        metrics = {"perf/throughput": speed, "timing_s/step": 1e5 / speed}
    return StepRecord(
        number=record.number,
        attempt=suggestion["attempt"],
        step=step,
        kind=StepKind.WARMUP if step == 1 else StepKind.MEASURED,
        metrics=metrics,
    )
