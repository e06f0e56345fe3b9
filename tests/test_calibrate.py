"""A calibration on a real local Ray cluster: measured once, kept, and never fatal to a sweep."""

import dataclasses
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import ray
import yaml
from ray.util.placement_group import placement_group_table
from rich.console import Console

from autotune.calibrate import cache_path, measure
from autotune.config import Sweep, load_sweep
from autotune.models.calibration_record import CalibrationRecord, read_record
from autotune.store import CALIBRATION_FILE, SweepStore
from autotune.sweep import calibrate_sweep
from autotune.tuning import cluster

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweeps")


def load(folder: Path, *added: str, overrides: Sequence[str] = ()) -> Sweep:
    """The quickstart with further overrides of its base job."""
    content = yaml.safe_load(QUICKSTART.read_text())
    content["base"]["overrides"] += added
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        return load_sweep(file, [f"output_dir={folder}", *overrides])
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def sweep(folder: Path) -> Sweep:
    command = [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"]
    subprocess.run(command, cwd=ROOT, check=True)
    return load(folder)


@pytest.fixture(scope="module", autouse=True)
def connected(sweep: Sweep) -> Iterator[None]:
    with cluster(sweep, None):
        yield


@pytest.fixture(scope="module")
def measured(sweep: Sweep) -> CalibrationRecord:
    return measure(sweep, Console(file=io.StringIO()))


def calibrated(sweep: Sweep, name: str) -> tuple[SweepStore, str]:
    """Calibrate as a sweep does; return its folder and what it said."""
    store = SweepStore(Path(sweep.config.output_dir) / name)
    said = io.StringIO()
    with store.locked():
        calibrate_sweep(sweep, store, Console(file=said, width=500))
    return store, said.getvalue()


def test_the_ranks_of_a_trial_measure_all_collectives(measured: CalibrationRecord) -> None:
    assert (measured.constants.world_size, measured.backend, measured.num_nodes) == (2, "gloo", 1)
    assert list(measured.samples) == ["all_gather", "reduce_scatter", "all_reduce"]
    assert measured.constants.flops_per_s["float32"] > 1e8


def test_no_actor_and_no_placement_group_is_left(measured: CalibrationRecord) -> None:
    # A kill is carried out a moment after the call.
    deadline = time.monotonic() + 10
    while ray.available_resources() != ray.cluster_resources() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]
    states = {group["state"] for group in placement_group_table().values()}
    assert states == {"REMOVED"}


def test_the_next_sweep_on_the_cluster_takes_it_over(
    sweep: Sweep, measured: CalibrationRecord
) -> None:
    store, said = calibrated(sweep, "next")
    assert read_record(store.folder / CALIBRATION_FILE) == measured
    assert said.startswith("Calibration: 2 ranks on 1 node, CPU, gloo: links look like host memory")


def test_a_sweep_keeps_the_calibration_it_began_with(
    sweep: Sweep, measured: CalibrationRecord
) -> None:
    store = SweepStore(Path(sweep.config.output_dir) / "kept")
    earlier = dataclasses.replace(measured, measured_at="2020-01-01T00:00:00+00:00")
    with store.locked():
        store.write(CALIBRATION_FILE, earlier.to_json())
    calibrated(sweep, "kept")
    assert read_record(store.folder / CALIBRATION_FILE) == earlier


def test_other_settings_of_the_communication_library_are_measured_apart(
    sweep: Sweep, folder: Path
) -> None:
    prefix = "+ray_kwargs.ray_init.runtime_env.env_vars"
    other = load(folder, f"{prefix}.NCCL_P2P_DISABLE='1'")
    assert cache_path(other) != cache_path(sweep)
    assert cache_path(load(folder)) == cache_path(sweep)


def test_a_rank_that_fails_is_said_and_stops_no_sweep(folder: Path) -> None:
    prefix = "+ray_kwargs.ray_init.runtime_env.env_vars"
    broken = load(folder, f"{prefix}.GLOO_SOCKET_IFNAME=no_such_interface")
    store, said = calibrated(broken, "broken")
    assert said.startswith("Calibration: a rank failed: ")
    assert "no_such_interface" in said
    assert said.rstrip().endswith("The sweep goes on without it.")
    assert not (store.folder / CALIBRATION_FILE).exists()


def test_a_sweep_can_do_without(folder: Path) -> None:
    store, said = calibrated(load(folder, overrides=["calibrate=false"]), "without")
    assert said == ""
    assert not (store.folder / CALIBRATION_FILE).exists()


def test_the_command_measures_on_a_given_cluster_and_prints_the_table(
    folder: Path,
) -> None:
    load(folder)
    address = ray.get_runtime_context().gcs_address
    command = ["calibrate", "--address", address, str(folder / "sweep.yaml")]
    done = subprocess.run(
        [sys.executable, "-m", "autotune.cli", *command, f"output_dir={folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "reduce_scatter" in done.stdout
    assert "Search spaces *_stable.yaml" in done.stdout
    assert str(folder / ".calibration") in done.stdout
