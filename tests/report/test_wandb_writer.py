"""wandb's offline runs: written for real, and read back from their files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_maker import MICRO, SweepSpec, make_sweep
from wandb_reader import OfflineRun, read_runs

from autotune.claim import claim_line
from autotune.report.answer import answer
from autotune.report.page import HTML_FILE, write_report
from autotune.report.reading import SweepData, read_sweep
from autotune.report.wandb_writer import (
    WandbFolder,
    Writer,
    is_online,
    read_losses,
    sync,
    write_missing,
)
from autotune.settings import WandbConfig
from autotune.store import BEST_FILE

pytestmark = pytest.mark.timeout(600)

TOKEN = "0123456789abcdef0123456789abcdef01234567"
NUM_TRIALS = 3


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepData:
    """A sweep whose runs were written, with a key in the environment."""
    spec = SweepSpec(name="demo", num_trials=NUM_TRIALS, budget=NUM_TRIALS, seed=3)
    folder = make_sweep(tmp_path_factory.mktemp("sweeps"), spec).folder
    data = read_sweep(folder)
    write_report(folder / HTML_FILE, data, answer(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", TOKEN)
        assert write_missing(folder, with_report=True) == NUM_TRIALS + 1
    return data


@pytest.fixture(scope="module")
def runs(sweep: SweepData) -> list[OfflineRun]:
    return read_runs(sweep.folder)


def test_n_trials_give_n_runs_and_one_for_the_sweep(runs: list[OfflineRun]) -> None:
    assert [run.id.split("-", 2)[2] for run in runs] == [
        "report",
        "trial-0000",
        "trial-0001",
        "trial-0002",
    ]
    assert {run.group for run in runs} == {"demo"}
    assert {run.project for run in runs} == {"verl-autotune"}


def test_wandb_itself_finds_as_many_runs_to_send(sweep: SweepData) -> None:
    command = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(sweep.folder / "wandb")]
    done = subprocess.run(
        command, cwd=sweep.folder, capture_output=True, text=True, check=True
    )
    assert f"Would sync {NUM_TRIALS + 1} run(s)" in done.stdout + done.stderr


def test_a_trials_run_holds_its_knobs_steps_and_numbers(
    sweep: SweepData, runs: list[OfflineRun]
) -> None:
    run, record = runs[2], sweep.trials[1]
    assert run.job_type == "trial" and run.name == "trial 1" and run.exit_code == 0
    assert run.config[MICRO] == record.setting[MICRO]
    assert [entry["_step"] for entry in run.history] == [1, 2, 3, 4, 5, 6]
    assert [entry["timing_s/update_actor"] for entry in run.history] == [
        step.metrics["timing_s/update_actor"] for step in sweep.steps[1]
    ]
    assert run.summary["step_s"] == record.metrics["step_s"]
    assert run.summary["outcome"] == "feasible"


def test_the_sweeps_run_holds_the_answer_tables_and_artifacts(
    sweep: SweepData, runs: list[OfflineRun]
) -> None:
    run, found = runs[0], answer(sweep)
    assert run.job_type == "report" and found.winner is not None
    assert run.summary["winner"] == found.winner.number
    # A table, a page or a chart is logged as a mapping: the last part of the key is its field.
    logged = {key.rpartition("/")[0] for entry in run.history for key in entry}
    assert {"trials", "constraints", "report", "chart/limits", "chart/phases"} <= logged
    assert run.artifacts["demo-best"] == ("verl-config", ("best", "latest"))
    assert run.artifacts["demo-report"] == ("report", ("best", "latest"))


def test_a_file_of_an_earlier_winner_is_no_artifact(tmp_path: Path) -> None:
    spec = SweepSpec(name="demo", num_trials=NUM_TRIALS, budget=NUM_TRIALS, seed=3)
    folder = make_sweep(tmp_path, spec).folder
    line = claim_line(sweep="demo", trial=2, objective="step_s", proven=True, gain_ratio=None)
    (folder / BEST_FILE).write_text(f"{line}\n")
    assert write_missing(folder, with_report=True) == NUM_TRIALS + 1
    assert "demo-best" not in read_runs(folder)[0].artifacts


def test_no_file_holds_the_key(sweep: SweepData, runs: list[OfflineRun]) -> None:
    files = [path for path in sweep.folder.rglob("*") if path.is_file()]
    assert len(files) > 10 and runs
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


def test_what_is_written_is_not_written_again(sweep: SweepData) -> None:
    assert write_missing(sweep.folder, with_report=True) == 0


def test_an_interrupted_run_is_written_again_in_its_place(
    sweep: SweepData, runs: list[OfflineRun]
) -> None:
    path = sweep.folder / "wandb" / "written.json"
    state = json.loads(path.read_text())
    del state["runs"]["trial-0002"]
    path.write_text(json.dumps(state))
    assert write_missing(sweep.folder, with_report=False) == 1
    assert [run.id for run in read_runs(sweep.folder)] == [run.id for run in runs]


def test_each_round_writes_the_trials_that_ended_since_the_last(tmp_path: Path) -> None:
    spec = SweepSpec(name="followed", num_trials=2, budget=2)
    folder = make_sweep(tmp_path, spec).folder
    records = folder / "trials.jsonl"
    first, second = records.read_text().splitlines(keepends=True)
    writer = Writer(folder, WandbConfig(), online=False)
    counts = []
    # The middle of the third is a record that is being written.
    for content in (first, first, first + second[:20], first + second):
        records.write_text(content)
        writer.round()
        counts.append(len(read_runs(folder)))
    assert counts == [1, 1, 1, 2]


def test_runs_that_no_server_confirmed_are_unsent(sweep: SweepData) -> None:
    unsent = WandbFolder(sweep.folder).unsent()
    assert len(unsent) == NUM_TRIALS + 1 and all(path.is_dir() for path in unsent)


def test_a_server_that_is_away_is_said_and_loses_nothing(
    sweep: SweepData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB__GRAPHQL_RETRY_MAX", "1")
    problem = sync(sweep.folder, WandbConfig(), timeout_s=60)
    assert problem.startswith("4 of 4 runs were not sent: runupserter: failed to init run")
    assert "connection refused" in problem and TOKEN not in problem
    assert len(WandbFolder(sweep.folder).unsent()) == NUM_TRIALS + 1


def test_a_mark_counts_only_when_its_sync_was_seen_to_its_end(sweep: SweepData) -> None:
    first, *others = WandbFolder(sweep.folder).begin_sending()
    mark = first / f"run-{first.name.split('-', 3)[3]}.wandb.synced"
    mark.touch()
    # As after a sync that was killed.
    assert WandbFolder(sweep.folder).unsent() == [first, *others]
    runs = WandbFolder(sweep.folder)
    assert runs.begin_sending() == [first, *others] and not mark.exists()
    mark.touch()
    assert runs.end_sending(refused={first.name}) == [first, *others]
    assert runs.end_sending(refused=set()) == others
    mark.unlink()


def test_only_errors_by_which_a_run_loses_something_are_losses(tmp_path: Path) -> None:
    lines: list[dict[str, str]] = [
        {"level": "INFO", "msg": "sender: failed to do without", "sync_path": "/a/run-0/x.wandb"},
        {"level": "ERROR", "msg": "api: HTTP error", "sync_path": "/a/run-1/x.wandb"},
        {"level": "ERROR", "msg": "featurechecker: no features", "sync_path": "/a/run-2/x.wandb"},
        {"level": "ERROR+4", "msg": "filestream: fatal error:\n 404", "sync_path": "/a/run-3/x"},
        {
            "level": "ERROR",
            "msg": "runupserter: failed to init run",
            "sync_path": "/a/run-4/x.wandb",
            "error": "401 of https://server/upload?signature=0123 twice",
        },
    ]
    log = "\n".join(map(json.dumps, lines)) + '\n{"level":"ERROR","msg":"filestr'
    path = tmp_path / "wandb" / "logs" / "debug-sync.20260301.080000.log"
    path.parent.mkdir(parents=True)
    path.write_text(log)
    assert read_losses(tmp_path) == {
        "run-3": "filestream: fatal error: 404",
        "run-4": "runupserter: failed to init run 401 of https://server/upload twice",
    }


@pytest.mark.parametrize(
    ("mode", "environment", "expected"),
    [
        ("auto", {}, False),
        ("auto", {"WANDB_API_KEY": TOKEN}, True),
        ("auto", {"WANDB_API_KEY": TOKEN, "WANDB_MODE": "offline"}, False),
        ("auto", {"WANDB_MODE": "online"}, True),
        ("online", {"WANDB_MODE": "offline"}, True),
        ("offline", {"WANDB_API_KEY": TOKEN}, False),
    ],
)
def test_runs_are_sent_where_there_is_a_key_or_a_word(
    mode: str, environment: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    nothing = {"NETRC": str(tmp_path / "no_netrc")}
    assert is_online(WandbConfig(mode=mode), nothing | environment) is expected


def test_a_key_in_netrc_counts_for_its_own_server_only(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine wandb.company.com login user password {TOKEN}\n")
    os.chmod(netrc, 0o600)
    environment = {"NETRC": str(netrc)}
    assert not is_online(WandbConfig(), environment)
    own = environment | {"WANDB_BASE_URL": "https://wandb.company.com"}
    assert is_online(WandbConfig(), own)
