"""Trials of one sweep on a Ray cluster: connecting to it, and one Ray Tune run over a searcher.

Runs in the driver. A sweep, and whatever else runs trials (a comparison of settings, a replay),
differ in searcher and Trainable only. Nothing of Tune's own bookkeeping has to survive: records
decide what is left to do.
"""

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.config import Sweep
from autotune.errors import SweepError
from autotune.leftovers import identity_of, named_groups
from autotune.placement import bundles, cpus_of_a_trial, why_none_fits
from autotune.store import make_folder

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


_CONNECT_TIMEOUT_S = 10.0


@contextlib.contextmanager
def cluster(sweep: Sweep, address: str | None) -> Iterator[None]:
    """Connect to a cluster that can hold a trial, or start one on this machine; leave it
    afterwards.

    Raises:
        SweepError: It cannot hold one trial.
    """
    with connection(sweep, address):
        import ray

        _check_fits(sweep, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        yield


@contextlib.contextmanager
def connection(sweep: Sweep, address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start one on this machine for the sweep; leave it afterwards."""
    of_a_trial = cpus_of_a_trial(sweep.config.resources, storage_units(sweep))
    needed = sweep.config.search.max_concurrent * of_a_trial
    with local_cluster(needed) if address is None else _connected(address=address):
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
    _connect(log_to_driver=False, logging_level=logging.WARNING, **options)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(*, address: str, **options: Any) -> None:
    """Connect this process to a cluster, or start one where the address is ``local``.

    Raises:
        SweepError: There is no cluster at the address, or it lets nobody in without its token.
    """
    import ray

    if address == "local":
        ray.init(address=address, **options)
        return
    try:
        _knock(address)
        ray.init(address=address, **options)
    except (OSError, ValueError, ray.exceptions.AuthenticationError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise SweepError(
            f"There is no Ray cluster to be used at --address {address}: {reason}.",
            "Start one (ray start --head), give the address of its head node as host:port, or "
            "leave --address out: a local one is then started.",
        ) from error


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at ``host:port``: Ray itself tries for ten minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


def storage_units(sweep: Sweep) -> int:
    """Return the number of TransferQueue's storage actors in each trial's job."""
    return int(sweep.base_config.transfer_queue.backend.SimpleStorage.num_data_storage_units)


def _check_fits(sweep: Sweep, nodes: Sequence[Mapping[str, float]]) -> None:
    problem = why_none_fits(sweep.config.resources, storage_units(sweep), nodes)
    if problem:
        raise SweepError(
            problem, "Lower resources.nodes or resources.ranks_per_node, or use a larger cluster."
        )


def trials_of(sweep: Sweep, log_folder: Path, *, always_cold: bool = False) -> Any:
    """Return the Trainable that runs settings as real verl jobs, with its resources.

    Args:
        sweep: Whose base job, protocol and resources are used.
        log_folder: Where the jobs' output goes.
        always_cold: Whether every setting gets a verl process of its own, and no recovery rule
            changes it.
    """
    from ray import tune

    from autotune.trial import TrialSpec, VerlTrial

    resources = sweep.config.resources
    sweep_id = identity_of(log_folder.parent)
    spec = TrialSpec.of(sweep, log_folder, sweep_id, always_cold=always_cold)
    if spec.rollout_folder is not None:
        # A node on which it is not seen does not share the sweep's folder.
        make_folder(spec.rollout_folder)
    return tune.with_resources(
        tune.with_parameters(VerlTrial, spec=spec),
        # The trial actor itself needs nothing: it lives beside the first bundle.
        named_groups(sweep_id, [{}, *bundles(resources)], resources.strategy),
    )


def run_tuner(
    searcher: Any,
    trainable: Any,
    *,
    max_concurrent: int,
    callbacks: Sequence[Any],
    scheduler: Any = None,
    has_next: Callable[[], bool] | None = None,
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
        has_next: Whether another trial is to start, as far as is known; while none is, an idle
            trial's actor ends, although others still run. None: unless the searcher is finished.
    """
    from ray import tune

    from autotune.idle_trials import FreeingSearch

    with tempfile.TemporaryDirectory(prefix="autotune_tune_", ignore_cleanup_errors=True) as folder:
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=FreeingSearch(
                    searcher, max_concurrent=max_concurrent, has_next=has_next
                ),
                scheduler=scheduler,
                num_samples=-1,
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
