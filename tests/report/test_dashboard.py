"""optuna-dashboard shows a sweep's study as it is: its own server, asked over HTTP."""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.landscape import read_landscape
from autotune.objective import TrialRecord
from autotune.replay import run_directly
from autotune.settings import SearchConfig
from autotune.store import STUDY_FILE, SweepStore

pytestmark = pytest.mark.timeout(600)

LANDSCAPE = Path(__file__).parents[2] / "landscapes" / "2xh200_ppo_microbatch.json"
DASHBOARD = shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent))
START_S = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    settings = SearchConfig(
        sampler="random", num_trials=4, max_concurrent=1, seed=1, num_startup_trials=4
    )
    run_directly(read_landscape(LANDSCAPE), settings, seed=0, folder=folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    if DASHBOARD is None:
        pytest.skip("optuna-dashboard is not installed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    # The sweep's own writer may hold its lock meanwhile.
    with SweepStore(folder).locked():
        process = subprocess.Popen(
            [DASHBOARD, str(folder / STUDY_FILE), "--port", str(port), "--server", "wsgiref"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield f"http://127.0.0.1:{port}/api/studies"
        finally:
            process.kill()
            process.wait()


def ask(url: str) -> Any:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def test_the_dashboard_lists_the_study_and_shows_its_trials(server: str, folder: Path) -> None:
    [study] = ask(server)["study_summaries"]
    assert study["study_name"] == "sweep"
    detail = ask(f"{server}/{study['study_id']}")
    records: list[TrialRecord] = SweepStore(folder).read_trials()
    shown = {trial["number"]: trial for trial in detail["trials"]}
    assert sorted(shown) == [record.number for record in records]
    assert {trial["state"] for trial in shown.values()} == {"Complete"}
    for record in records:
        assert shown[record.number]["values"] == [record.metrics["throughput_tokens_per_s_per_gpu"]]


def test_reading_leaves_the_folder_as_it_was(server: str, folder: Path) -> None:
    before = (folder / STUDY_FILE).read_bytes()
    ask(f"{server}/0")
    assert (folder / STUDY_FILE).read_bytes() == before
    assert list(folder.glob(f"{STUDY_FILE}.*")) == []
