"""A job written as one Hydra file composes to the same job."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from autotune.errors import BadInputError
from autotune.verl_bridge.config_file import compose_file, differences, job_file
from autotune.verl_bridge.overrides import compose_base, config_folder

ACTOR = "actor_rollout_ref.actor"

JOBS = {
    "values": [
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",
        f"{ACTOR}.optim.lr=1e-6",
        f"{ACTOR}.use_kl_loss=true",
        "actor_rollout_ref.model.tokenizer_path=null",
        "trainer.nnodes=2",
        "trainer.nnodes=3",
        "trainer.project_name='my project: #1'",
        "trainer.experiment_name='1e-3'",
        "+data.texts=['yes','','it\\'s \"so\"','???','" + "word " * 60 + "']",
        "data.train_files=[a,'b c']",
        "trainer.logger=[console,wandb]",
        "++trainer.logger.0=file",
    ],
    "appended": [
        "+data.empty=[]",
        "+data.extra=[{a:1},{b:[2,3]}]",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "++trainer.nnodes=2",
        "++trainer.new=2",
        "+ray_kwargs.ray_init.runtime_env={env_vars:{A:'1',B:'x y'}}",
        "actor_rollout_ref.actor.optim={lr:1e-6,weight_decay:0.1}",
        "+actor_rollout_ref.rollout.engine_kwargs.extra={}",
        "+data.by_length={512:a,1024:b}",
    ],
    "interpolations": [
        "trainer.experiment_name=${trainer.project_name}-x",
        "data.train_files=['${oc.env:HOME}/a','b']",
        "data.val_files=${oc.env:HOME}/test.parquet",
        "trainer.project_name='\\${not.one}'",
    ],
    "engine": ["model_engine=megatron", f"{ACTOR}.megatron.param_offload=true"],
    "groups": [
        f"actor@{ACTOR}=megatron_actor",
        f"actor@{ACTOR}=dp_actor",
        "+optim@extra.optim=fsdp",
        "extra.optim.lr=3e-6",
        "+algorithm@algorithm=rollout_correction",
        "~model@critic.model",
        "data={train_batch_size:64}",
    ],
    "deleted and back": [
        "~trainer.nnodes",
        "+trainer.nnodes=3",
        "+trainer.new=3",
        "~trainer.new",
    ],
}


def compose_text(text: str, folder: Path) -> Path:
    path = folder / "best.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", JOBS)
def test_the_file_composes_to_the_job_it_was_written_from(name: str, tmp_path: Path) -> None:
    overrides = JOBS[name]
    path = compose_text(job_file("ppo_trainer", overrides), tmp_path)
    job = compose_base("ppo_trainer", overrides)
    found = compose_file(path)
    assert differences(job, found) == []
    assert OmegaConf.to_container(found, resolve=False) == OmegaConf.to_container(
        job, resolve=False
    )


def test_another_of_verls_configurations_can_be_the_start(tmp_path: Path) -> None:
    path = compose_text(job_file("ppo_megatron_trainer", ["trainer.nnodes=2"]), tmp_path)
    job = compose_base("ppo_megatron_trainer", ["trainer.nnodes=2"])
    assert differences(job, compose_file(path)) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["~actor_rollout_ref.actor.optim"],
        [
            f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32",
            f"~{ACTOR}.optim.lr",
            "trainer.nnodes=2",
        ],
    ],
)
def test_a_deleted_key_is_refused_by_name(overrides: Sequence[str]) -> None:
    deleted = next(text for text in overrides if text.startswith("~"))
    with pytest.raises(BadInputError, match="cannot do") as caught:
        job_file("ppo_trainer", overrides)
    assert f"({deleted})" in str(caught.value) and deleted[1:] in str(caught.value)


def test_the_file_holds_what_the_overrides_say_and_no_copy_of_verls_own() -> None:
    text = job_file("ppo_trainer", [f"{ACTOR}.optim={{lr:1e-6}}", "trainer.nnodes=2"])
    assert text == (
        "defaults:\n- ppo_trainer\n- _self_\n\n"
        "hydra:\n  searchpath:\n  - pkg://verl.trainer.config\n\n"
        "actor_rollout_ref:\n  actor:\n    optim:\n      lr: 1.0e-06\n"
        "trainer:\n  nnodes: 2\n"
    )


def test_header_and_comments_stand_where_they_belong() -> None:
    text = job_file(
        "ppo_trainer",
        ["trainer.nnodes=2", "trainer.n_gpus_per_node=4"],
        header="# Tuned.",
        comments={"trainer.n_gpus_per_node": ["was 8"]},
    )
    assert text.startswith("# Tuned.\n\ndefaults:")
    assert text.endswith("trainer:\n  nnodes: 2\n  # was 8\n  n_gpus_per_node: 4\n")


def test_a_difference_is_found_in_value_and_in_type() -> None:
    one = compose_base("ppo_trainer", ["trainer.nnodes=1"])
    other = compose_base("ppo_trainer", ["trainer.nnodes=2", "+trainer.x=1"])
    assert sorted(differences(one, other)) == ["trainer.nnodes", "trainer.x"]
    assert differences(OmegaConf.create({"a": [1]}), OmegaConf.create({"a": [True]})) == ["a"]


def test_a_file_that_hydra_cannot_compose_is_refused(tmp_path: Path) -> None:
    path = compose_text("defaults: [no_such_trainer, _self_]\n", tmp_path)
    with pytest.raises(BadInputError, match="best.yaml is not a configuration that verl composes"):
        compose_file(path)


@pytest.mark.nightly
def test_verls_own_command_composes_the_same(tmp_path: Path) -> None:
    overrides = [*JOBS["engine"], "~model@critic.model", *JOBS["interpolations"], "~extra.y"]
    overrides[-1:] = ["+extra.list=[1,a]"]
    compose_text(job_file("ppo_trainer", overrides), tmp_path)

    def printed(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "verl.trainer.main_ppo", "--cfg", "job", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    text = printed("--config-path", str(tmp_path), "--config-name", "best")
    assert text == printed(*overrides)
    assert config_folder().is_dir()
