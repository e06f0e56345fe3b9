"""Files and folders that a job names: found, and such that verl can start from them."""

from pathlib import Path

import pytest

from autotune.errors import BadInputError
from autotune.verl_bridge.overrides import compose_base, leaves
from autotune.verl_bridge.paths import absolute_paths, hub_names, relative_files

MODEL = "actor_rollout_ref.model.path"


def job_leaves(tmp_path: Path, **changes: object) -> dict[str, object]:
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "train.parquet").touch()
    flat = leaves(compose_base("ppo_trainer", ["algorithm.adv_estimator=grpo"]))
    flat |= {MODEL: "org/model", "data.train_files": "data/train.parquet"}
    flat |= {"data.val_files": "data/train.parquet"}
    return flat | {key.replace("__", "."): value for key, value in changes.items()}


def make_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def test_relative_files_become_absolute(tmp_path: Path) -> None:
    found = absolute_paths(job_leaves(tmp_path), tmp_path)
    assert found == dict.fromkeys(
        ("data.train_files", "data.val_files"), str(tmp_path / "data/train.parquet")
    )


def test_a_relative_model_folder_becomes_absolute(tmp_path: Path) -> None:
    make_model(tmp_path / "org" / "model")
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({MODEL: None}, f"^{MODEL} is None. verl does not start without one"),
        ({"data.train_files": None}, "^data.train_files is None"),
        ({"data.val_files": []}, r"^data.val_files is \[\]"),
        ({"data.train_files": "data"}, "^data.train_files is the folder '.*/data'"),
        ({"data.train_files": ["data/train.parquet", "data"]}, r"^data.train_files.1. is the fold"),
        ({"data.val_files": "data/train.csv"}, r"data/train.csv'. verl reads files that end"),
        ({"reward.custom_reward_function.path": "data"}, "data is a folder"),
        ({MODEL: "data"}, f"^{MODEL}: .*/data holds no config.json"),
        ({MODEL: "data/train.parquet"}, f"^{MODEL}: .*train.parquet is a file"),
        ({"actor_rollout_ref.model.hf_config_path": "data"}, "^.*hf_config_path: .*/data holds no"),
    ],
)
def test_what_verl_cannot_start_from_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    flat = job_leaves(tmp_path)
    (tmp_path / "data" / "train.csv").touch()
    with pytest.raises(BadInputError, match=message):
        absolute_paths(flat | changes, tmp_path)


@pytest.mark.parametrize("key", [MODEL, "data.train_files"])
def test_null_is_refused_for_a_job_elsewhere_too(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadInputError, match=f"^{key} is None"):
        relative_files(job_leaves(tmp_path) | {key: None}, tmp_path)


def test_a_dataset_of_the_jobs_own_reads_what_it_likes(tmp_path: Path) -> None:
    flat = job_leaves(tmp_path) | {"data.custom_cls.path": "own.py", "data.train_files": "data"}
    assert absolute_paths(flat, tmp_path)["data.train_files"] == str(tmp_path / "data")


def test_a_configuration_of_its_own_stands_for_the_models(tmp_path: Path) -> None:
    make_model(tmp_path / "org" / "config")
    (tmp_path / "org" / "weights").mkdir()
    flat = job_leaves(tmp_path) | {MODEL: "org/weights"}
    absolute_paths(flat | {"actor_rollout_ref.model.hf_config_path": "org/config"}, tmp_path)


def test_a_name_on_the_hub_is_said_to_be_one(tmp_path: Path) -> None:
    flat = job_leaves(tmp_path)
    assert hub_names(flat, tmp_path) == {MODEL: "org/model"}
    make_model(tmp_path / "org" / "model")
    assert hub_names(flat, tmp_path) == {}


@pytest.mark.parametrize("name", ["org/a--b", "org/a..b", "org/-a", "org/" + "a" * 100, "org/a."])
def test_what_has_not_the_form_of_a_name_on_the_hub_is_a_missing_folder(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(BadInputError, match="does not exist"):
        absolute_paths(job_leaves(tmp_path) | {MODEL: name}, tmp_path)


def test_offline_a_name_on_the_hub_must_be_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BadInputError, match="no model folder 'org/model' here.*HF_HUB_OFFLINE for"):
        absolute_paths(job_leaves(tmp_path), tmp_path)
    (tmp_path / "cache" / "models--org--model").mkdir(parents=True)
    absolute_paths(job_leaves(tmp_path), tmp_path)
