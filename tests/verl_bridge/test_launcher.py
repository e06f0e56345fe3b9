"""The trial's child process from outside: a real one, given a job that it must refuse."""

import dataclasses
from pathlib import Path

import pytest
from stand_in import REQUEST, stand_in

from autotune.verl_bridge.launcher import VerlProcess
from autotune.verl_bridge.process import FAILED, PHASE, JobRequest


def test_the_log_holds_no_secret_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter22")
    log = tmp_path / "logs" / "trial_0000.log"
    process = VerlProcess(
        address="none", placement_group_id="00", job="none/00", log_path=log
    )
    process.submit(REQUEST)
    event = process.next_event(60)
    while event is not None and event["kind"] == PHASE:
        event = process.next_event(60)
    while process.next_event(60) is None:
        pass
    process.kill()
    assert event is not None and event["kind"] == FAILED
    assert "no_<WANDB_API_KEY removed>" in log.read_text()
    assert "hunter22" not in log.read_text()


def test_a_request_that_the_process_cannot_read_ends_it_at_once(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Newer(JobRequest):
        unknown: bool = True

    process = VerlProcess(
        address="none", placement_group_id="00", job="none/00", log_path=tmp_path / "log"
    )
    process.submit(Newer(**dataclasses.asdict(REQUEST)))
    event = process.next_event(60)
    process.kill()
    assert event is not None and event["kind"] == FAILED
    assert "unknown" in event["causes"][0]


def test_a_job_whose_log_does_not_fit_on_the_disk_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # More than a pipe holds, in lines that the device refuses.
    line = {"kind": "print", "text": "x" * 1000}
    run = [line] * 200 + [{"kind": "done"}]
    process = stand_in(tmp_path, run, job="none/00", log=Path("/dev/full"))
    process.submit(REQUEST)
    event = process.next_event(60)
    process.kill()
    assert event == {"kind": "done"}
    assert caplog.text.count("/dev/full has gaps: [Errno 28] No space left on device") == 1
