"""The whole path on this machine: real Ray Tune, real Optuna, real verl on gloo ranks, the real
command line.

One sweep of three trials serves most tests; each test of a failure starts its own.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from critic_case import with_critic

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "search_spaces" / "quickstart_cpu.yaml"
SEED = 1
GONE_S = 30
"""How long after a trial's end its processes may live: workers notice by themselves that the Ray of
a killed driver is gone."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def sweep_command(folder: Path, name: str, *overrides: str, file: Path = QUICKSTART) -> list[str]:
    return [
        sys.executable,
        "-m",
        "autotune.cli",
        "sweep",
        str(file),
        f"name={name}",
        f"output_dir={folder}",
        # Its jobs would take longer than all others of these tests together.
        "verify.enabled=false",
        *overrides,
    ]


@pytest.fixture(scope="module")
def assets() -> Path:
    subprocess.run(
        [sys.executable, "scripts/make_demo_assets.py", "--out", "demo/tiny"], cwd=ROOT, check=True
    )
    return ROOT / "demo"


@pytest.fixture(scope="module")
def folder(assets: Path) -> Iterator[Path]:
    # output_dir is kept relative: paths of a sweep file may not leave the current folder.
    path = Path("sweeps") / f"test_{os.getpid()}"
    yield path
    subprocess.run(["rm", "-rf", str(ROOT / path)], check=True)


@pytest.fixture(scope="module")
def clear_winner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart with a baseline that is slow beyond all noise, and room for what other load
    on this machine makes of its communication."""
    content = yaml.safe_load(QUICKSTART.read_text())
    content["base"]["overrides"] = [
        re.sub(r"(micro_batch_size_per_gpu)=2$", r"\1=1", one)
        for one in content["base"]["overrides"]
    ]
    for constraint in content["constraints"]:
        if constraint["metric"] == "exposed_comm_ratio":
            constraint["max"] = 0.99
    content["search"]["first"] = [
        {"ppo_micro_batch_size_per_gpu": 16, "log_prob_micro_batch_size_per_gpu": 16}
    ]
    file = tmp_path_factory.mktemp("clear_winner") / "sweep.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture(scope="module")
def of_three(folder: Path, clear_winner: Path) -> list[str]:
    return sweep_command(
        folder, "e2e", "search.num_trials=3", "trial.measured_steps=2", file=clear_winner
    )


@pytest.fixture(scope="module")
def finished(folder: Path, of_three: list[str]) -> Path:
    done = subprocess.run(of_three, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Not verified" in done.stdout
    sweep = ROOT / folder / "e2e"
    export = [sys.executable, "-m", "autotune.cli", "export", str(sweep), "--allow-unproven"]
    subprocess.run(export, cwd=ROOT, check=True, timeout=300)
    return sweep


def records(sweep: Path, name: str = "trials.jsonl") -> list[dict[str, Any]]:
    path = sweep / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_baseline_comes_first_and_every_trial_is_kept(finished: Path) -> None:
    trials = records(finished)
    assert [trial["number"] for trial in trials] == [0, 1, 2]
    assert trials[0]["overrides"] == []
    assert all(trial["state"] == "complete" for trial in trials)


def test_every_step_is_kept_with_its_kind(finished: Path) -> None:
    kinds = [step["kind"] for step in records(finished, "steps.jsonl") if step["number"] == 1]
    assert kinds == ["warmup", "measured", "measured", "profiled"]


def test_constraints_are_real_numbers(finished: Path) -> None:
    for trial in records(finished):
        assert 0 <= trial["metrics"]["kl_std"] < 1e-4
        assert 0 < trial["metrics"]["peak_memory_ratio"] < 1
        assert 0 <= trial["metrics"]["exposed_comm_ratio"] <= 1


def test_the_policy_leaves_the_reference_with_its_first_update(finished: Path) -> None:
    kl = [
        step["metrics"]["actor/kl_loss"]
        for step in records(finished, "steps.jsonl")
        if step["number"] == 0
    ]
    assert kl[0] == pytest.approx(0.0, abs=1e-9)
    assert all(value > 1e-7 for value in kl[1:])


def test_trials_after_the_first_start_in_the_live_job(finished: Path) -> None:
    startup_s = [trial["metrics"]["startup_s"] for trial in records(finished)]
    assert len(list((finished / "logs").glob("trial_*.log"))) == 1
    starts = [trial["start"] for trial in records(finished)]
    assert starts[0] == "cold" and "cold" not in starts[1:]
    assert max(startup_s[1:]) < startup_s[0]


def run_best(finished: Path, steps: int) -> str:
    # Plain verl joins a Ray that runs on this machine, if it finds one in Ray's folder.
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp") as ray_folder:
        done = run_plain_verl(finished, steps, ray_folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def run_plain_verl(
    finished: Path, steps: int, ray_folder: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "verl.trainer.main_ppo"),
            *("--config-path", str(finished), "--config-name", "best"),
            f"trainer.total_training_steps={steps}",
            f"data.seed={SEED}",
            f"actor_rollout_ref.actor.data_loader_seed={SEED}",
            f"actor_rollout_ref.rollout.seed={SEED}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_TMPDIR": ray_folder},
    )


def test_plain_verl_runs_best_yaml_and_computes_what_the_trial_computed(finished: Path) -> None:
    output = run_best(finished, steps=2)
    match = re.search(r"sweep 'e2e', trial (\d+)\.", (finished / "best.yaml").read_text())
    assert match is not None
    steps = {
        step["step"]: step["metrics"]
        for step in records(finished, "steps.jsonl")
        if step["number"] == int(match.group(1))
    }
    for number in (1, 2):
        line = next(line for line in output.splitlines() if f"step:{number} -" in line)
        # The loss is what is left of terms of size 1, whose fp32 rounding depends on the order in
        # which answers arrive: its error is held against those terms.
        for key, tolerance in (("actor/loss", 2e-7), ("actor/grad_norm", 1e-9)):
            found = re.search(rf"{key}:(\S+)", line)
            assert found is not None, line
            expected = pytest.approx(steps[number][key], rel=1e-6, abs=tolerance)
            assert float(found.group(1)) == expected, (number, key)


def test_best_yaml_holds_nothing_of_the_trial_protocol(finished: Path) -> None:
    best = yaml.safe_load((finished / "best.yaml").read_text())
    assert "total_training_steps" not in best["trainer"]
    assert "seed" not in best["data"]
    assert best["trainer"]["v1"]["trainer_mode"] == "cpu_sync"


def test_running_a_finished_sweep_again_runs_nothing(
    finished: Path, of_three: list[str]
) -> None:
    before = (finished / "trials.jsonl").read_bytes()
    done = subprocess.run(of_three, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (finished / "trials.jsonl").read_bytes() == before


def those_left(started: list[psutil.Process]) -> list[psutil.Process]:
    """Which of these processes are still there after the time that they have to go."""
    _, left = psutil.wait_procs(started, timeout=GONE_S)
    return left


def all_processes(running: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The driver, its Ray, and the verl job that runs there, actors included.

    A Ray node's own agents are not among them: they notice the death of their node by themselves.
    """
    driver = psutil.Process(running.pid)
    found = {}
    for process in (driver, *driver.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            found[process] = " ".join(process.cmdline())
    for part in ("raylet", "autotune.verl_bridge.process", "ray::WorkerDict"):
        assert any(part in command for command in found.values()), (part, found)
    agents = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
    return [process for process, command in found.items() if not command.startswith(agents)]


def wait_for_steps(sweep: Path, count: int, running: subprocess.Popen[bytes]) -> None:
    while len(records(sweep, "steps.jsonl")) < count:
        assert running.poll() is None, "the sweep ended early"
        time.sleep(0.5)


def test_ctrl_c_and_a_killed_driver_leave_nothing_behind_and_the_sweep_goes_on(
    folder: Path,
) -> None:
    overrides = ("search.num_trials=2", "trial.measured_steps=2", "trial.profiled_steps=0")
    command = sweep_command(folder, "killed", *overrides)
    sweep = ROOT / folder / "killed"

    # A terminal sends its signal to all processes of the command.
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for_steps(sweep, 4, running)
    started = all_processes(running)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and b"Traceback" not in errors, errors.decode()
    assert those_left(started) == []
    kept = records(sweep)
    assert [trial["number"] for trial in kept] == [0]

    num_steps = len(records(sweep, "steps.jsonl"))
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    wait_for_steps(sweep, num_steps + 1, running)
    started = all_processes(running)
    running.kill()
    running.wait()
    assert those_left(started) == []

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [trial["number"] for trial in records(sweep)] == [0, 1]
    assert records(sweep)[0] == kept[0]


def test_two_gae_trials_at_once_survive_the_kill_of_one_job(folder: Path, tmp_path: Path) -> None:
    # verl's default is a data loader with forked workers.
    text = QUICKSTART.read_text().replace("dataloader_num_workers=0", "dataloader_num_workers=1")
    content = with_critic(text)
    file = tmp_path / "gae.yaml"
    file.write_text(yaml.safe_dump(content))
    overrides = (
        "search.num_trials=2",
        "search.max_concurrent=2",
        "trial.measured_steps=2",
        "trial.profiled_steps=0",
    )
    sweep = ROOT / folder / "gae"
    running = subprocess.Popen(
        sweep_command(folder, "gae", *overrides, file=file), cwd=ROOT, stdout=subprocess.DEVNULL
    )
    wait_for_steps(sweep, 1, running)
    job = next(
        process
        for process in all_processes(running)
        if "autotune.verl_bridge.process" in " ".join(process.cmdline())
    )
    os.killpg(job.pid, signal.SIGKILL)
    assert running.wait(timeout=800) == 0
    trials = {trial["number"]: trial for trial in records(sweep)}
    assert {trial["state"] for trial in trials.values()} == {"complete"}
    assert sum(trial["retries"] for trial in trials.values()) == 1
    step = records(sweep, "steps.jsonl")[-1]["metrics"]
    assert step["critic/vf_loss"] > 0
    assert "actor/reward_kl_penalty" in step
