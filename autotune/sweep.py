"""A sweep from its file to its best setting: our Searcher, Trainable and callback in Ray Tune.

Runs in the driver. Keeps everything in the sweep's folder: the resolved configuration, versions,
records, the Optuna study, logs, and, once it is proven, the best setting. A sweep that was
interrupted, in whatever way, goes on when it is run again; its records decide what is left to do,
so nothing of Tune's own bookkeeping has to survive.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.calibrate import calibration_of
from autotune.config import Sweep, to_yaml
from autotune.errors import AutotuneError, BadInputError, SweepError
from autotune.export import BaseJob, export
from autotune.leftovers import cleared
from autotune.mirror import mirrored, restore
from autotune.models.calibration_record import CalibrationRecord
from autotune.models.overlap_settings import TIMES
from autotune.objective import TrialRecord, best_feasible, timestamp
from autotune.published import publish
from autotune.redaction import mask
from autotune.report.calibration_text import calibration_line
from autotune.report.live import LiveTable
from autotune.report.text import SweepOutline
from autotune.store import (
    BASE_JOB_FILE,
    CONFIG_FILE,
    LOG_FOLDER,
    STOP_FILE,
    VERSIONS_FILE,
    SweepStore,
)
from autotune.tuning import cluster, run_tuner, storage_units, trials_of
from autotune.verification import Verification
from autotune.verl_bridge.overlap_rules import calibration_overrides, overlap_keys
from autotune.verl_bridge.overrides import compose_base, leaves
from autotune.versions import versions


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
    stop_reason: str | None
    """Why it ended before its number of trials, in words; None when it did not."""
    verification: Verification | None = None
    """What the best settings proved when they were measured again; None where none were."""


def outline_of(sweep: Sweep) -> SweepOutline:
    """Return what progress and summary say about the sweep itself."""
    from autotune.protocol import num_steps

    return SweepOutline(
        name=sweep.config.name,
        objective=sweep.config.objective.metric,
        constraints=sweep.config.constraints,
        baseline=sweep.space.baseline(),
        num_trials=sweep.config.search.num_trials,
        steps_per_trial=num_steps(sweep.config.trial),
        max_concurrent=sweep.config.search.max_concurrent,
        fidelity=sweep.config.trial.fidelity,
    )


def store_of(sweep: Sweep) -> SweepStore:
    """Return the sweep's folder, relative to the current one."""
    return SweepStore(Path(sweep.config.output_dir).resolve() / sweep.config.name)


def copy_uri_of(sweep: Sweep) -> str | None:
    """Return where the sweep's copy lies in its storage; None without ``output_uri``."""
    uri = sweep.config.output_uri
    return None if uri is None else f"{uri.rstrip('/')}/{sweep.config.name}"


@contextlib.contextmanager
def opened(sweep: Sweep) -> Iterator[SweepStore]:
    """Hold the sweep's folder, brought up to date from its copy, with the sweep's inputs in it; the
    copy follows until the end.

    Raises:
        BadInputError: The folder holds a different sweep.
        SweepError: The folder is in use, or its copy holds another sweep's records.
    """
    store = store_of(sweep)
    copy_uri = copy_uri_of(sweep)
    with store.locked():
        # The copy is written to only once it is known to be this sweep's.
        restore(store.folder, copy_uri)
        with mirrored(store.folder, copy_uri):
            _write_inputs(sweep, store)
            yield store


def run_sweep(
    sweep: Sweep,
    store: SweepStore,
    *,
    address: str | None,
    console: Any,
    published_as: str | None = None,
) -> SweepResult:
    """Run what is left of a sweep.

    Args:
        sweep: The loaded sweep.
        store: Its folder, see :func:`opened`.
        address: Ray cluster to use; None starts a local one.
        console: Where the live table goes (rich).
        published_as: Name under which the cluster's dashboard shows the sweep's folder; None shows
            it nowhere.

    Raises:
        SweepError: The cluster cannot hold one trial.
    """
    with cluster(sweep, address), cleared(store.folder):
        if published_as is not None:
            publish(store.folder, published_as)
        loaded = sweep
        sweep = with_calibration(loaded, calibrate_sweep(loaded, store, console))
        measured = sweep.base_overrides[len(loaded.base_overrides) :]
        store.write(BASE_JOB_FILE, BaseJob.of(sweep, measured).to_json())
        result = _tune(sweep, store, console)
        if result.is_complete and sweep.config.verify.enabled:
            result = _verify(sweep, store, result, console)
    if result.verification is not None and result.verification.winner is not None:
        result = _export(store, result)
    return result


def circumstances_of(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Return what the sweep's measurements depend on, on the cluster that it is connected to."""
    import ray

    from autotune.warm_start import circumstances

    kinds = [name for name in ray.cluster_resources() if name.startswith("accelerator_type:")]
    return circumstances(sweep, accelerators=kinds, versions=versions())


def _verify(sweep: Sweep, store: SweepStore, result: SweepResult, console: Any) -> SweepResult:
    """Measure the best settings and the baseline again; nothing where the baseline is the best."""
    from autotune.verify import Verifier, attempt_of, best_candidates

    candidates = best_candidates(sweep, result.records)
    if not candidates:
        return result
    attempt = attempt_of(sweep, store, candidates, again=False)
    try:
        found = Verifier(sweep, store, candidates, console=console, attempt=attempt).run()
    except SweepError as error:
        return dataclasses.replace(result, failure=str(error))
    return dataclasses.replace(result, verification=found, is_complete=found is not None)


def _export(store: SweepStore, result: SweepResult) -> SweepResult:
    """Write the winner's files into the sweep's folder; what cannot be written is the failure."""
    try:
        refused = export(store.folder, store.folder, allow_unproven=False).refused
    except AutotuneError as error:
        refused = str(error)
    return dataclasses.replace(result, failure=refused)


def calibrate_sweep(sweep: Sweep, store: SweepStore, console: Any) -> CalibrationRecord | None:
    """Measure the cluster unless that is done or switched off; a failure is said, never fatal."""
    if not sweep.config.calibrate:
        return None
    record = None
    try:
        record = calibration_of(sweep, store, console)
        line = calibration_line(record)
    except SweepError as error:
        line = f"{error} The sweep goes on without it."
    console.print(line, markup=False, highlight=False)
    return record


def with_calibration(sweep: Sweep, record: CalibrationRecord | None) -> Sweep:
    """Return the sweep with its cluster's calibration in the base job, where its plans need one.

    Raises:
        SweepError: They need one and there is none.
    """
    base_leaves = leaves(sweep.base_config)
    needed = [name for name in TIMES if name in sweep.space.knobs]
    needed += [name for name in TIMES if any(base_leaves.get(key) for key in overlap_keys(name))]
    if not needed:
        return sweep
    if record is None:
        raise SweepError(
            f"{needed[0]} is a time, and this cluster was not calibrated.",
            "Set calibrate: true in the sweep file, or leave "
            f"{' and '.join(dict.fromkeys(needed))} out.",
        )
    added = calibration_overrides(record.constants, base_leaves)
    base_overrides = (*sweep.base_overrides, *added)
    base_config = compose_base(sweep.config.base.config_name, base_overrides)
    return dataclasses.replace(sweep, base_overrides=base_overrides, base_config=base_config)


def _write_inputs(sweep: Sweep, store: SweepStore) -> None:
    text = to_yaml(sweep.config)
    existing = store.folder / CONFIG_FILE
    if existing.exists() and identity(existing.read_text(encoding="utf-8")) != identity(text):
        raise BadInputError(
            f"{store.folder} holds a sweep with other settings than the file has now.",
            "Give the sweep another `name`, or remove the folder. Only search.num_trials, "
            "search.max_concurrent, the budgets, verify and wandb may change when a sweep goes on.",
        )
    store.write(CONFIG_FILE, text)
    store.write(VERSIONS_FILE, with_this_run(store.folder / VERSIONS_FILE))


def with_this_run(path: Path) -> str:
    """Return the list of the sweep's runs, each with its versions, this one at the end."""
    runs = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else []
    runs.append({"started_at": timestamp(), "versions": dict(versions())})
    return yaml.safe_dump(runs, sort_keys=False)


def identity(config: str) -> dict[str, Any]:
    """Return what makes a sweep the same one: its resolved file without budgets and folders.

    Secrets are masked, as they are in every file: what is compared may have been read from one.
    """
    content: dict[str, Any] = mask(yaml.safe_load(config))
    for key in ("num_trials", "max_concurrent", "max_gpu_hours", "max_hours"):
        content["search"].pop(key, None)
    for key in ("output_dir", "output_uri", "wandb", "verify"):
        content.pop(key, None)
    return content


def _tune(sweep: Sweep, store: SweepStore, console: Any) -> SweepResult:
    from autotune.early_stop import EarlyStopScheduler
    from autotune.models.promise import goal_of
    from autotune.models.static_memory import static_bytes
    from autotune.progress import Progress
    from autotune.protocol import num_steps
    from autotune.search import SweepSearcher
    from autotune.stop import StopOnRequest
    from autotune.waiting import WaitsForRoom
    from autotune.warm_start import model_config, warm_start

    base = leaves(sweep.base_config)
    objective = sweep.config.objective
    goal = goal_of(objective.metric, sweep.config.constraints, objective.trade_off)
    earlier = warm_start(
        store,
        sweep.space,
        circumstances_of(sweep),
        folders=sweep.config.search.warm_start,
        goal=goal,
        constraints=sweep.config.constraints,
    )
    for line in earlier.lines:
        console.print(f"Warm start from {line}", markup=False, highlight=False)
    searcher = SweepSearcher(
        sweep.space,
        sweep.config.search,
        objective=sweep.config.objective.metric,
        constraints=sweep.config.constraints,
        max_retries=sweep.config.trial.max_retries,
        records=store,
        trade_off=sweep.config.objective.trade_off,
        steps_per_trial=num_steps(sweep.config.trial),
        num_ranks=sweep.config.resources.num_ranks,
        earlier=earlier.evidence,
        suggested=earlier.suggested,
        static=static_bytes(model_config(base), base),
    )
    stop = StopOnRequest(store.folder / STOP_FILE, searcher)
    with LiveTable(outline_of(sweep), console, finished=store.read_trials()) as table:
        run_tuner(
            searcher,
            trials_of(sweep, store.folder / LOG_FOLDER),
            max_concurrent=sweep.config.search.max_concurrent,
            callbacks=[
                Progress(
                    store, table, record_of=searcher.record_of, on_failure=searcher.fail
                ),
                stop,
                WaitsForRoom(sweep.config.resources, storage_units(sweep)),
            ],
            scheduler=EarlyStopScheduler(searcher),
            has_next=searcher.has_next,
        )
    is_complete = searcher.is_done
    searcher.close()
    records = store.read_trials()
    return SweepResult(
        records=records,
        best=best_feasible(records, sweep.config.objective.metric),
        is_complete=is_complete,
        failure=searcher.failure,
        stop_reason=searcher.stop_reason,
    )
