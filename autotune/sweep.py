"""Building and running a sweep: Ray Tune's Tuner with our Searcher, Trainable and a callback.

Runs in the driver. Keeps everything in the sweep's folder: the resolved configuration, versions,
records, the Optuna study, logs, ``best.yaml``. A sweep that was interrupted, in whatever way, goes
on when it is run again; its records decide what is left to do, so nothing of Tune's own
bookkeeping has to survive.
"""

import contextlib
import logging
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from autotune.config import ResourcesConfig, Sweep, to_yaml
from autotune.errors import BadInputError, SweepError
from autotune.export import best_yaml
from autotune.objective import TrialRecord, best_feasible
from autotune.report.live import LiveTable
from autotune.report.text import SweepOutline
from autotune.store import SweepStore

CONFIG_FILE, VERSIONS_FILE, BEST_FILE = "config.yaml", "versions.yaml", "best.yaml"
PACKAGES = ("verl-autotune", "verl", "torch", "ray", "optuna", "transformers", "vllm")

_HELPER_CPUS = 4
"""Logical CPUs that a job's helper actors need besides those of its placement group
(TransferQueue's controller, and room to create actors in), each TransferQueue storage unit one
more."""

_TUNE_ENVIRONMENT = {
    # Tune's own result files repeat our records; its progress output would fight with the live
    # table.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    # A failed trial reports a record and no metric.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # verl runs where the sweep was started, as it would without us.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What a finished or stopped sweep left."""

    records: list[TrialRecord]
    best: TrialRecord | None
    """The best feasible trial."""
    is_complete: bool
    """Whether the budget was used up; False after an interruption."""
    failure: str | None
    """Why the sweep could not go on; None when it could."""


def outline_of(sweep: Sweep) -> SweepOutline:
    """Return what progress and summary say about the sweep itself."""
    from autotune.trial import num_steps

    return SweepOutline(
        name=sweep.config.name,
        objective=sweep.config.objective.metric,
        constraints=sweep.config.constraints,
        baseline=sweep.space.baseline(),
        num_trials=sweep.config.search.num_trials,
        steps_per_trial=num_steps(sweep.config.trial),
        max_concurrent=sweep.config.search.max_concurrent,
    )


def store_of(sweep: Sweep) -> SweepStore:
    """Return the sweep's folder, relative to the current one."""
    return SweepStore(Path(sweep.config.output_dir).resolve() / sweep.config.name)


def run_sweep(sweep: Sweep, *, address: str | None, console: Any) -> SweepResult:
    """Run what is left of a sweep.

    Args:
        sweep: The loaded sweep.
        address: Ray cluster to use; None starts a local one.
        console: Where the live table goes (rich).

    Raises:
        BadInputError: The folder holds a different sweep.
        SweepError: The folder is in use, or the cluster cannot hold one trial.
    """
    store = store_of(sweep)
    with store.locked():
        _write_inputs(sweep, store)
        with _cluster(sweep, address):
            result = _tune(sweep, store, console)
        baseline = next((record for record in result.records if record.number == 0), None)
        if result.best is not None and baseline is not None:
            store.write(BEST_FILE, best_yaml(sweep, result.best, baseline, versions()))
    return result


def _write_inputs(sweep: Sweep, store: SweepStore) -> None:
    text = to_yaml(sweep.config)
    existing = store.folder / CONFIG_FILE
    if existing.exists() and not _may_continue(existing.read_text(encoding="utf-8"), text):
        raise BadInputError(
            f"{store.folder} holds a sweep with other settings than the file has now.",
            "Give the sweep another `name`, or remove the folder. Only search.num_trials and "
            "search.max_concurrent may change when a sweep goes on.",
        )
    store.write(CONFIG_FILE, text)
    store.write(VERSIONS_FILE, yaml.safe_dump(dict(versions()), sort_keys=False))


def _may_continue(old: str, new: str) -> bool:
    contents = [yaml.safe_load(text) for text in (old, new)]
    for content in contents:
        for key in ("num_trials", "max_concurrent"):
            content["search"].pop(key)
    return bool(contents[0] == contents[1])


def versions() -> Mapping[str, str]:
    """Return package -> installed version, Python and platform included."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def bundles(resources: ResourcesConfig) -> list[dict[str, float]]:
    """Return a trial's placement group: the trial actor's bundle, then one for each rank."""
    rank: dict[str, float] = {"CPU": resources.cpus_per_rank}
    if resources.device == "gpu":
        rank["GPU"] = 1
    return [{"CPU": 1.0}] + [dict(rank) for _ in range(resources.num_ranks)]


@contextlib.contextmanager
def _cluster(sweep: Sweep, address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine; leave it afterwards."""
    os.environ.update(_TUNE_ENVIRONMENT)
    import ray

    logging.getLogger("ray").setLevel(logging.WARNING)
    # It misses Tune's own result files, which are switched off; our records stand for them.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if address is None:
        needed = sweep.config.search.max_concurrent * _cpus_of_a_trial(sweep)
        options |= {
            "address": "local",
            "num_cpus": max(needed, os.cpu_count() or 1),
            "include_dashboard": False,
        }
    else:
        options["address"] = address
    ray.init(**options)
    try:
        _check_fits(sweep, ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def _cpus_of_a_trial(sweep: Sweep) -> int:
    units = sweep.base_config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    group = sum(bundle["CPU"] for bundle in bundles(sweep.config.resources))
    return int(group + units + _HELPER_CPUS)


def _check_fits(sweep: Sweep, available: Mapping[str, float]) -> None:
    needed: dict[str, float] = {"CPU": float(_cpus_of_a_trial(sweep))}
    if sweep.config.resources.device == "gpu":
        needed["GPU"] = sum(bundle.get("GPU", 0) for bundle in bundles(sweep.config.resources))
    for name, amount in needed.items():
        if available.get(name, 0) < amount:
            raise SweepError(
                f"One trial needs {amount:g} {name}, the cluster has {available.get(name, 0):g}.",
                "Lower resources.nodes or resources.ranks_per_node, or use a larger cluster.",
            )


def _tune(sweep: Sweep, store: SweepStore, console: Any) -> SweepResult:
    from ray import tune

    from autotune.progress import Progress
    from autotune.search import SweepSearcher
    from autotune.trial import TrialSpec, VerlTrial

    searcher = SweepSearcher(
        sweep.space,
        sweep.config.search,
        objective=sweep.config.objective.metric,
        constraints=sweep.config.constraints,
        max_retries=sweep.config.trial.max_retries,
        records=store,
    )
    resources = sweep.config.resources
    trainable = tune.with_resources(
        tune.with_parameters(VerlTrial, spec=TrialSpec.of(sweep, store.folder / "logs")),
        tune.PlacementGroupFactory(bundles(resources), strategy=resources.strategy),
    )
    with LiveTable(outline_of(sweep), console, finished=store.read_trials()) as table:
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                num_samples=-1,
                max_concurrent_trials=sweep.config.search.max_concurrent,
                reuse_actors=True,
                # Tune's own names spell out every override and outgrow the file system's limit.
                trial_dirname_creator=_folder_of_trial,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(store.folder),
                callbacks=[Progress(store, table)],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        )
        with contextlib.suppress(KeyboardInterrupt):
            # Tune stops its trials at the first Ctrl-C and returns; a second one raises.
            tuner.fit()
    is_complete = searcher.is_done
    searcher.close()
    records = store.read_trials()
    return SweepResult(
        records=records,
        best=best_feasible(records, sweep.config.objective.metric),
        is_complete=is_complete,
        failure=searcher.failure,
    )


def _folder_of_trial(trial: Any) -> str:
    return f"trial_{trial.config['number']:04d}_{trial.trial_id}"
