"""Composing verl's configuration: legal syntax, unknown keys, wrong types, and writing "
"overrides."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from autotune.errors import BadInputError
from autotune.verl_bridge.overrides import (
    compose_base,
    format_override,
    leaves,
    overridden_keys,
    sources,
)

ACTOR = "actor_rollout_ref.actor"


@pytest.fixture
def read_back(tmp_path: Path) -> Callable[[object], object]:
    """Return a function that lets Hydra read a value which ``format_override`` wrote."""
    (tmp_path / "small.yaml").write_text("section: {}\n")

    def read(value: object) -> object:
        with initialize_config_dir(str(tmp_path), version_base=None):
            config = compose("small", [format_override("+section.probe", value)])
        return OmegaConf.to_container(config.section, resolve=True)["probe"]  # type: ignore[call-overload,index]

    return read


def test_composes_verls_configuration_with_the_overrides() -> None:
    config = compose_base("ppo_trainer", ["data.train_batch_size=8", f"{ACTOR}.strategy=fsdp2"])
    assert leaves(config)["data.train_batch_size"] == 8
    assert leaves(config)["actor_rollout_ref.ref.strategy"] == "fsdp2"


def test_importing_and_composing_loads_neither_verl_nor_torch_nor_ray() -> None:
    code = (
        "import sys; from autotune.verl_bridge.overrides import compose_base;"
        "compose_base('ppo_trainer', ['+actor_rollout_ref.actor.fsdp_config.mixed_precision.x=1']);"
        "print([m for m in ('verl', 'torch', 'ray') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_second_composition_does_not_see_the_first() -> None:
    compose_base("ppo_trainer", ["data.train_batch_size=8"])
    assert leaves(compose_base("ppo_trainer", []))["data.train_batch_size"] == 1024


@pytest.mark.parametrize(
    "override",
    [
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=package.module.Manager",
        "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM=cpu",
        "++critic.ppo_infer_max_token_len_per_gpu=4096",
        "++data.train_batch_size=8",
        "~data.image_key",
        "model_engine=megatron",
        "actor_rollout_ref.actor.entropy_coeff=1e-3",
        "actor_rollout_ref.actor.clip_ratio=1",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null",
        "data.train_files=[a.parquet,b.parquet]",
        "trainer.logger=console",
        "trainer.v1.colocate_async.num_warmup_batches=1.5",
        "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
    ],
)
def test_what_verl_reads_is_legal(override: str) -> None:
    compose_base("ppo_trainer", [override])


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        BadInputError,
        match=rf"no key '{ACTOR}.ppo_minibatch_size'.*Did you mean '{ACTOR}.ppo_mini_batch_size'\?",
    ):
        compose_base("ppo_trainer", ["data.train_batch_size=8", f"{ACTOR}.ppo_minibatch_size=8"])


def test_an_unknown_configuration_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        BadInputError, match="config_name.*'ppo_traine'.*Did you mean 'ppo_trainer'"
    ):
        compose_base("ppo_traine", [])


def test_an_unknown_group_choice_lists_the_choices() -> None:
    with pytest.raises(BadInputError, match="model_engine/foo'.*dp, megatron, torchtitan, veomni"):
        compose_base("ppo_trainer", ["model_engine=foo"])


@pytest.mark.parametrize("override", ["data.train_batch_size=[8", "data.train_batch_size", "=3"])
def test_bad_syntax_shows_the_override_as_written(override: str) -> None:
    with pytest.raises(BadInputError) as caught:
        compose_base("ppo_trainer", [override])
    assert f"'{override}' is not in Hydra's syntax" in caught.value.message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+data.train_batch_size=3", "already at 'data.train_batch_size'"),
        ("data.train_batch_size=1,2", "Ambiguous value"),
        ("~data.val_batch_size", "'data.val_batch_size' does not exist"),
        ("~data.no_such_key", "no key 'data.no_such_key'"),
    ],
)
def test_other_refusals_of_hydra_name_the_override(override: str, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        compose_base("ppo_trainer", [override])
    assert message in caught.value.message and override in caught.value.message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ACTOR}.ppo_mini_batch_size=abc", "'abc' (str), but verl expects int"),
        (f"{ACTOR}.ppo_mini_batch_size=8.5", "8.5 (float), but verl expects int"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=abc", "but verl expects Optional[int]"),
        (f"{ACTOR}.use_kl_loss=1", "1 (int), but verl expects bool"),
        (f"{ACTOR}.clip_ratio=true", "True (bool), but verl expects float"),
        ("data.train_batch_size=abc", "'abc' (str), but verl expects int; verl's default is 1024"),
        ("trainer.nnodes=1.5", "1.5 (float), but verl expects int"),
        ("trainer.experiment_name=[a]", "(list), but verl expects str"),
        (f"{ACTOR}.optim=adam", "verl has a whole section there"),
        (f"{ACTOR}.optim.lr=fast", "'fast' (str), but verl expects float"),
        ("++critic.ppo_infer_max_token_len_per_gpu=many", "'many' (str), but verl expects int"),
        (f"{ACTOR}.ppo_mini_batch_size=${{trainer.project_name}}", "(str), but verl expects int"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_key_and_value(
    override: str, message: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        compose_base("ppo_trainer", [override])
    assert message in caught.value.message
    assert override.lstrip("+").partition("=")[0] in caught.value.message


def test_appending_a_field_that_verls_dataclass_lacks_is_refused() -> None:
    with pytest.raises(
        BadInputError,
        match="no key 'actor_rollout_ref.actor.ppo_micro_bach_size'.*FSDPActorConfig has no field.*"
        "Did you mean 'ppo_micro_batch_size'",
    ):
        compose_base("ppo_trainer", ["+actor_rollout_ref.actor.ppo_micro_bach_size=4"])


def test_appending_below_an_annotated_section_is_checked_too() -> None:
    with pytest.raises(BadInputError, match="DisaggregationConfig has no field 'enable'"):
        compose_base("ppo_trainer", ["+actor_rollout_ref.rollout.disaggregation.enable=true"])


def test_an_interpolation_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(BadInputError, match="cannot be resolved.*no_such_key"):
        compose_base("ppo_trainer", ["data.train_batch_size=${data.no_such_key}"])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -1,
        25e6,
        1e-6,
        "plain",
        "/a/b-c/d.parquet",
        "",
        "null",
        "True",
        "5",
        "1e-6",
        "it's",
        'say "x"',
        "a b,c=d:e{f}[g](h)",
        "back\\slash\\",
        "\\'",
        "${oc.env:HOME}",
        "#hash%$;",
        "größer",
        "two\nlines",
        [1, 2.5, "a b", None, True],
        [],
        {},
        {"a": 1, "b c": [True, {"d": "e,f"}]},
        {"x:y=z": "w"},
    ],
)
def test_hydra_reads_back_what_was_written(
    read_back: Callable[[object], object], value: object
) -> None:
    assert read_back(value) == value


def test_floats_come_back_as_floats(read_back: Callable[[object], object]) -> None:
    assert isinstance(read_back(25e6), float)


@pytest.mark.parametrize("value", [{"": 1}, object()])
def test_a_value_that_hydra_cannot_express_is_refused(value: object) -> None:
    with pytest.raises(BadInputError, match=r"\+trainer.probe cannot take"):
        format_override("+trainer.probe", value)


def test_empty_mappings_and_lists_are_leaves() -> None:
    flat = leaves(compose_base("ppo_trainer", []))
    assert flat["actor_rollout_ref.model.override_config"] == {}
    assert flat["trainer.logger"] == ["console", "wandb"]


def test_sources_name_the_key_that_a_value_is_taken_from() -> None:
    found = sources(compose_base("ppo_trainer", []))
    assert found["critic.use_dynamic_bsz"] == f"{ACTOR}.use_dynamic_bsz"
    assert found["critic.ppo_micro_batch_size_per_gpu"] == "critic.ppo_micro_batch_size"


def test_an_override_ends_the_following() -> None:
    key = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"
    assert key in sources(compose_base("ppo_trainer", []))
    assert key not in sources(compose_base("ppo_trainer", [f"{key}=512"]))


def test_sources_agree_with_hydra() -> None:
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    before = leaves(compose_base("ppo_trainer", []))
    after = leaves(compose_base("ppo_trainer", [f"{key}=4321"]))
    moved = {name for name in after if after[name] != before.get(name)} - {key}
    assert moved == {
        name for name, source in sources(compose_base("ppo_trainer", [])).items() if source == key
    }


def test_overridden_keys_ignore_the_prefix() -> None:
    assert overridden_keys(["a.b=1", "+c=2", "++d.e=x", "~f"]) == {"a.b", "c", "d.e", "f"}
