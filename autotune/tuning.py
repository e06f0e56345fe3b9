"""Trials of one sweep on a Ray cluster: connecting to it, and one Ray Tune run over a searcher.

Runs in the driver. A sweep, and whatever else runs trials (a comparison of settings, a replay),
differ in searcher and Trainable only. Nothing of Tune's own bookkeeping has to survive: records
decide what is left to do.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.config import Sweep
from autotune.errors import SweepError
from autotune.settings import ResourcesConfig

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


def bundles(resources: ResourcesConfig) -> list[dict[str, float]]:
    """Return a trial's placement group: the trial actor's bundle, then one for each rank."""
    rank: dict[str, float] = {"CPU": resources.cpus_per_rank}
    if resources.device == "gpu":
        rank["GPU"] = 1
    return [{"CPU": 1.0}] + [dict(rank) for _ in range(resources.num_ranks)]


@contextlib.contextmanager
def cluster(sweep: Sweep, address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine; leave it afterwards."""
    needed = sweep.config.search.max_concurrent * _cpus_of_a_trial(sweep)
    with local_cluster(needed) if address is None else _connected(address=address):
        import ray

        _check_fits(sweep, ray.cluster_resources())
        yield


@contextlib.contextmanager
def local_cluster(num_cpus: int) -> Iterator[None]:
    """Start Ray on this machine with at least so many logical CPUs; stop it afterwards."""
    num_cpus = max(num_cpus, os.cpu_count() or 1)
    with _connected(address="local", num_cpus=num_cpus, include_dashboard=False):
        yield


@contextlib.contextmanager
def _connected(**options: Any) -> Iterator[None]:
    os.environ.update(_TUNE_ENVIRONMENT)
    import ray

    logging.getLogger("ray").setLevel(logging.WARNING)
    # It misses Tune's own result files, which are switched off; our records stand for them.
    logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
    ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)
    try:
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


def trials_of(sweep: Sweep, log_folder: Path) -> Any:
    """Return the Trainable that runs settings as real verl jobs, with its resources."""
    from ray import tune

    from autotune.trial import TrialSpec, VerlTrial

    resources = sweep.config.resources
    return tune.with_resources(
        tune.with_parameters(VerlTrial, spec=TrialSpec.of(sweep, log_folder)),
        tune.PlacementGroupFactory(bundles(resources), strategy=resources.strategy),
    )


def run_tuner(
    searcher: Any,
    trainable: Any,
    *,
    max_concurrent: int,
    callbacks: Sequence[Any],
    scheduler: Any = None,
) -> None:
    """Run trials until the searcher has no more; Ctrl-C ends the run and returns.

    Tune's own files, which hold the trials' configurations as pickles, lie in a temporary folder
    that is gone afterwards.

    Args:
        searcher: A ``ray.tune.search.Searcher`` that says FINISHED by itself; its configurations
            have a ``number``.
        trainable: What runs a trial, with its resources.
        max_concurrent: Trials at once.
        callbacks: Tune callbacks.
        scheduler: A ``ray.tune.schedulers.TrialScheduler``; None runs every trial to its end.
    """
    from ray import tune

    with tempfile.TemporaryDirectory(prefix="autotune_tune_", ignore_cleanup_errors=True) as folder:
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                scheduler=scheduler,
                num_samples=-1,
                max_concurrent_trials=max_concurrent,
                reuse_actors=True,
                # Tune's own names spell out every override and outgrow the file system's limit.
                trial_dirname_creator=_folder_of_trial,
            ),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=folder,
                callbacks=list(callbacks),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        )
        with contextlib.suppress(KeyboardInterrupt):
            # Tune stops its trials at the first Ctrl-C and returns; a second one raises.
            tuner.fit()


def _folder_of_trial(trial: Any) -> str:
    return f"trial_{trial.config['number']:04d}_{trial.trial_id}"
