"""What an earlier sweep is worth for this one: its measurements where all is alike, else its ideas.

Runs in the driver, before the first trial. A sweep's folder holds ``circumstances.json``: model
shape, hardware, world size, software versions and workload. Where an earlier sweep's are equal, its
trials are evidence about this one's settings, with every metric held against this sweep's own
limits; where anything differs, only its best settings are taken as suggestions, and why is said.
What was read is kept in ``warm_start.json``, so that a resumed sweep does not depend on the other
folder. Imports its siblings ``store``, ``mirror`` and ``sampler``.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.config import Sweep
from autotune.errors import BadInputError
from autotune.metrics import WHOLE_STEP
from autotune.mirror import stored_files
from autotune.models.evidence import Evidence
from autotune.models.promise import Goal
from autotune.objective import Constraint, TrialRecord, TrialState, best_feasible, evaluate
from autotune.sampler import SearchSpace, Setting
from autotune.store import SweepStore
from autotune.verl_bridge import job
from autotune.verl_bridge.job import Leaves
from autotune.verl_bridge.overrides import leaves

CIRCUMSTANCES_FILE, WARM_START_FILE = "circumstances.json", "warm_start.json"
NUM_SUGGESTED = 2
"""Settings that an earlier sweep suggests, the best ones that are feasible here."""

_SHAPE = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
_WORKLOAD = (
    "algorithm.adv_estimator",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    f"{job.ACTOR}.strategy",
    f"{job.ACTOR}.ppo_mini_batch_size",
    f"{job.ACTOR}.ppo_epochs",
    f"{job.ROLLOUT}.n",
    f"{job.ROLLOUT}.name",
)
_VERSIONS = ("verl", "torch", "vllm", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """What earlier sweeps give to this one."""

    evidence: list[Evidence]
    suggested: list[Setting]
    lines: list[str]
    """What was taken from which folder and why not more, to be printed."""


def circumstances(
    sweep: Sweep, *, accelerators: Sequence[str], versions: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return what measurements of a sweep depend on besides its settings.

    Args:
        sweep: The loaded sweep.
        accelerators: Kinds of accelerator in the cluster, as Ray names them.
        versions: Package -> version.
    """
    base = leaves(sweep.base_config)
    config = model_config(base)
    resources = sweep.config.resources
    return {
        "model": {name: config[name] for name in _SHAPE if name in config}
        or {"path": base[f"{job.MODEL}.path"]},
        "hardware": {"device": resources.device, "accelerators": sorted(accelerators)},
        "world size": {"nodes": resources.nodes, "ranks_per_node": resources.ranks_per_node},
        "versions": {name: versions[name] for name in _VERSIONS if name in versions},
        "workload": {key: base[key] for key in _WORKLOAD if key in base},
        "fidelity": {"trial.fidelity": sweep.config.trial.fidelity},
    }


def check_folders(folders: Sequence[str], own_folder: Path, copy_uri: str | None) -> None:
    """Check the earlier sweeps of a sweep that is about to begin; one that goes on needs them no
    more.

    Args:
        folders: Earlier sweeps.
        own_folder: The folder of this sweep, there or not.
        copy_uri: Where a copy of it lies in storage, if it has one.

    Raises:
        BadInputError: A folder that holds no sweep.
    """
    if (own_folder / WARM_START_FILE).exists():
        return
    for index, folder in enumerate(folders):
        if SweepStore(Path(folder)).read_trials():
            continue
        if copy_uri is not None and WARM_START_FILE in dict(stored_files(copy_uri)):
            return
        raise _holds_no_sweep(Path(folder), index)


def _holds_no_sweep(folder: Path, index: int) -> BadInputError:
    missing = "holds no finished trial of a sweep" if folder.is_dir() else "does not exist"
    return BadInputError(
        f"search.warm_start[{index}]: {folder} {missing}.",
        "Give the folder of an earlier sweep, e.g. sweeps/quickstart_cpu.",
    )


def warm_start(
    store: SweepStore,
    space: SearchSpace,
    own: Mapping[str, Mapping[str, Any]],
    *,
    folders: Sequence[str],
    goal: Goal,
    constraints: Sequence[Constraint],
) -> WarmStart:
    """Return what the named sweeps give; what a first run has read is read again from the store.

    Args:
        store: This sweep's, locked.
        space: This sweep's settings.
        own: This sweep's circumstances; written to its folder.
        folders: Earlier sweeps.
        goal: Objective of this sweep and what the models read.
        constraints: Limits of this sweep.

    Raises:
        BadInputError: A folder that holds no sweep.
    """
    path = store.folder / WARM_START_FILE
    if path.exists():
        return _from_json(path.read_text(encoding="utf-8"))
    check_folders(folders, store.folder, None)
    parts = [
        _read(Path(folder), space, own, goal=goal, constraints=constraints) for folder in folders
    ]
    found = WarmStart(
        evidence=[trial for part in parts for trial in part.evidence],
        suggested=[setting for part in parts for setting in part.suggested],
        lines=[line for part in parts for line in part.lines],
    )
    store.write(CIRCUMSTANCES_FILE, json.dumps(own, indent=1))
    store.write(WARM_START_FILE, json.dumps(dataclasses.asdict(found)))
    return found


def _read(
    folder: Path,
    space: SearchSpace,
    own: Mapping[str, Mapping[str, Any]],
    *,
    goal: Goal,
    constraints: Sequence[Constraint],
) -> WarmStart:
    records = SweepStore(folder).read_trials()
    usable = [_moved(record, records[0].setting, space, constraints) for record in records]
    kept = [record for record in usable if record is not None]
    difference = _difference(folder, own)
    suggested = _best(kept, _measured_objective(kept, goal.objective))
    if difference:
        text = f"{len(suggested)} suggestion(s) only: another {' and '.join(difference)}"
        return WarmStart(evidence=[], suggested=suggested, lines=[f"{folder}: {text}."])
    told = [record for record in kept if record.state.is_setting_fault]
    evidence = [Evidence.of(record, goal.metrics) for record in told]
    text = f"{len(evidence)} trial(s) and {len(suggested)} suggestion(s)"
    return WarmStart(evidence=evidence, suggested=suggested, lines=[f"{folder}: {text}."])


def _difference(folder: Path, own: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return which circumstances differ; all where the earlier sweep did not note them."""
    path = folder / CIRCUMSTANCES_FILE
    if not path.exists():
        return [*own]
    theirs = json.loads(path.read_text(encoding="utf-8"))
    plain = json.loads(json.dumps(own))
    return [name for name in own if theirs.get(name) != plain[name]]


def _moved(
    record: TrialRecord,
    their_baseline: Setting,
    space: SearchSpace,
    constraints: Sequence[Constraint],
) -> TrialRecord | None:
    """Return a record as one of this space under these limits; None where it has no such setting.

    A knob that only this sweep turns is as in the base job; a trial that turned a knob which this
    sweep leaves alone is no setting of it.
    """
    baseline = space.baseline()
    foreign = [name for name in record.setting if name not in baseline]
    if any(record.setting[name] != their_baseline[name] for name in foreign):
        return None
    setting = space.snap({**baseline, **{n: v for n, v in record.setting.items() if n in baseline}})
    if not space.is_valid(setting):
        return None
    if any(setting[name] != record.setting[name] for name in setting if name in record.setting):
        return None
    violations, satisfied = evaluate(record.metrics, constraints)
    return dataclasses.replace(
        record,
        setting=setting,
        params=space.active(setting),
        violations=violations,
        feasible=satisfied and record.state is TrialState.COMPLETE,
    )


def _measured_objective(records: Sequence[TrialRecord], objective: str) -> str:
    """Return the objective, or, where only the other fidelity's was measured, that one."""
    other = {whole: part for part, whole in WHOLE_STEP.items()}.get(objective, objective)
    is_measured = any(record.value(objective) is not None for record in records)
    return objective if is_measured else other


def _best(records: Sequence[TrialRecord], objective: str) -> list[Setting]:
    """Return the best settings, each once."""
    left = list(records)
    found: list[Setting] = []
    while len(found) < NUM_SUGGESTED and (best := best_feasible(left, objective)) is not None:
        found.append(dict(best.setting))
        left = [record for record in left if record.setting != best.setting]
    return found


def model_config(base: Leaves, key: str = f"{job.MODEL}.path") -> dict[str, Any]:
    """Return a base job's ``config.json``; empty where its model is no folder with one.

    Args:
        base: The job.
        key: Names the model's folder.
    """
    path = Path(str(base[key])) / "config.json"
    if not path.exists():
        return {}
    config = json.loads(path.read_text(encoding="utf-8"))
    return config if isinstance(config, dict) else {}


def _from_json(text: str) -> WarmStart:
    data = json.loads(text)
    evidence = [
        Evidence(**{**trial, "state": TrialState(trial["state"])}) for trial in data["evidence"]
    ]
    return WarmStart(evidence=evidence, suggested=data["suggested"], lines=data["lines"])
