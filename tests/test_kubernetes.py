"""The sweep as a RayJob."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from autotune.config import Sweep, load_config, load_sweep
from autotune.errors import BadInputError
from autotune.kubernetes import ManifestSettings, manifest
from autotune.submission import sweep_id

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docker" / "sweep.yaml"
SCHEMA = json.loads((ROOT / "tests" / "data" / "rayjob.schema.json").read_text())


def settings(**changes: Any) -> ManifestSettings:
    values = {"image": "autotune:gpu", "volume_claim": "autotune", "secret": "autotune"}
    return ManifestSettings(**{**values, "memory_gib": 64, **changes})


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return load_sweep(EXAMPLE, is_elsewhere=True)


@pytest.fixture(scope="module")
def documents(sweep: Sweep) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifest(sweep, ROOT, settings())))


def without_the_sweep_file(text: str) -> str:
    """A new setting of the sweep file changes its text and its hash, nothing else."""
    config_map, job = yaml.safe_load_all(text)
    del config_map["data"]["sweep.yaml"]
    return re.sub(r"(qwen.kuberay)-[0-9a-f]{8}", r"\1", yaml.safe_dump_all([config_map, job]))


def test_the_example_in_the_repository_is_what_is_rendered(sweep: Sweep) -> None:
    example = (ROOT / "docker" / "rayjob.yaml").read_text()
    rendered = manifest(sweep, ROOT, settings())
    assert without_the_sweep_file(example) == without_the_sweep_file(rendered)


def test_the_job_keeps_its_schema(documents: list[dict[str, Any]]) -> None:
    config_map, job = documents
    jsonschema.validate(job, SCHEMA)
    assert (config_map["kind"], job["kind"]) == ("ConfigMap", "RayJob")


def test_there_is_a_worker_for_every_node_of_the_trials_at_once(
    documents: list[dict[str, Any]],
) -> None:
    [group] = documents[1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 2
    [container] = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["envFrom"] == [{"secretRef": {"name": "autotune"}}]


def test_every_mount_has_its_volume(documents: list[dict[str, Any]]) -> None:
    cluster = documents[1]["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_sweep_file_in_the_manifest_is_the_same_sweep(
    documents: list[dict[str, Any]], sweep: Sweep, tmp_path: Path
) -> None:
    (tmp_path / "sweep.yaml").write_text(documents[0]["data"]["sweep.yaml"])
    assert load_config(tmp_path / "sweep.yaml") == sweep.config
    assert documents[1]["spec"]["jobId"] == sweep_id(sweep)


def test_records_that_would_be_lost_are_refused(sweep: Sweep) -> None:
    with pytest.raises(BadInputError, match="would be lost"):
        manifest(sweep, ROOT, settings(volume_claim=None))


def test_data_does_not_travel_in_a_manifest(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR1\0")
    sweep.base_config.data.train_files = "train.parquet"
    try:
        with pytest.raises(BadInputError, match="train_files: train.parquet cannot travel"):
            manifest(sweep, tmp_path, settings())
    finally:
        sweep.base_config.data.train_files = "/home/autotune/autotune/data/train.parquet"


def test_a_script_travels_under_its_own_path(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "reward.py").write_text("def compute_score(): ...\n")
    sweep.base_config.reward.custom_reward_function.path = "code/reward.py"
    try:
        config_map, job = yaml.safe_load_all(manifest(sweep, tmp_path, settings()))
    finally:
        sweep.base_config.reward.custom_reward_function.path = None
    assert config_map["data"]["code__reward.py"] == "def compute_score(): ...\n"
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    [volume] = [volume for volume in head["volumes"] if volume["name"] == "sweep"]
    assert {"key": "code__reward.py", "path": "code/reward.py"} in volume["configMap"]["items"]
