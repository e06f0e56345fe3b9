"""The sweep file: typed schema, loading and validation.

Runs in the driver, before anything is started. Reads one YAML file (data only: no tags, no code) and turns it into
plain dataclasses; past :func:`load_sweep` no other code sees OmegaConf objects and nobody assigns to a field.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class BaseJobConfig:
    config_name: str
    """verl's Hydra configuration, e.g. ``ppo_trainer``."""
    overrides: list[str]
    """Hydra overrides, exactly as they stand behind ``python -m verl.trainer.main_ppo``."""


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
    """Distance of neighbouring values, counted from ``low``; absent: every value of the knob's type."""
    log: bool = False
    """Search on a logarithmic scale."""
    when: dict[str, Any] | None = None
    """Other knobs and the value they must have for this knob to act; otherwise the base job's value stays."""


@dataclass(kw_only=True)
class ObjectiveConfig:
    metric: str = "throughput_tokens_per_s_per_gpu"
    """A metric of the catalogue that has a better direction; that direction is optimised."""


@dataclass(kw_only=True)
class ConstraintConfig:
    metric: str
    """A metric of the catalogue."""
    max: float
    """Largest value that is still feasible, in the metric's unit; above 0."""


@dataclass(kw_only=True)
class TrialConfig:
    warmup_steps: int
    """PPO steps run first and discarded; at least 1."""
    measured_steps: int
    """PPO steps timed for throughput; at least 1."""
    profiled_steps: int
    """PPO steps run afterwards under the profiler, never timed; 0 leaves communication unmeasured."""
    seed: int
    """Seed of the data order, the model's dropout and the rollout, equal for all trials."""
    startup_timeout_s: float
    """A job that has not begun its first step after this many seconds is a hang."""
    step_timeout_s: float
    """A job that has not finished a step for this many seconds is a hang."""
    max_retries: int = 1
    """How often a trial is tried again after a loss that is not the setting's fault (node, actor, disk)."""


@dataclass(kw_only=True)
class SearchConfig:
    sampler: str
    """``tpe``, ``gp`` or ``random`` (Optuna's samplers)."""
    num_trials: int
    """Trials to finish, the baseline (trial 0) included."""
    max_concurrent: int
    """Trials that run at once, each on its own placement group."""
    seed: int
    """Seed of the sampler."""
    num_startup_trials: int
    """Trials drawn at random, the baseline included, before the sampler's model is used."""


@dataclass(kw_only=True)
class SweepConfig:
    name: str
    """Folder of the sweep's records below ``output_dir``; letters, digits, ``.``, ``_`` and ``-``."""
    base: BaseJobConfig
    resources: ResourcesConfig
    knobs: dict[str, DomainConfig]
    """Knob of the catalogue -> its domain."""
    trial: TrialConfig
    search: SearchConfig
    objective: ObjectiveConfig
    constraints: list[ConstraintConfig]
    output_dir: str = "sweeps"
    """Folder below which sweeps are kept, relative to the current folder."""
