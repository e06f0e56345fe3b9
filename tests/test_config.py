"""Loading a sweep file: every way in which it can be wrong, and what a right one gives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.config import Sweep, load_config, load_sweep, to_yaml
from autotune.errors import BadInputError
from autotune.settings import ConstraintConfig
from autotune.verl_bridge.overrides import compose_base, leaves

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
MICRO = "ppo_micro_batch_size_per_gpu"


class SweepFile:
    """A right sweep file with its model and data; tests change one thing and load it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "model").mkdir()
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        (folder / "model" / "config.json").write_text(json.dumps(heads))
        for name in ("train.parquet", "test.parquet", "reward.py"):
            (folder / name).touch()
        self.content: dict[str, Any] = {
            "name": "tiny",
            "base": {"config_name": "ppo_trainer", "overrides": self._base_overrides()},
            "resources": {"nodes": 1, "ranks_per_node": 2, "device": "cpu"},
            "knobs": {MICRO: {"choices": [1, 2, 3, 4]}},
            "trial": {
                "warmup_steps": 1,
                "measured_steps": 4,
                "profiled_steps": 1,
                "seed": 1,
                "startup_timeout_s": 300,
                "step_timeout_s": 120,
            },
            "search": {
                "sampler": "tpe",
                "num_trials": 9,
                "max_concurrent": 1,
                "seed": 1,
                "num_startup_trials": 4,
            },
        }

    def _base_overrides(self) -> list[str]:
        return [
            "algorithm.adv_estimator=grpo",
            "data.train_files=train.parquet",
            "data.val_files=test.parquet",
            "data.train_batch_size=8",
            "data.max_prompt_length=64",
            "data.max_response_length=32",
            "actor_rollout_ref.model.path=./model",
            "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            f"{ACTOR}.strategy=fsdp2",
            f"{ACTOR}.ppo_mini_batch_size=8",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
            f"{ACTOR}.use_kl_loss=True",
            f"{REF}.log_prob_micro_batch_size_per_gpu=4",
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",
            f"{ROLLOUT}.name=hf",
            f"{ROLLOUT}.tensor_model_parallel_size=1",
            f"{ROLLOUT}.n=4",
            "reward.custom_reward_function.path=reward.py",
        ]

    def set(self, key: str, value: object) -> "SweepFile":
        """Set a dotted key of the file; None removes it."""
        *sections, name = key.split(".")
        node = self.content
        for section in sections:
            node = node[section]
        if value is None:
            del node[name]
        else:
            node[name] = value
        return self

    def add(self, *overrides: str) -> "SweepFile":
        """Append overrides of the base job."""
        self.content["base"]["overrides"] += overrides
        return self

    def path(self) -> Path:
        file = self.folder / "sweep.yaml"
        file.write_text(yaml.safe_dump(self.content, sort_keys=False))
        return file

    def load(self, *overrides: str) -> Sweep:
        return load_sweep(self.path(), overrides)


@pytest.fixture
def sweep_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFile:
    monkeypatch.chdir(tmp_path)
    return SweepFile(tmp_path)


def test_a_right_file_gives_config_job_and_space(sweep_file: SweepFile) -> None:
    sweep = sweep_file.load()
    assert sweep.config.trial.measured_steps == 4
    assert sweep.space.baseline() == {MICRO: 2}
    assert leaves(sweep.base_config)["trainer.n_gpus_per_node"] == 2


def test_the_summary_counts_what_verl_refuses(sweep_file: SweepFile) -> None:
    # 8 x 4 sequences on 2 ranks are 16 a rank: of 1, 2, 3, 4 only 3 does not divide
    summary = sweep_file.load().summary
    assert (summary.num_points, summary.num_valid) == (4, 3)
    assert summary.excluded == {"micro_batch_in_mini_batch": 1}


def test_resources_and_absolute_paths_are_added_to_the_base_job(sweep_file: SweepFile) -> None:
    sweep = sweep_file.load()
    added = sweep.base_overrides[len(sweep.config.base.overrides) :]
    assert "trainer.n_gpus_per_node=2" in added and "trainer.device=cpu" in added
    flat = leaves(compose_base("ppo_trainer", sweep.base_overrides))
    assert flat["actor_rollout_ref.model.path"] == str(sweep_file.folder / "model")
    assert flat["data.train_files"] == str(sweep_file.folder / "train.parquet")


def test_a_settings_job_has_the_base_job_and_its_knobs(sweep_file: SweepFile) -> None:
    sweep = sweep_file.load()
    flat = leaves(compose_base("ppo_trainer", sweep.job_overrides({MICRO: 4})))
    assert flat[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == 4


def test_the_command_line_wins_over_the_file(sweep_file: SweepFile) -> None:
    sweep = sweep_file.load("trial.measured_steps=2", f"knobs.{MICRO}.choices=[8,16]")
    assert sweep.config.trial.measured_steps == 2
    assert sweep.config.knobs[MICRO].choices == [8, 16]


def test_a_file_without_constraints_has_three(sweep_file: SweepFile) -> None:
    assert sweep_file.load().config.constraints == [
        ConstraintConfig(metric="kl_std", max=1e-4),
        ConstraintConfig(metric="exposed_comm_ratio", max=0.2),
        ConstraintConfig(metric="peak_memory_ratio", max=0.9),
    ]


def test_an_empty_list_of_constraints_means_none(sweep_file: SweepFile) -> None:
    assert sweep_file.set("constraints", []).load().config.constraints == []


def test_what_was_written_loads_again_as_the_same_object(sweep_file: SweepFile) -> None:
    domain = {"low": 1, "high": 16, "log": True, "when": {"reshard_after_forward": True}}
    sweep_file.set(f"knobs.{MICRO}", domain)
    sweep_file.set("knobs.reshard_after_forward", {"choices": [True, False]})
    sweep_file.add("trainer.experiment_name='1e-4'")
    config = sweep_file.load().config
    again = sweep_file.folder / "again.yaml"
    again.write_text(to_yaml(config))
    assert load_config(again) == config


def test_numbers_may_be_written_with_an_exponent(sweep_file: SweepFile) -> None:
    file = sweep_file.set(
        "knobs", {"rollout_update_weights_bucket_megabytes": {"choices": ["BIG", 512]}}
    ).path()
    file.write_text(file.read_text().replace("BIG", "2e3"))
    assert load_sweep(file).space.is_valid({"rollout_update_weights_bucket_megabytes": 2000})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "../up", r"^name is '../up'"),
        ("name", ".hidden", r"^name is '.hidden'"),
        ("name", "a/b", r"^name is 'a/b'"),
        ("output_dir", "a/../b", r"^output_dir is 'a/../b'"),
        ("output_dir", "s3://x", r"^output_dir is 's3://x'"),
        ("output_dir", "~/x", r"^output_dir is '~/x'.*whole path"),
        ("output_dir", "~someone", r"^output_dir is '~someone'"),
        ("knobs", {}, r"^knobs is empty"),
        ("nmae", "x", "There is no key 'nmae'. Did you mean 'name'"),
        ("trial.warmup", 1, "There is no key 'trial.warmup'. Did you mean 'warmup_steps'"),
        ("trial.seed", None, "lacks trial.seed"),
        ("search", None, "The sweep file lacks search"),
        ("trial.seed", "abc", "^trial.seed is 'abc', but must be an integer"),
        ("trial.seed", -1, "^trial.seed is -1. It must be from 0 to 4294967295"),
        ("trial.seed", 2**32, "^trial.seed is 4294967296. It must be from 0 to 4294967295"),
        ("search.seed", -1, "^search.seed is -1"),
        ("search.seed", 2**70, "^search.seed is 1180591620717411303424"),
        ("output_dir", "a\0b", "^output_dir is 'a.x00b'"),
        ("trial.warmup_steps", 0, "^trial.warmup_steps is 0. It must be at least 1"),
        ("trial.measured_steps", 0, "^trial.measured_steps is 0"),
        ("trial.profiled_steps", -1, "^trial.profiled_steps is -1"),
        ("trial.step_timeout_s", 0, "^trial.step_timeout_s is 0"),
        ("trial.startup_timeout_s", float("inf"), "^trial.startup_timeout_s is inf"),
        ("trial.max_retries", -1, "^trial.max_retries is -1"),
        ("search.sampler", "tpee", "^search.sampler is 'tpee'. Did you mean 'tpe'"),
        ("search.num_trials", 0, "^search.num_trials is 0"),
        ("search.max_concurrent", 0, "^search.max_concurrent is 0"),
        ("search.num_startup_trials", 0, "^search.num_startup_trials is 0"),
        ("resources.nodes", 0, "^resources.nodes is 0"),
        ("resources.ranks_per_node", 0, "^resources.ranks_per_node is 0"),
        ("resources.cpus_per_rank", 0, "^resources.cpus_per_rank is 0"),
        ("resources.device", "tpu", "^resources.device is 'tpu'. .*gpu"),
        ("resources.strategy", "PAC", "^resources.strategy is 'PAC'. Did you mean 'PACK'"),
        ("objective", {"metric": "troughput_tokens_per_s_per_gpu"}, "Did you mean 'throughput_tok"),
        ("objective", {"metric": "reward_mean"}, "'reward_mean', which is neither better high"),
        ("constraints", [{"metric": "kl_st", "max": 1}], r"^constraints\[0\].metric is 'kl_st'"),
        ("constraints", [{"metric": "kl_std", "max": 0}], r"^constraints\[0\].max is 0"),
        ("constraints", [{"metric": "kl_std"}], r"lacks constraints\[0\].max"),
        (
            "constraints",
            [{"metric": "kl_std", "max": 1}, {"metric": "kl_std", "max": 1}],
            r"^constraints\[1\].metric is 'kl_std', which constraints\[0\] bounds",
        ),
        ("base.config_name", "ppo_trainr", "Did you mean 'ppo_trainer'"),
        ("base.overrides", "a=1", "^base.overrides is 'a=1', but must be a list"),
        ("base.overrides", [{"a": 1}], r"^base.overrides\[0\] is"),
    ],
)
def test_a_wrong_field_is_refused_with_its_key(
    sweep_file: SweepFile, key: str, value: object, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        sweep_file.set(key, value).load()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"ppo_micro_batch_size": {"choices": [1]}}, f"no knob .*Did you mean '{MICRO}'"),
        ({"gradient_magic": {"choices": [25e6]}}, "knobs.gradient_magic: there is no knob"),
        ({MICRO: {"choices": [1, 2, 0]}}, rf"knobs.{MICRO}.choices\[2\] is 0, outside"),
        ({MICRO: {"choices": [3, 5]}}, "no valid setting besides the base job's own"),
        ({MICRO: {"low": 1, "high": 1e300, "log": True}}, r"high is 1e\+300.*at most 2\*\*53"),
        ({MICRO: {"choices": [1, 2**53 + 2]}}, r"choices\[1\] is 9007199254740994, outside"),
        ({"min_overlap_time_s": {"low": 0, "high": 1, "step": float("nan")}}, "step is nan"),
        ({"min_overlap_time_s": {"low": 0, "high": 1, "step": 1e-300}}, "step is 1e-300, of which"),
        ({MICRO: {"choises": [1]}}, f"There is no key 'knobs.{MICRO}.choises'"),
        ({"rollout_enforce_eager": {"choices": [True]}}, "rollout_enforce_eager: this job ignores"),
        (
            {"ppo_max_token_len_per_gpu": {"choices": [960]}},
            "ppo_max_token_len_per_gpu: this job ignores it: it acts only where .*use_dynamic_bsz",
        ),
    ],
)
def test_a_wrong_knob_is_refused(sweep_file: SweepFile, knobs: object, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        sweep_file.set("knobs", knobs).load()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ACTOR}.ppo_minibatch_size=8", f"no key .*Did you mean '{ACTOR}.ppo_mini_batch_size'"),
        (f"{ACTOR}.ppo_mini_batch_size=abc", "ppo_mini_batch_size is 'abc'"),
        ("actor_rollout_ref.model.path=./no_model", "model folder './no_model' does not exist"),
        ("data.train_files=no.parquet", "data.train_files: data file 'no.parquet' does not exist"),
        ("trainer.n_gpus_per_node=4", "n_gpus_per_node is 4, but resources.ranks_per_node is 2"),
        ("trainer.nnodes=2", "trainer.nnodes is 2, but resources.nodes is 1"),
        ("trainer.device=cuda", "trainer.device is 'cuda', but resources.device is cpu"),
        ("trainer.use_v1=false", "trainer.use_v1 is false"),
        (f"{ACTOR}.strategy=fsdp", f"{ACTOR}.strategy is 'fsdp', but resources.device is cpu"),
        ("model_engine=megatron", "model_engine is 'megatron'.*Only FSDP can be tuned"),
        (f"{ACTOR}.ppo_mini_batch_size=16", "verl refuses the base job: .*at least"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=5", "verl refuses the base job: .*must divide"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=0", "verl refuses the base job"),
        ("algorithm.adv_estimator=nonsense", "no such advantage estimator"),
        (f"{ROLLOUT}.name=vllm", "'vllm', but resources.device is cpu"),
        ("actor_rollout_ref.model.path=null", "actor_rollout_ref.model.path is None"),
        ("data.val_files=null", "data.val_files is None"),
        (f"{STORAGE_UNITS}=null", f"{STORAGE_UNITS} is None. It must be an integer of at least 1"),
        (f"{STORAGE_UNITS}=0", f"{STORAGE_UNITS} is 0"),
        # Deleted keys that trials need, wherever they are read.
        ("~critic", "the job has no key 'critic.enable'.*Remove the override"),
        ("~trainer.use_v1", "the job has no key 'trainer.use_v1'"),
        ("~transfer_queue", "the job has no key 'transfer_queue"),
        ("~data.train_files", "the job has no key 'data.train_files'"),
        ("~trainer", "the job has no key 'trainer"),
        ("~actor_rollout_ref", "the job has no key 'actor_rollout_ref"),
        (f"~{ROLLOUT}.log_prob_use_dynamic_bsz", "the job has no key .*log_prob_use_dynamic_bsz'"),
        ("+a=" + "[" * 3000 + "]" * 3000, "is not in Hydra's syntax: .*too deeply"),
        ("+a" + ".a" * 3000 + "=1", "is not in Hydra's syntax: its key has more than"),
        ("+a=" + "9" * 5000, "Hydra's syntax"),
    ],
    ids=lambda text: text[:60],
)
def test_a_wrong_base_job_is_refused(sweep_file: SweepFile, override: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        sweep_file.add(override).load()


def test_overrides_that_agree_with_the_resources_are_fine(sweep_file: SweepFile) -> None:
    sweep_file.add("trainer.n_gpus_per_node=2", "trainer.nnodes=1", "trainer.device=cpu").load()


def test_a_token_of_the_environment_cannot_be_copied_in(
    sweep_file: SweepFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret-token")
    sweep_file.add("trainer.project_name=${oc.env:WANDB_API_KEY}")
    with pytest.raises(
        BadInputError, match=r"base.overrides\[\d+\] contains an interpolation"
    ) as e:
        sweep_file.load()
    assert "secret-token" not in str(e.value)


def test_a_secret_that_is_written_out_is_refused_and_not_repeated(sweep_file: SweepFile) -> None:
    key = "ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY"
    with pytest.raises(BadInputError, match=f"base.overrides: {key} holds a secret") as e:
        sweep_file.add(f"+{key}=hunter22").load()
    assert "hunter22" not in str(e.value)


def test_a_share_of_a_gpu_is_refused_with_the_reason(sweep_file: SweepFile) -> None:
    with pytest.raises(BadInputError, match="gpus_per_rank is 0.5. It must be 1: a rank that"):
        sweep_file.set("resources.gpus_per_rank", 0.5).load()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_trainer_mode_follows_from_the_device(sweep_file: SweepFile, device: str) -> None:
    sweep = sweep_file.set("resources.device", device).load()
    mode = {"cpu": "cpu_sync", "gpu": "sync"}[device]
    assert leaves(sweep.base_config)["trainer.v1.trainer_mode"] == mode


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.v1.trainer_mode=colocate_async", "trainer_mode is 'colocate_async', but"),
        ("reward.reward_model.enable_resource_pool=true", "a reward model on GPUs of its own"),
        ("reward_model.enable_resource_pool=true", "a reward model on GPUs of its own"),
        ("reward.reward_model.enable=true", "a reward model that shares the ranks' GPUs"),
        ("reward_model.enable=true", "a reward model that shares the ranks' GPUs"),
        ("distillation.enabled=true", "teachers on GPUs of their own"),
        ("actor_rollout_ref.rollout.nnodes=1", "rollout servers on nodes of their own"),
    ],
)
def test_a_job_that_needs_more_than_one_pool_of_ranks_is_refused(
    sweep_file: SweepFile, override: str, message: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        sweep_file.add(override).load()


UPDATE_ONLY = "update_only_tokens_per_s_per_gpu"


def test_knobs_of_training_may_be_swept_with_a_replayed_rollout(sweep_file: SweepFile) -> None:
    sweep_file.set("trial.fidelity", "update").set("objective", {"metric": UPDATE_ONLY})
    trial = sweep_file.load().config.trial
    assert (trial.fidelity, trial.replays_rollout) == ("update", True)


def test_a_trial_runs_whole_steps_unless_told_otherwise(sweep_file: SweepFile) -> None:
    assert sweep_file.load().config.trial.fidelity == "full"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("trial.fidelity", "half", "trial.fidelity is 'half'. It is one of: full, update."),
        (
            "knobs.rollout_max_num_seqs",
            {"choices": [8, 16]},
            "knobs.rollout_max_num_seqs would act on the rollout. Leave these knobs out; or set "
            "trial.fidelity: full",
        ),
        (
            "trial.recovery",
            [{"when": "memory", "knobs": {"rollout_gpu_memory_utilization": 0.3}}],
            r"trial.recovery\[0\].knobs.rollout_gpu_memory_utilization would act on the rollout",
        ),
        (
            "objective",
            {"metric": "step_s"},
            "objective.metric is step_s, which only whole steps have. Set objective.metric: "
            "update_only_s; or set trial.fidelity: full",
        ),
        (
            "constraints",
            [{"metric": "kl_to_reference", "max": 0.1}],
            r"constraints\[0\].metric is kl_to_reference, which only whole steps have",
        ),
    ],
)
def test_what_a_replayed_rollout_cannot_show_is_refused(
    sweep_file: SweepFile, key: str, value: object, message: str
) -> None:
    sweep_file.set("objective", {"metric": UPDATE_ONLY}).set("trial.fidelity", "update")
    with pytest.raises(BadInputError, match=message):
        sweep_file.set(key, value).load()


def test_everything_that_a_replay_cannot_show_stands_in_one_message(
    sweep_file: SweepFile,
) -> None:
    sweep_file.set("trial.fidelity", "update")
    sweep_file.set("knobs.rollout_max_num_seqs", {"choices": [8, 16]})
    with pytest.raises(BadInputError) as error:
        sweep_file.load()
    assert "knobs.rollout_max_num_seqs would act on the rollout; objective.metric is" in str(
        error.value
    )


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.rollout_correction.bypass_mode=true",
        "algorithm.rollout_correction.rollout_is=token",
        "algorithm.rollout_correction.rollout_rs=token_k1",
    ],
)
def test_a_job_that_weighs_its_own_rollout_cannot_replay_another(
    sweep_file: SweepFile, override: str
) -> None:
    sweep_file.set("objective", {"metric": UPDATE_ONLY}).set("trial.fidelity", "update")
    sweep_file.add(override)
    key = override.partition("=")[0]
    with pytest.raises(BadInputError, match=f"the base job's {key} is"):
        sweep_file.load()


def test_a_python_tag_is_refused_and_runs_nothing(sweep_file: SweepFile) -> None:
    file, mark = sweep_file.path(), sweep_file.folder / "mark"
    with file.open("a") as stream:
        stream.write(f"output_dir: !!python/object/apply:os.system ['touch {mark}']\n")
    with pytest.raises(BadInputError, match="YAML tag '!!python/object/apply:os.system'"):
        load_sweep(file)
    assert not mark.exists()


def test_a_file_that_is_not_yaml_is_refused(sweep_file: SweepFile) -> None:
    (sweep_file.folder / "bad.yaml").write_text("knobs: {a: [1,\n")
    with pytest.raises(BadInputError, match="bad.yaml is not valid YAML"):
        load_sweep(sweep_file.folder / "bad.yaml")


def test_loading_a_sweep_loads_no_heavy_package(sweep_file: SweepFile) -> None:
    code = (
        "import sys; from autotune.config import load_sweep; load_sweep(sys.argv[1]);"
        "print([m for m in ('verl', 'torch', 'ray', 'optuna') if m in sys.modules])"
    )
    arguments = [sys.executable, "-c", code, str(sweep_file.path())]
    run = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


SCRIPT = """#!/bin/bash
MB=4
python3 -m verl.trainer.main_ppo {words} "$@"
"""


def with_script(file: SweepFile, *changes: str) -> SweepFile:
    """Move the base job into a launch script."""
    from autotune.launch_script import quoted

    overrides = file.content["base"]["overrides"]
    words = " \\\n    ".join(quoted(text) for text in [*overrides, *changes])
    (file.folder / "launch.sh").write_text(SCRIPT.format(words=words))
    file.content["base"] = {"launch_script": "launch.sh"}
    return file


def test_a_base_job_is_read_from_its_launch_script(sweep_file: SweepFile) -> None:
    given = sweep_file.load()
    read = with_script(sweep_file).load()
    assert read.base_overrides == given.base_overrides
    assert read.config.base.config_name == "ppo_trainer"


def test_the_resolved_file_holds_what_the_script_said(
    sweep_file: SweepFile, tmp_path: Path
) -> None:
    config = load_config(with_script(sweep_file).path())
    (tmp_path / "resolved.yaml").write_text(to_yaml(config))
    (sweep_file.folder / "launch.sh").unlink()
    again = load_config(tmp_path / "resolved.yaml")
    assert again.base.overrides == config.base.overrides
    assert again.base.launch_script is None


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ({}, "lacks base.overrides"),
        ({"launch_script": "launch.sh", "overrides": ["a=1"]}, "both describe the base job"),
        ({"launch_script": "none.sh"}, "none.sh cannot be read: No such file"),
        (
            {"launch_script": "launch.sh", "config_name": "ppo_megatron_trainer"},
            "config_name is 'ppo_megatron_trainer', but .*launch.sh composes 'ppo_trainer'",
        ),
    ],
)
def test_a_base_job_has_one_source(
    base: dict[str, Any], message: str, sweep_file: SweepFile
) -> None:
    with_script(sweep_file).content["base"] = base
    with pytest.raises(BadInputError, match=message):
        load_config(sweep_file.path())


def test_a_script_with_an_interpolation_is_refused(sweep_file: SweepFile) -> None:
    with_script(sweep_file, "trainer.experiment_name=${oc.env:WANDB_API_KEY}")
    with pytest.raises(BadInputError, match="launch.sh.* contains an interpolation"):
        load_config(sweep_file.path())


def test_a_script_that_gives_verl_a_secret_is_refused(sweep_file: SweepFile) -> None:
    with_script(sweep_file, "+ray_kwargs.ray_init.runtime_env.env_vars.HF_TOKEN=hf_abcdef")
    with pytest.raises(BadInputError, match="HF_TOKEN holds a secret"):
        load_config(sweep_file.path())


@pytest.mark.parametrize(
    ("verify", "message"),
    [
        ({"top_k": 0}, "verify.top_k is 0"),
        ({"max_jobs": 5}, "verify.max_jobs is 5. With verify.top_k=2 it must be at least 9"),
        ({"interval_width_ratio": 0}, "verify.interval_width_ratio is 0"),
        ({"max_wall_s": -1}, "verify.max_wall_s is -1"),
        ({"maxjobs": 9}, "Did you mean 'max_jobs'"),
    ],
)
def test_the_verify_section_is_checked(
    verify: dict[str, Any], message: str, sweep_file: SweepFile
) -> None:
    sweep_file.content["verify"] = verify
    with pytest.raises(BadInputError, match=message):
        load_config(sweep_file.path())
