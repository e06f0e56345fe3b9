"""Files and folders that a job names."""

from pathlib import Path

import pytest

from autotune.errors import BadInputError
from autotune.verl_bridge.overrides import compose_base, leaves
from autotune.verl_bridge.paths import absolute_paths

MODEL = "actor_rollout_ref.model.path"


def job_leaves(tmp_path: Path, **changes: object) -> dict[str, object]:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "train.parquet").touch()
    flat = leaves(compose_base("ppo_trainer", ["algorithm.adv_estimator=grpo"]))
    flat |= {MODEL: "org/model", "data.train_files": "data/train.parquet"}
    flat |= {"data.val_files": "data/train.parquet"}
    return flat | {key.replace("__", "."): value for key, value in changes.items()}


def test_relative_files_become_absolute(tmp_path: Path) -> None:
    found = absolute_paths(job_leaves(tmp_path), tmp_path)
    assert found == dict.fromkeys(
        ("data.train_files", "data.val_files"), str(tmp_path / "data/train.parquet")
    )


def test_a_relative_model_folder_becomes_absolute(tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert absolute_paths(job_leaves(tmp_path), tmp_path)[MODEL] == str(tmp_path / "org/model")


@pytest.mark.parametrize(
    "path", ["/no/such/model", "./model", "../model", "~/no/such/model", "model", "a/b/c", "data/m"]
)
def test_a_missing_model_folder_is_refused(tmp_path: Path, path: str) -> None:
    flat = job_leaves(tmp_path) | {MODEL: path}
    with pytest.raises(BadInputError) as caught:
        absolute_paths(flat, tmp_path)
    assert f"{MODEL}: model folder '{path}' does not exist" in caught.value.message


@pytest.mark.parametrize("path", ["Qwen/Qwen2.5-7B", "hdfs://cluster/model", "s3://bucket/model"])
def test_hub_names_and_urls_stay(tmp_path: Path, path: str) -> None:
    assert MODEL not in absolute_paths(job_leaves(tmp_path) | {MODEL: path}, tmp_path)


def test_the_critics_model_counts_only_where_there_is_a_critic(tmp_path: Path) -> None:
    flat = job_leaves(tmp_path) | {"critic.model.path": "/no/such/critic"}
    absolute_paths(flat, tmp_path)
    with pytest.raises(BadInputError, match="critic.model.path: model folder '/no/such/critic'"):
        absolute_paths(flat | {"algorithm.adv_estimator": "gae"}, tmp_path)


def test_one_missing_file_of_a_list_is_named_by_its_place(tmp_path: Path) -> None:
    flat = job_leaves(tmp_path) | {"data.train_files": ["data/train.parquet", "data/more.parquet"]}
    with pytest.raises(
        BadInputError, match=r"data.train_files\[1\]: data file 'data/more.parquet'"
    ):
        absolute_paths(flat, tmp_path)


def test_a_missing_reward_file_is_refused(tmp_path: Path) -> None:
    flat = job_leaves(tmp_path) | {"reward.custom_reward_function.path": "reward.py"}
    with pytest.raises(BadInputError, match="reward.custom_reward_function.path: reward file"):
        absolute_paths(flat, tmp_path)


def test_an_absolute_existing_path_does_not_change(tmp_path: Path) -> None:
    file = str(tmp_path / "data" / "train.parquet")
    found = absolute_paths(job_leaves(tmp_path) | {"data.train_files": file}, tmp_path)
    assert "data.train_files" not in found
