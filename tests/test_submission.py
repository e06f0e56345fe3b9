"""What travels to a cluster with a sweep."""

import contextlib
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cluster import entrypoint, id_of, job_environment, name_of
from autotune.config import Sweep, load_config, load_sweep
from autotune.errors import BadInputError
from autotune.submission import pack, sweep_id
from autotune.verl_bridge.paths import absolute_paths, relative_files

QUICKSTART = Path(__file__).parents[1] / "search_spaces" / "quickstart_cpu.yaml"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder from which the quickstart can be submitted."""
    base = tmp_path_factory.mktemp("laptop")
    tiny = base / "demo" / "tiny"
    (tiny / "model").mkdir(parents=True)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    (tiny / "model" / "config.json").write_text(json.dumps(heads))
    for name in ("train.parquet", "test.parquet", "reward.py", "not_named.txt"):
        (tiny / name).write_text(name)
    (base / "sweep.yaml").write_text(QUICKSTART.read_text())
    with contextlib.chdir(base):
        yield base


def load(*overrides: str) -> Sweep:
    return load_sweep("sweep.yaml", overrides, is_elsewhere=True)


@pytest.fixture(scope="module")
def sweep(base: Path) -> Sweep:
    return load("search.num_trials=3")


def packed(base: Path, sweep: Sweep, folder: Path) -> set[str]:
    folder.mkdir()
    pack(sweep, base, folder)
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_files_that_the_job_names_travel_and_no_others(
    base: Path, sweep: Sweep, tmp_path: Path
) -> None:
    files = packed(base, sweep, tmp_path / "package")
    assert {name for name in files if name.startswith("demo/")} == {
        f"demo/tiny/{name}"
        for name in ("model/config.json", "train.parquet", "test.parquet", "reward.py")
    }


def test_the_sweep_file_that_travels_holds_the_overrides(
    base: Path, sweep: Sweep, tmp_path: Path
) -> None:
    packed(base, sweep, tmp_path / "package")
    assert load_config(tmp_path / "package" / "sweep.yaml").search.num_trials == 3


def test_the_package_runs_from_the_folder_with_its_plug_in(
    base: Path, sweep: Sweep, tmp_path: Path
) -> None:
    packed(base, sweep, tmp_path / "package")
    program = (
        "import autotune\nfrom importlib.metadata import entry_points\n"
        "print(autotune.__file__)\nprint([e.value for e in entry_points(group='verl.plugins')])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "package",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    where, plugins = done.stdout.splitlines()
    assert where == str(tmp_path / "package" / "autotune" / "__init__.py")
    assert plugins == "['autotune.verl_bridge.plugin']"


def test_nothing_of_the_environment_travels(
    base: Path, sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter22-hunter22")
    monkeypatch.setenv("MY_SETTING", "only-on-this-laptop")
    packed(base, sweep, tmp_path / "package")
    shipped = [path.read_bytes() for path in (tmp_path / "package").rglob("*") if path.is_file()]
    shipped.append(json.dumps(job_environment()).encode())
    shipped.append(entrypoint(sweep, python="python").encode())
    for text in (b"hunter22", b"only-on-this-laptop", str(base).encode()):
        assert not any(text in content for content in shipped)


JOB = {
    "critic.enable": False,
    "actor_rollout_ref.model.path": "org/model",
    "data.train_files": "/cluster/a.parquet",
    "data.val_files": "/cluster/b.parquet",
}


def test_absolute_paths_are_the_clusters_and_need_not_exist_here(tmp_path: Path) -> None:
    job = {**JOB, "data.train_files": "/cluster/train.parquet"}
    assert relative_files(job, tmp_path) == {}
    with pytest.raises(BadInputError, match="'/cluster/train.parquet' does not exist"):
        absolute_paths(job, tmp_path)


def test_a_relative_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    job = {**JOB, "reward.custom_reward_function.path": "reward.py"}
    with pytest.raises(BadInputError, match="reward file 'reward.py' does not exist"):
        relative_files(job, tmp_path)


def test_files_outside_the_folder_do_not_travel(base: Path, sweep: Sweep, tmp_path: Path) -> None:
    reward, outside = base / "demo" / "tiny" / "reward.py", tmp_path / "outside.py"
    reward.rename(outside)
    reward.symlink_to(outside)
    with pytest.raises(BadInputError, match="lies outside"):
        packed(base, sweep, tmp_path / "package")
    reward.unlink()
    outside.rename(reward)


def test_large_files_are_refused_with_the_largest_named(
    base: Path, sweep: Sweep, tmp_path: Path
) -> None:
    weights = base / "demo" / "tiny" / "model" / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(BadInputError, match=r"have 200 MiB; the largest is .*model.safetensors"):
        packed(base, sweep, tmp_path / "package")
    weights.unlink()


@pytest.mark.parametrize(
    ("section", "key", "value", "is_same"),
    [
        ("search", "num_trials", 50, True),
        ("search", "max_concurrent", 4, True),
        ("", "output_dir", "other", True),
        ("", "output_uri", "s3://bucket", True),
        ("trial", "seed", 7, False),
        ("resources", "strategy", "SPREAD", False),
    ],
)
def test_a_sweep_has_one_id_whatever_its_budget(
    sweep: Sweep, section: str, key: str, value: object, is_same: bool
) -> None:
    changed = copy.deepcopy(sweep)
    setattr(getattr(changed.config, section) if section else changed.config, key, value)
    assert (sweep_id(changed) == sweep_id(sweep)) is is_same


def test_a_sweep_is_named_by_its_file_or_its_id(sweep: Sweep) -> None:
    name = sweep_id(sweep)
    assert id_of("sweep.yaml") == id_of(name) == id_of(f"{name}-r2") == name
    assert name_of(name) == "quickstart_cpu"
    with pytest.raises(BadInputError, match="'quickstart' is neither a sweep file"):
        id_of("quickstart")


@pytest.mark.parametrize(
    ("output_dir", "word"),
    [
        ("sweeps", '"$HOME"/autotune/sweeps'),
        ("/data/it's", "'/data/it'\"'\"'s'"),
        ("$(touch mark)", "\"$HOME\"/autotune/'$(touch mark)'"),
    ],
)
def test_the_output_folder_is_one_word_of_the_clusters_shell(
    sweep: Sweep, output_dir: str, word: str
) -> None:
    changed = copy.deepcopy(sweep)
    changed.config.output_dir = output_dir
    assert entrypoint(changed, python="python").endswith(f"output_dir={word}")
