"""The runner for machines without a network; its bundle holds the packages of this test."""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "scripts" / "gpu" / "run_sweep.sh"
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"
INSTALLER = """
echo installed >>"$(dirname "$0")/log"
mkdir -p "$2"
echo "export PYTHONPATH=$2" >"$2/env.sh"
"""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SITE": str(folder / "site"), "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", str(RUNNER), *arguments],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine")
    (folder / "bundle").mkdir()
    (folder / "bundle" / "install_bundle.sh").write_text(INSTALLER)
    (folder / "bundle" / "site.sha256").write_text("1234\n")
    return folder


@pytest.fixture(scope="module")
def records() -> Iterator[str]:
    """A sweep's folder below the checkout, as a run leaves it."""
    name = f"sweeps/test_run_sweep_{os.getpid()}"
    (ROOT / name / "tune").mkdir(parents=True)
    (ROOT / name / "trials.jsonl").touch()
    yield name
    shutil.rmtree(ROOT / name)


@pytest.fixture(scope="module")
def done(folder: Path, records: str) -> subprocess.CompletedProcess[str]:
    arguments = ("bundle", str(QUICKSTART), "search.num_trials=2")
    results = {"COMMAND": "check", "RESULTS": "out"}
    assert run(folder, *arguments, **results).returncode == 0
    return run(folder, *arguments, **results)


def test_the_command_runs_with_the_overrides(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert "Sweep quickstart_cpu" in done.stdout


def test_a_bundle_is_unpacked_once(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert (folder / "bundle" / "log").read_text() == "installed\n"


def test_verl_finds_the_plug_ins_of_the_package_beside_the_bundle(
    folder: Path, done: subprocess.CompletedProcess[str]
) -> None:
    (metadata,) = (folder / "site").glob("verl_autotune-*.dist-info")
    assert "[verl.plugins]" in (metadata / "entry_points.txt").read_text()
    assert (folder / "site" / "autotune" / "verl_bridge" / "plugin.py").is_file()


def test_records_are_packed_without_tunes_own_files(
    folder: Path, records: str, done: subprocess.CompletedProcess[str]
) -> None:
    with tarfile.open(folder / "out" / "sweeps.tar.gz") as archive:
        names = archive.getnames()
    assert f"{records}/trials.jsonl" in names
    assert f"{records}/tune" not in names


def test_another_script_may_run_instead(folder: Path) -> None:
    said = run(folder, "bundle", str(QUICKSTART), "--help", SCRIPT="scripts/verify_aa.py")
    assert said.returncode == 0 and "--parallel" in said.stdout


def test_without_arguments_it_says_how_it_is_used(folder: Path) -> None:
    said = run(folder)
    assert said.returncode == 2
    assert "run_sweep.sh BUNDLE SWEEP.yaml" in said.stderr
    assert "RESULTS" in said.stderr and "set -euo" not in said.stderr
