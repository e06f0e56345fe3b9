"""Offline runs really sent: wandb's own `sync`, against a small server that speaks its protocol."""

import argparse
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sweep_maker import MICRO, SweepSpec, make_sweep
from wandb_server import DROP, ENTITY, HANG, HEALTHY, WandbServer

from autotune.commands import wandb_sync
from autotune.errors import ExitCode
from autotune.report.answer import answer
from autotune.report.page import HTML_FILE, write_report
from autotune.report.reading import SweepData, read_sweep
from autotune.report.wandb_writer import WandbFolder, Writer, sync, write_missing
from autotune.settings import WandbConfig
from autotune.store import BEST_FILE

pytestmark = pytest.mark.timeout(600)

TOKEN = "0123456789abcdef0123456789abcdef01234567"
NUM_TRIALS = 3
NAMES = ["report", "trial-0000", "trial-0001", "trial-0002"]
CONFIG = WandbConfig()
PATIENT_S = 300.0


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[pytest.MonkeyPatch]:
    """A key, and as few and short retries as wandb can be told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", TOKEN)
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        for kind in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER"):
            for name in ("RETRY_MAX", "RETRY_WAIT_MIN_SECONDS", "RETRY_WAIT_MAX_SECONDS"):
                patch.setenv(f"WANDB__{kind}_{name}", "1")
        yield patch


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> SweepData:
    """A sweep of three trials whose runs are written, and none of them sent."""
    spec = SweepSpec(name="demo", num_trials=NUM_TRIALS, budget=NUM_TRIALS, seed=3)
    folder = make_sweep(tmp_path_factory.mktemp("sweeps"), spec).folder
    data = read_sweep(folder)
    write_report(folder / HTML_FILE, data, answer(data))
    assert write_missing(folder, with_report=True) == NUM_TRIALS + 1
    (folder / BEST_FILE).write_text("# exported again, after the runs were written\n")
    return data


@pytest.fixture(scope="module")
def arguments() -> set[str]:
    """The command-line arguments of all processes that sent the runs."""
    return set()


@pytest.fixture(scope="module")
def sent(
    written: SweepData, client: pytest.MonkeyPatch, arguments: set[str]
) -> Iterator[WandbServer]:
    """A server that the sweep's runs were sent to."""
    with WandbServer() as server, ThreadPoolExecutor() as pool:
        client.setenv("WANDB_BASE_URL", server.url)
        syncing = pool.submit(sync, written.folder, CONFIG, timeout_s=PATIENT_S)
        while not syncing.done():
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    arguments.update(process.cmdline())
            time.sleep(0.05)
        assert syncing.result() == ""
        yield server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """A server that has been sent nothing yet."""
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        yield server
    assert server.problems == []


@pytest.fixture
def folder(written: SweepData, tmp_path: Path) -> Path:
    """A copy of the sweep, none of whose runs is sent."""
    copy = tmp_path / "demo"
    shutil.copytree(written.folder, copy, ignore=shutil.ignore_patterns("*.synced"))
    assert unsent(copy) == NAMES
    return copy


def key_of(run_id: str) -> str:
    """at-0123456789-trial-0001 -> trial-0001"""
    return run_id.split("-", 2)[2]


def names_of(server: WandbServer) -> list[str]:
    return sorted(key_of(run_id) for run_id in server.runs)


def unsent(folder: Path) -> list[str]:
    return sorted(path.name.split("-", 5)[5] for path in WandbFolder(folder).unsent())


def steps_of(server: WandbServer, name: str) -> list[int]:
    """The steps of a run's history. wandb appends to what an earlier sync had sent, so that a row
    may be there twice; its step says which it is."""
    [run] = [run for run in server.runs.values() if key_of(run.id) == name]
    return sorted({row["_step"] for row in run.history})


def assert_complete(server: WandbServer) -> None:
    """All runs are there once and finished, with their history, files and artifacts."""
    assert names_of(server) == NAMES
    assert all(run.exit_code == 0 and run.summary for run in server.runs.values())
    assert all("config.yaml" in run.files for run in server.runs.values())
    assert [steps_of(server, name) for name in NAMES[1:]] == [[1, 2, 3, 4, 5, 6]] * NUM_TRIALS
    artifacts = {artifact.name: artifact for artifact in server.artifacts}
    assert {"demo-best", "demo-report"} < artifacts.keys()
    assert len(artifacts) == len(server.artifacts)
    assert all(artifact.committed and artifact.files for artifact in server.artifacts)


def test_the_server_holds_each_trial_and_the_report_in_one_group(sent: WandbServer) -> None:
    assert sent.problems == []
    assert_complete(sent)
    runs = sent.runs.values()
    assert {(run.group, run.project) for run in runs} == {("demo", "verl-autotune")}
    kinds = sorted((key_of(run.id), run.job_type) for run in runs)
    assert kinds == [(name, name.split("-")[0]) for name in NAMES]


def test_each_trial_has_its_knobs_steps_and_numbers(written: SweepData, sent: WandbServer) -> None:
    runs = {key_of(run.id): run for run in sent.runs.values()}
    for record in written.trials:
        run = runs[f"trial-{record.number:04d}"]
        assert {knob: run.config[knob] for knob in record.setting} == record.setting
        assert [row["_step"] for row in run.history] == [1, 2, 3, 4, 5, 6]
        assert [row["timing_s/update_actor"] for row in run.history] == [
            step.metrics["timing_s/update_actor"] for step in written.steps[record.number]
        ]
        assert run.summary["step_s"] == record.metrics["step_s"]
        assert run.tags == (run.summary["outcome"],)
    assert len({runs[name].config[MICRO] for name in NAMES[1:]}) > 1


def test_the_reports_artifacts_are_what_they_were_when_written(
    written: SweepData, sent: WandbServer
) -> None:
    artifacts = {artifact.name: artifact for artifact in sent.artifacts}
    best, report = artifacts["demo-best"], artifacts["demo-report"]
    assert {key_of(best.run_id), key_of(report.run_id)} == {"report"}
    assert (best.type, report.type) == ("verl-config", "report")
    assert best.aliases == report.aliases == {"best", "latest"}
    assert best.files.keys() == {BEST_FILE}
    assert best.files[BEST_FILE].endswith(b"defaults: [ppo_trainer, _self_]\n")
    assert report.files == {HTML_FILE: (written.folder / HTML_FILE).read_bytes()}
    assert best.manifest["contents"].keys() == {BEST_FILE}


def test_a_second_sync_sends_nothing(written: SweepData, sent: WandbServer) -> None:
    num_requests = len(sent.requests)
    assert unsent(written.folder) == []
    assert sync(written.folder, CONFIG, timeout_s=PATIENT_S) == ""
    assert len(sent.requests) == num_requests


def test_the_key_reaches_the_server_and_neither_file_nor_argument(
    written: SweepData, sent: WandbServer, arguments: set[str]
) -> None:
    assert sent.logins == {f"api:{TOKEN}"}
    assert "sync" in arguments and not any(TOKEN in argument for argument in arguments)
    files = [path for path in written.folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".synced" for path in files)
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


def from_the(number: int, beginning: str, fault: str) -> Callable[[str], str]:
    """Fail the requests of a name from the given one on."""
    count = 0

    def answer(name: str) -> str:
        nonlocal count
        count += name.startswith(beginning)
        return fault if name.startswith(beginning) and count >= number else HEALTHY

    return answer


@pytest.mark.parametrize(
    ("beginning", "number", "fault", "num_left", "cause"),
    [
        # Each run sends its stream in two requests or more.
        ("file_stream", 7, "500", None, "HTTP 500: as asked"),
        ("upload artifact", 1, DROP, 1, "failed to log artifact"),
        ("upload run", 1, "403", 4, "403 Forbidden"),
        ("UpsertBucket", 1, "401", 4, "error 401"),
    ],
    ids=["500 in the middle", "dropped artifacts", "no files", "a wrong key"],
)
def test_what_a_server_refuses_is_named_and_sent_by_the_next_sync(
    beginning: str,
    number: int,
    fault: str,
    num_left: int | None,
    cause: str,
    server: WandbServer,
    folder: Path,
) -> None:
    server.fault = from_the(number, beginning, fault)
    problem = sync(folder, CONFIG, timeout_s=PATIENT_S)
    left = unsent(folder)
    assert left and num_left in (None, len(left))
    assert f"{len(left)} of 4 runs were not sent: " in problem and cause in problem
    assert set(NAMES) - set(left) <= set(names_of(server))

    server.fault = lambda name: HEALTHY
    assert sync(folder, CONFIG, timeout_s=PATIENT_S) == ""
    assert unsent(folder) == []
    assert_complete(server)


def test_a_server_that_hangs_holds_a_sync_no_longer_than_its_timeout(
    server: WandbServer, folder: Path
) -> None:
    server.fault = lambda name: HANG if name == "file_stream" else HEALTHY
    begin = time.monotonic()
    assert "did not take them within 4 s" in sync(folder, CONFIG, timeout_s=4)
    assert time.monotonic() - begin < 12
    assert unsent(folder) == NAMES


def test_an_online_sweeps_trial_is_sent_while_the_sweep_runs(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_sweep(tmp_path, SweepSpec(name="running", num_trials=2, budget=2)).folder
    records = folder / "trials.jsonl"
    first, second = records.read_text().splitlines(keepends=True)
    records.write_text(first)
    monkeypatch.chdir(tmp_path)
    writer = Writer(Path("running"), WandbConfig(entity=ENTITY), online=True)
    writer.round()
    [run] = server.runs.values()
    assert (key_of(run.id), run.exit_code, len(run.history)) == ("trial-0000", 0, 6)

    records.write_text(first + second)
    writer.last_round()
    assert names_of(server) == ["report", "trial-0000", "trial-0001"]
    assert len(run.history) == 6


def test_the_command_sends_a_sweep_that_was_moved(
    server: WandbServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without a feasible trial: the answer of another sweep names the sweep's folder.
    limits = (("peak_memory_ratio", 0.01),)
    spec = SweepSpec(name="moved", num_trials=1, budget=1, limits=limits)
    old = make_sweep(tmp_path / "old", spec).folder
    (old / HTML_FILE).write_text("<p>no feasible trial</p>")
    assert write_missing(old, with_report=True) == 2
    folder = old.rename(tmp_path / "moved")
    options = argparse.Namespace(folder=str(folder), offline=False)
    server.fault = lambda name: "403"
    assert wandb_sync.run(options) is ExitCode.FAILED
    assert "2 of 2 runs were not sent: " in capsys.readouterr().err
    server.fault = lambda name: HEALTHY
    assert wandb_sync.run(options) is ExitCode.DONE
    assert names_of(server) == ["report", "trial-0000"]
    [report] = [artifact for artifact in server.artifacts if artifact.name == "moved-report"]
    assert report.committed and report.files == {HTML_FILE: b"<p>no feasible trial</p>"}
