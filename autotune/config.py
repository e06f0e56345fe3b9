"""The sweep file: loading and validation.

Runs in the driver, before anything is started. Reads one YAML file (data only: no tags, no
interpolations, no code) and turns it into plain dataclasses; past :func:`load_sweep` no other code
sees the file's OmegaConf objects and nobody assigns to a field. What stands behind ``base`` is
composed with verl's own configuration and checked there too.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from autotune.domain import Domain, make_domain
from autotune.errors import BadInputError
from autotune.hypotheses import check_hypotheses
from autotune.knobs import KnobValue
from autotune.launch_script import LaunchScript, read_launch_script
from autotune.metrics import WHOLE_STEP
from autotune.redaction import mask, written_secrets
from autotune.settings import (
    DEVICES,
    TRAINER_MODES,
    BaseJobConfig,
    ResourcesConfig,
    SweepConfig,
    check,
)
from autotune.space import Space, SpaceSummary
from autotune.verl_bridge import job
from autotune.verl_bridge.overlap_rules import overlap_rules, plugin_overrides
from autotune.verl_bridge.overrides import (
    compose_base,
    format_override,
    leaves,
    overridden_keys,
    sources,
    written_value,
)
from autotune.verl_bridge.paths import absolute_paths, relative_files
from autotune.verl_bridge.registries import check_names
from autotune.verl_bridge.rules import Rule, job_rules
from autotune.yaml_file import (
    apply_override,
    check_shape,
    read_yaml,
    refuse_interpolations,
    refuse_unprintable,
)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A loaded sweep: everything that is known before the first trial starts."""

    config: SweepConfig
    base_overrides: tuple[str, ...]
    """The base job's overrides, with those that resources and absolute paths add."""
    base_config: DictConfig
    """The base job, composed with ``base_overrides``; interpolations unresolved."""
    space: Space
    summary: SpaceSummary

    def job_overrides(self, params: Mapping[str, KnobValue]) -> list[str]:
        """Return all Hydra overrides of the job that runs a setting."""
        return [*self.base_overrides, *self.space.overrides(params)]

    def of_whole_steps(self) -> "Sweep":
        """Return the sweep whose jobs run whole PPO steps: what confirms its trials, whatever these
        replayed."""
        if not self.config.trial.replays_rollout:
            return self
        metric = self.config.objective.metric
        config = dataclasses.replace(
            self.config,
            trial=dataclasses.replace(self.config.trial, fidelity="full"),
            objective=dataclasses.replace(
                self.config.objective, metric=WHOLE_STEP.get(metric, metric)
            ),
        )
        return dataclasses.replace(self, config=config)


def load_sweep(
    path: Path | str, overrides: Sequence[str] = (), *, is_elsewhere: bool = False
) -> Sweep:
    """Read, merge and check a sweep file.

    Args:
        path: The YAML file.
        overrides: ``key=value`` of the command line, e.g. ``trial.measured_steps=2``; they win over
            the file.
        is_elsewhere: The sweep runs on other machines: paths stay as they are, and absolute ones
            need not exist here.

    Raises:
        BadInputError: Anything wrong with the file, the overrides, the base job or the search
            space.
    """
    config = load_config(path, overrides)
    base_overrides, base_config = _compose_base_job(config, is_elsewhere=is_elsewhere)
    base_leaves = leaves(base_config)
    rules = (*job_rules(base_leaves), *overlap_rules(base_leaves))
    _check_base_job(base_leaves, rules)
    if config.trial.replays_rollout:
        _check_replay(base_leaves)
    domains = _domains(config)
    space = Space(domains, base_leaves, rules, sources(base_config))
    summary = space.summary()
    space.check_not_empty(summary)
    check_hypotheses(config.search.first, space, domains)
    return Sweep(
        config=config,
        base_overrides=base_overrides,
        base_config=base_config,
        space=space,
        summary=summary,
    )


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> SweepConfig:
    """Read and check the sweep file without its base job; else as :func:`load_sweep`."""
    raw = read_yaml(Path(path))
    for override in overrides:
        apply_override(raw, override)
    content = OmegaConf.to_container(raw, resolve=False)
    # First of all: other messages show the values that they are about.
    _refuse_secrets(content)
    refuse_interpolations(content)
    refuse_unprintable(content)
    check_shape(SweepConfig, content)
    merged = OmegaConf.merge(OmegaConf.structured(SweepConfig), raw)
    missing = sorted(OmegaConf.missing_keys(merged))
    if missing:
        raise BadInputError(
            f"The sweep file lacks {', '.join(missing)}.", "These keys have no default."
        )
    config = OmegaConf.to_object(merged)
    assert isinstance(config, SweepConfig)
    check(config)
    given = content["base"] if isinstance(content, dict) else {}
    config = dataclasses.replace(config, base=_base_job(config.base, given))
    _domains(config)
    return config


def to_yaml(config: SweepConfig) -> str:
    """Write a resolved sweep file, with what a launch script said in it.

    :func:`load_config` reads the same job from it, whatever becomes of the script. Secrets are
    masked before the values are written: quotes and escapes would hide them afterwards.
    """
    base = dataclasses.replace(config.base, launch_script=None)
    plain = dataclasses.asdict(dataclasses.replace(config, base=base))
    return OmegaConf.to_yaml(OmegaConf.create(mask(plain)))


def launch_script_of(config: SweepConfig) -> LaunchScript | None:
    """Return the script that the base job was read from, if there is one."""
    script = config.base.launch_script
    return None if script is None else read_launch_script(Path(script))


def _base_job(base: BaseJobConfig, given: Mapping[str, object]) -> BaseJobConfig:
    """Take the base job from the launch script where the file names one."""
    if base.launch_script is None:
        if "overrides" not in given:
            raise BadInputError(
                "The sweep file lacks base.overrides.",
                "Give the job's Hydra overrides, or its script as base.launch_script.",
            )
        return base
    if base.overrides:
        raise BadInputError(
            "base.overrides and base.launch_script both describe the base job.",
            "Keep one of them.",
        )
    script = read_launch_script(Path(base.launch_script))
    _refuse_secrets({"base": {"overrides": script.overrides}})
    refuse_interpolations(script.overrides, base.launch_script)
    if "config_name" in given and base.config_name != script.config_name:
        raise BadInputError(
            f"base.config_name is '{base.config_name}', but {script.name} composes "
            f"'{script.config_name}'.",
            "Leave base.config_name out: the script says it.",
        )
    return dataclasses.replace(
        base, config_name=script.config_name, overrides=script.overrides
    )


def _refuse_secrets(content: object) -> None:
    """Refuse a secret anywhere in a sweep file; its overrides are read as verl would read them.

    Raises:
        BadInputError: With the full key, without the value.
    """
    found: list[str] = []
    if isinstance(content, Mapping):
        base = content.get("base")
        overrides = base.get("overrides") if isinstance(base, Mapping) else None
        if isinstance(base, Mapping) and isinstance(overrides, list):
            content = {**content, "base": {**base, "overrides": None}}
            given = [written_value(text) for text in overrides if isinstance(text, str)]
            found = [
                f"base.overrides: {name}"
                for key, value in given
                for name in written_secrets({key: value})
            ]
    found += written_secrets(content)
    if found:
        raise BadInputError(
            f"{found[0]} holds a secret.",
            "Remove it, and set it in the environment of the machines that need it (WANDB_API_KEY, "
            "PGPASSWORD, AWS_SECRET_ACCESS_KEY): what a sweep file says is kept in its records.",
        )


def _compose_base_job(
    config: SweepConfig, *, is_elsewhere: bool
) -> tuple[tuple[str, ...], DictConfig]:
    """Return the overrides, those that resources, paths and plans add included, and the composed
    job."""
    given = config.base.overrides
    composed = compose_base(config.base.config_name, given)
    base_leaves = leaves(composed)
    _check_engine(base_leaves, config.resources.device)
    _check_one_pool(base_leaves)
    check_names(base_leaves, config.resources.device)
    added = _resource_overrides(config.resources, base_leaves, overridden_keys(given))
    if is_elsewhere:
        relative_files(base_leaves, Path.cwd())
    else:
        added |= absolute_paths(base_leaves, Path.cwd())
    added |= plugin_overrides(config.knobs, base_leaves)
    if not added:
        return tuple(given), composed
    complete = [*given, *(format_override(key, value) for key, value in added.items())]
    return tuple(complete), compose_base(config.base.config_name, complete)


_OTHER_POOLS = {
    "reward.reward_model.enable_resource_pool": "a reward model on GPUs of its own",
    "reward_model.enable_resource_pool": "a reward model on GPUs of its own",
    "reward.reward_model.enable": "a reward model that shares the ranks' GPUs",
    "reward_model.enable": "a reward model that shares the ranks' GPUs",
    "distillation.enabled": "teachers on GPUs of their own",
    "actor_rollout_ref.rollout.nnodes": "rollout servers on nodes of their own",
}
"""Setting of verl that asks for a second pool of workers -> what would be in it."""


def _check_one_pool(base_leaves: Mapping[str, object]) -> None:
    for key, what in _OTHER_POOLS.items():
        if base_leaves.get(key):
            raise BadInputError(
                f"base.overrides: {key} is {base_leaves[key]!r}, which asks for {what}.",
                "A trial runs actor, rollout, reference and critic on one pool of ranks: tune the "
                "job without it.",
            )


def _check_engine(base_leaves: Mapping[str, object], device: str) -> None:
    if not job.uses_fsdp(base_leaves):
        engine, strategy = base_leaves.get("model_engine"), base_leaves[f"{job.ACTOR}.strategy"]
        raise BadInputError(
            f"base.overrides: model_engine is {engine!r} and {job.ACTOR}.strategy is {strategy!r}.",
            f"Only FSDP can be tuned: model_engine=dp with {job.ACTOR}.strategy=fsdp2 (or fsdp).",
        )
    roles = [job.ACTOR]
    roles += [job.REF] if job.has_reference_engine(base_leaves) else []
    roles += ["critic"] if job.has_critic(base_leaves) else []
    for key in (f"{role}.strategy" for role in roles):
        if device == "cpu" and base_leaves[key] != "fsdp2":
            raise BadInputError(
                f"base.overrides: {key} is {base_leaves[key]!r}, but resources.device is cpu.",
                f"torch's first FSDP wraps models on accelerators only: set {key}=fsdp2.",
            )
    if not base_leaves["trainer.use_v1"]:
        raise BadInputError(
            "trainer.use_v1 is false.", "Trials run on verl's V1 trainer: remove the override."
        )


def _resource_overrides(
    resources: ResourcesConfig, base_leaves: Mapping[str, object], overridden: set[str]
) -> dict[str, object]:
    """Return what ``resources`` sets in verl; a base job that says otherwise is refused."""
    allowed: dict[str, tuple[str, tuple[object, ...]]] = {
        "trainer.nnodes": (f"resources.nodes is {resources.nodes}", (resources.nodes,)),
        "trainer.n_gpus_per_node": (
            f"resources.ranks_per_node is {resources.ranks_per_node}",
            (resources.ranks_per_node,),
        ),
        "trainer.device": (f"resources.device is {resources.device}", DEVICES[resources.device]),
        "trainer.v1.trainer_mode": (
            f"trials on {resources.device} run verl's synchronous trainer",
            (TRAINER_MODES[resources.device],),
        ),
    }
    added: dict[str, object] = {}
    for key, (reason, values) in allowed.items():
        if base_leaves[key] in values:
            continue
        if key in overridden:
            raise BadInputError(
                f"base.overrides: {key} is {base_leaves[key]!r}, but {reason}.",
                f"Remove the override; the sweep sets {key}={values[0]}.",
            )
        added[key] = values[0]
    return added


def _check_base_job(base_leaves: Mapping[str, object], rules: Sequence[Rule]) -> None:
    messages = [message for rule in rules if (message := rule.check(base_leaves)) is not None]
    if messages:
        raise BadInputError(f"base: verl refuses the base job: {'; '.join(messages)}.")


_COMPARES_WITH_ROLLOUT = {
    "algorithm.rollout_correction.bypass_mode": "takes the rollout's log-probabilities for the "
    "policy's",
    "algorithm.rollout_correction.rollout_is": "weighs tokens by how likely the policy finds them",
    "algorithm.rollout_correction.rollout_rs": "drops tokens that the policy finds unlikely",
    "actor_rollout_ref.model.mtp.enable_rollout": "reports speculative decoding of every step",
}
"""Setting of verl whose effect depends on the rollout being of the step's own policy -> what it
does."""


def _check_replay(base_leaves: Mapping[str, object]) -> None:
    for key, what in _COMPARES_WITH_ROLLOUT.items():
        if base_leaves.get(key):
            raise BadInputError(
                f"trial.fidelity is 'update', but the base job's {key} is {base_leaves[key]!r}: it "
                f"{what}, and a replayed rollout is the first policy's.",
                "Remove the override, or set trial.fidelity: full.",
            )


def _domains(config: SweepConfig) -> dict[str, Domain]:
    return {
        name: make_domain(
            name,
            choices=domain.choices,
            low=domain.low,
            high=domain.high,
            step=domain.step,
            log=domain.log,
            when=domain.when,
        )
        for name, domain in config.knobs.items()
    }
