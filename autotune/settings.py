"""The sweep file's typed schema, and what its types leave open.

Runs in the driver. Past :func:`check`, all code sees these plain dataclasses and assigns to none of
their fields; a component gets its own section, never the whole tree. Says nothing about verl: the
base job is composed and checked in :mod:`autotune.config`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from autotune.errors import BadInputError, nearest
from autotune.knobs import KNOBS, ROLLOUT_KNOBS
from autotune.measure.sequential import MIN_PAIRS
from autotune.metrics import ABSENT_IN_REPLAY, METRICS, WHOLE_STEP, Direction
from autotune.redaction import holds_secret

DEVICES = {"gpu": ("cuda", "npu"), "cpu": ("cpu",)}
"""``resources.device`` -> what verl's ``trainer.device`` may then be; the first is set where the
base job has none."""
TRAINER_MODES = {"gpu": "sync", "cpu": "cpu_sync"}
"""``resources.device`` -> verl's ``trainer.v1.trainer_mode``: trials measure synchronous steps."""
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
WANDB_MODES = ("auto", "online", "offline", "disabled")
SAMPLERS = ("model", "tpe", "gp", "random")
FIDELITIES = ("full", "update")
RECOVERABLE = ("nan", "memory", "hang")
"""What a recovery rule may answer to."""

MAX_SEED = 2**32 - 1
"""Largest seed that NumPy's and Optuna's generators take."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(kw_only=True)
class BaseJobConfig:
    """The base job: either ``overrides`` or ``launch_script``."""

    config_name: str = "ppo_trainer"
    """verl's Hydra configuration; that of verl's own command by default. A launch script says it by
    itself."""
    overrides: list[str] = field(default_factory=list)
    """Hydra overrides, exactly as they stand behind ``python -m verl.trainer.main_ppo``."""
    launch_script: str | None = None
    """A shell script that starts ``python -m verl.trainer.main_ppo``, relative to the current
    folder; read as data, never executed."""


@dataclass(kw_only=True)
class ResourcesConfig:
    nodes: int
    """Nodes of one trial's placement group."""
    ranks_per_node: int
    """verl workers per node: one GPU each, or one gloo rank each without GPUs."""
    device: str
    """``gpu`` or ``cpu``."""
    strategy: str = "PACK"
    """Ray placement strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD."""
    cpus_per_rank: int = 1
    """Logical CPUs that Ray charges for each rank."""
    gpus_per_rank: float = 1.0
    """GPUs of each rank, when the device is ``gpu``: 1. A share would measure the neighbour too."""

    @property
    def num_ranks(self) -> int:
        """verl workers of one trial."""
        return self.nodes * self.ranks_per_node


@dataclass(kw_only=True)
class DomainConfig:
    """Values that a knob may take: either ``choices`` or ``low`` and ``high``."""

    choices: list[Any] | None = None
    """Values to choose from."""
    low: float | None = None
    """Smallest value, included."""
    high: float | None = None
    """Largest value, included."""
    step: float | None = None
    """Distance of neighbouring values, counted from ``low``; absent: every value of the knob's
    type."""
    log: bool = False
    """Search on a logarithmic scale."""
    when: dict[str, Any] | None = None
    """Other knobs and the value they must have for this knob to act; otherwise the base job's value
    stays."""


@dataclass(kw_only=True)
class ObjectiveConfig:
    metric: str = "throughput_tokens_per_s_per_gpu"
    """A metric of the catalogue that has a better direction; that direction is optimised."""
    trade_off: str | None = None
    """A second such metric: the sweep then looks for the Pareto front of both; ``best.yaml`` is the
    winner by ``metric`` alone."""


@dataclass(kw_only=True)
class ConstraintConfig:
    metric: str
    """A metric of the catalogue."""
    max: float
    """Largest value that is still feasible, in the metric's unit; above 0."""


def default_constraints() -> list[ConstraintConfig]:
    """Return the constraints of a sweep whose file has no such section."""
    return [
        ConstraintConfig(metric="kl_std", max=1e-4),
        ConstraintConfig(metric="exposed_comm_ratio", max=0.2),
        ConstraintConfig(metric="peak_memory_ratio", max=0.9),
    ]


@dataclass(kw_only=True)
class RecoveryRuleConfig:
    """What a trial that broke is tried with once more; never the baseline."""

    when: str
    """``nan``: a loss or gradient norm was not finite; ``memory``: the trial ran out of memory, or
    its ``peak_memory_ratio`` is above ``above``; ``hang``: a step took longer than its limit."""
    knobs: dict[str, Any]
    """Knob of the catalogue -> value to run with. A knob that the sweep turns itself, or that does
    not act in the job, is left alone; a rule of which nothing is left does not fire."""
    above: float | None = None
    """``memory`` only: the ratio; absent: out of memory alone."""


def default_recovery() -> list[RecoveryRuleConfig]:
    """Return the rules of a sweep whose file has no ``trial.recovery``."""
    return [
        RecoveryRuleConfig(when="nan", knobs={"target_kl": 0.05}),
        RecoveryRuleConfig(
            when="memory", above=0.9, knobs={"param_offload": True, "optimizer_offload": True}
        ),
    ]


@dataclass(kw_only=True)
class TrialConfig:
    warmup_steps: int
    """PPO steps run first and discarded; at least 1."""
    measured_steps: int
    """PPO steps timed for throughput; at least 1."""
    profiled_steps: int
    """PPO steps run afterwards under the profiler, never timed; 0 leaves communication
    unmeasured."""
    seed: int
    """Seed of the data order, the model's dropout and the rollout, equal for all trials."""
    startup_timeout_s: float
    """A job that has not begun its first step after this many seconds is a hang."""
    step_timeout_s: float
    """A job that has not finished a step for this many seconds is a hang. A collective that waits
    half as long is one already."""
    fidelity: str = "full"
    """``full``: whole PPO steps; ``update``: the rollout is generated once with the first weights,
    kept, and replayed in every trial, and only the phases that train are run and timed. For knobs
    of training; the verification runs whole steps all the same."""
    consistency_probe: bool = True
    """Whether a fixed mini-batch goes through the actor before the first step and after the last
    one, for ``rank_divergence``, ``kl_drift`` and ``grad_cosine``."""
    max_retries: int = 1
    """How often a trial is tried again after a loss that is not the setting's fault (node, trial
    actor, disk)."""
    recovery: list[RecoveryRuleConfig] = field(default_factory=default_recovery)
    """What is tried once with a trial that broke; the first rule that applies counts, ``[]`` is
    nothing."""

    @property
    def replays_rollout(self) -> bool:
        """Whether trials replay one kept rollout."""
        return self.fidelity == "update"


@dataclass(kw_only=True)
class SearchConfig:
    sampler: str
    """``model``: expected improvement under constraints by our models of step time and memory;
    ``tpe``, ``gp`` or ``random``: Optuna's samplers."""
    num_trials: int
    """Trials to finish, the baseline (trial 0) and repetitions included."""
    max_concurrent: int
    """Trials that run at once, each on its own placement group."""
    seed: int
    """Seed of the sampler."""
    num_startup_trials: int
    """Trials, the baseline included, before the sampler's model is used: drawn at random, by
    ``model`` far from each other among those that are predicted to fit."""
    confirm_ratio: float = 0.15
    """Share of ``num_trials`` that measures the best settings again, at the end."""
    first: list[dict[str, Any]] = field(default_factory=list)
    """Settings to try right after the baseline: knob -> value, the others as in the base job."""
    early_stop: bool = True
    """End a trial after two measured steps once it is worse than the best setting so far beyond
    both intervals; its job serves the next trial. Not with ``objective.trade_off``."""
    min_gain_ratio: float = 0.0
    """Stop when another trial is expected to improve the objective by less than this share; 0:
    never. Repetitions of the best settings still follow."""
    max_gpu_hours: float | None = None
    """Start no trial that is expected to bring the sweep above this many GPU hours."""
    max_hours: float | None = None
    """Start no trial that is expected to end after this many hours in which trials ran."""
    warm_start: list[str] = field(default_factory=list)
    """Folders of earlier sweeps to learn from; those of another model, hardware or set of versions
    only suggest settings."""
    storage: str | None = None
    """Optuna database URL (``postgresql://user@host/db``) for the study; absent: a journal file in
    the sweep's folder. Its password belongs into the environment (PGPASSWORD), never here."""


@dataclass(kw_only=True)
class WandbConfig:
    mode: str = "auto"
    """``online``; ``offline``: written to the sweep's folder, sent later with ``autotune
    wandb-sync``; ``disabled``; ``auto``: as the variable WANDB_MODE says, else online where there
    is a key for the server, else offline."""
    project: str = "verl-autotune"
    """wandb project of all runs."""
    entity: str | None = None
    """User or team that the project belongs to; absent: the key's own."""


@dataclass(kw_only=True)
class VerifyConfig:
    """How the best settings are compared with the baseline again, in cold jobs."""

    enabled: bool = True
    """Whether a sweep ends with it."""
    top_k: int = 2
    """Settings to compare: the best feasible ones of the sweep that beat the baseline."""
    max_jobs: int = 15
    """Cold jobs to run at most, the baseline's included; at least three for each setting and three
    for the baseline."""
    interval_width_ratio: float = 0.1
    """A gain is known well enough when its 95 % interval is narrower than this share of it."""
    max_wall_s: float | None = None
    """Wall time after which no further job starts; absent: no limit."""


@dataclass(kw_only=True)
class SweepConfig:
    name: str
    """Folder of the sweep's records below ``output_dir``; letters, digits, ``.``, ``_`` and
    ``-``."""
    base: BaseJobConfig
    resources: ResourcesConfig
    knobs: dict[str, DomainConfig]
    """Knob of the catalogue -> its domain."""
    trial: TrialConfig
    search: SearchConfig
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    constraints: list[ConstraintConfig] = field(default_factory=default_constraints)
    """What a setting must keep to be feasible; without this section, the three of
    :func:`default_constraints`."""
    calibrate: bool = True
    """Whether links and devices are measured before the first trial (a minute at most; once for
    each cluster)."""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    """One wandb run a trial, and one for the sweep."""
    output_dir: str = "sweeps"
    """Folder below which sweeps are kept, relative to the current folder."""
    output_uri: str | None = None
    """Storage that gets a copy of every sweep's folder below it while it runs, e.g.
    ``s3://bucket/sweeps`` or a shared folder; a sweep goes on from it on another node. Absent: no
    copy."""


def check(config: SweepConfig) -> None:
    """Check what the types leave open; every message bears the full key."""
    if not _NAME.fullmatch(config.name):
        raise BadInputError(
            f"name is {config.name!r}.",
            "It names a folder: letters, digits, '.', '_', '-', at most 100, no dot first.",
        )
    output = PurePath(config.output_dir)
    if not config.output_dir.strip() or ".." in output.parts or "://" in config.output_dir:
        raise BadInputError(
            f"output_dir is {config.output_dir!r}.", "It must be a plain path without '..'."
        )
    if output.parts[0].startswith("~"):
        raise BadInputError(
            f"output_dir is {config.output_dir!r}.",
            "Write the whole path: whose home '~' is depends on the machine that reads the file.",
        )
    if not config.knobs:
        raise BadInputError("knobs is empty.", "Name at least one knob and its domain.")
    _check_resources(config.resources)
    _check_trial(config.trial)
    check_search(config.search)
    _check_goal(config.objective, config.constraints)
    if config.trial.replays_rollout:
        _check_replay(config)
    _one_of("wandb.mode", config.wandb.mode, WANDB_MODES)
    if not config.wandb.project.strip():
        raise BadInputError(f"wandb.project is {config.wandb.project!r}.", "Name a project.")
    _check_verify(config.verify)


def _check_resources(resources: ResourcesConfig) -> None:
    _at_least(1, "resources", resources, "nodes", "ranks_per_node", "cpus_per_rank")
    _one_of("resources.device", resources.device, DEVICES)
    if resources.gpus_per_rank != 1:
        raise BadInputError(
            f"resources.gpus_per_rank is {resources.gpus_per_rank:g}.",
            "It must be 1: a rank that shares its GPU is timed together with its neighbour and "
            "runs out of the neighbour's memory, and a verl rank drives one GPU only.",
        )
    _one_of("resources.strategy", resources.strategy, STRATEGIES)


def _check_trial(trial: TrialConfig) -> None:
    _at_least(1, "trial", trial, "warmup_steps", "measured_steps")
    _at_least(0, "trial", trial, "profiled_steps", "max_retries")
    check_seed("trial.seed", trial.seed)
    for name in ("startup_timeout_s", "step_timeout_s"):
        _above_zero(f"trial.{name}", getattr(trial, name))
    _one_of("trial.fidelity", trial.fidelity, FIDELITIES)
    for index, rule in enumerate(trial.recovery):
        _check_recovery(f"trial.recovery[{index}]", rule)


def _check_replay(config: SweepConfig) -> None:
    """Refuse what a replayed rollout cannot show; one message names everything."""
    turned = [f"knobs.{name}" for name in config.knobs if name in ROLLOUT_KNOBS]
    turned += [
        f"trial.recovery[{index}].knobs.{name}"
        for index, rule in enumerate(config.trial.recovery)
        for name in rule.knobs
        if name in ROLLOUT_KNOBS
    ]
    measured = {
        "objective.metric": config.objective.metric,
        "objective.trade_off": config.objective.trade_off,
        **{
            f"constraints[{index}].metric": constraint.metric
            for index, constraint in enumerate(config.constraints)
        },
    }
    absent = {key: name for key, name in measured.items() if name in ABSENT_IN_REPLAY}
    if not turned and not absent:
        return
    whats, hints = [], []
    if turned:
        whats.append(f"{', '.join(turned)} would act on the rollout")
        hints.append("leave these knobs out")
    for key, name in absent.items():
        whats.append(f"{key} is {name}, which only whole steps have")
        hints += [f"set {key}: {own}" for own, whole in WHOLE_STEP.items() if whole == name]
    raise BadInputError(
        f"trial.fidelity is 'update': the rollout is generated once and replayed, but "
        f"{'; '.join(whats)}.",
        f"{_sentence('; '.join([*hints, 'or set trial.fidelity: full']))} "
        "The verification compares whole steps in any case.",
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _check_recovery(key: str, rule: RecoveryRuleConfig) -> None:
    _one_of(f"{key}.when", rule.when, RECOVERABLE)
    if not rule.knobs:
        raise BadInputError(f"{key}.knobs is empty.", "Name at least one knob and its value.")
    for name, value in rule.knobs.items():
        _one_of(f"{key}.knobs", name, KNOBS)
        KNOBS[name].parse(value, f"{key}.knobs.{name}")
    if rule.above is not None:
        if rule.when != "memory":
            raise BadInputError(f"{key}.above is {rule.above}.", "Only `when: memory` has it.")
        _above_zero(f"{key}.above", rule.above)


def check_seed(key: str, seed: int) -> None:
    """Refuse a seed that a random number generator would refuse."""
    if not 0 <= seed <= MAX_SEED:
        raise BadInputError(f"{key} is {seed}.", f"It must be from 0 to {MAX_SEED}.")


def check_search(search: SearchConfig) -> None:
    """Check the search section alone, as :func:`check` does."""
    _one_of("search.sampler", search.sampler, SAMPLERS)
    _at_least(1, "search", search, "num_trials", "max_concurrent", "num_startup_trials")
    check_seed("search.seed", search.seed)
    for name in ("confirm_ratio", "min_gain_ratio"):
        if not 0 <= getattr(search, name) < 1:
            raise BadInputError(
                f"search.{name} is {getattr(search, name)}.", "It must be at least 0 and below 1."
            )
    for name in ("max_gpu_hours", "max_hours"):
        if getattr(search, name) is not None:
            _above_zero(f"search.{name}", getattr(search, name))
    if search.storage is not None and "://" not in search.storage:
        raise BadInputError(
            f"search.storage is {search.storage!r}.",
            "It is a database URL, e.g. postgresql://user@host/db.",
        )
    if search.storage is not None and holds_secret(search.storage):
        raise BadInputError(
            "search.storage holds a secret.",
            "Leave it out of the URL and set PGPASSWORD, or use ~/.pgpass.",
        )


def _check_goal(objective: ObjectiveConfig, constraints: Sequence[ConstraintConfig]) -> None:
    directed = [name for name, metric in METRICS.items() if metric.better is not Direction.NEITHER]
    _one_of("objective.metric", objective.metric, METRICS)
    if objective.metric not in directed:
        raise BadInputError(
            f"objective.metric is '{objective.metric}', which is neither better high nor low.",
            f"Choose one of: {', '.join(directed)}.",
        )
    if objective.trade_off is not None:
        _one_of("objective.trade_off", objective.trade_off, directed)
        if objective.trade_off == objective.metric:
            raise BadInputError(
                f"objective.trade_off is '{objective.metric}', which objective.metric is already."
            )
    seen: list[str] = []
    for index, constraint in enumerate(constraints):
        key = f"constraints[{index}]"
        _one_of(f"{key}.metric", constraint.metric, METRICS)
        if constraint.metric in seen:
            raise BadInputError(
                f"{key}.metric is '{constraint.metric}', which "
                f"constraints[{seen.index(constraint.metric)}] bounds."
            )
        _above_zero(f"{key}.max", constraint.max)
        seen.append(constraint.metric)


def _check_verify(verify: VerifyConfig) -> None:
    _at_least(1, "verify", verify, "top_k")
    _above_zero("verify.interval_width_ratio", verify.interval_width_ratio)
    if verify.max_wall_s is not None:
        _above_zero("verify.max_wall_s", verify.max_wall_s)
    least = MIN_PAIRS * (1 + verify.top_k)
    if verify.max_jobs < least:
        raise BadInputError(
            f"verify.max_jobs is {verify.max_jobs}.",
            f"With verify.top_k={verify.top_k} it must be at least {least}: {MIN_PAIRS} jobs for "
            "each setting and for the baseline.",
        )


def _at_least(lowest: int, section: str, values: object, *names: str) -> None:
    for name in names:
        value = getattr(values, name)
        if value < lowest:
            raise BadInputError(f"{section}.{name} is {value}.", f"It must be at least {lowest}.")


def _above_zero(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise BadInputError(f"{key} is {value}.", "It must be a finite number above 0.")


def _one_of(key: str, value: str, allowed: Mapping[str, object] | Sequence[str]) -> None:
    if value not in allowed:
        raise BadInputError(
            f"{key} is '{value}'.",
            nearest(value, allowed) or f"It is one of: {', '.join(allowed)}.",
        )
