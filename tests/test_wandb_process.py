"""The process beside a sweep: it follows the records, and never holds the sweep up."""

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from sweep_maker import SweepSpec, make_sweep

from autotune.settings import WandbConfig
from autotune.wandb_process import wandb_process

pytestmark = pytest.mark.timeout(600)

PATIENT_S = 400.0


def runs_of(folder: Path) -> list[str]:
    return sorted(path.name.split("-")[-1] for path in folder.glob("wandb/offline-run-*"))


def test_a_sweep_ends_with_all_its_runs_written(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "demo"
    with wandb_process(folder, WandbConfig(mode="offline"), said.append, end_s=PATIENT_S):
        make_sweep(tmp_path, SweepSpec(name="demo", num_trials=2, budget=2))
    assert runs_of(folder) == ["0000", "0001", "report"] and said == []


def test_a_server_that_never_answers_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        folder = make_sweep(tmp_path, SweepSpec(name="demo", num_trials=1, budget=1)).folder
        said: list[str] = []
        with wandb_process(folder, WandbConfig(mode="online"), said.append, end_s=0.5):
            pass
    [line] = said
    assert f"`autotune wandb-sync {folder}` goes on" in line
    children = psutil.Process().children(recursive=True)
    assert [child for child in children if "wandb_writer" in " ".join(child.cmdline())] == []


def test_a_disabled_sweep_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().children()
    with wandb_process(tmp_path, WandbConfig(mode="disabled"), print):
        assert psutil.Process().children() == before
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with wandb_process(tmp_path, WandbConfig(), print):
        assert psutil.Process().children() == before
    assert list(tmp_path.iterdir()) == []


def test_the_process_ends_by_itself_when_its_driver_is_killed(tmp_path: Path) -> None:
    folder = make_sweep(tmp_path, SweepSpec(name="demo", num_trials=1, budget=1)).folder
    program = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        import psutil
        from autotune.settings import WandbConfig
        from autotune.wandb_process import wandb_process
        with wandb_process(Path(sys.argv[1]), WandbConfig(mode="offline"), print):
            print(psutil.Process().children()[0].pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    pid = int(done.stdout)
    if psutil.pid_exists(pid):
        psutil.wait_procs([psutil.Process(pid)], timeout=PATIENT_S)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert runs_of(folder) == ["0000", "report"]
