"""The trial's child process from outside: a real one, given a job that it must refuse."""

import json
import sys
from pathlib import Path

import pytest

from autotune.verl_bridge.launcher import VerlProcess
from autotune.verl_bridge.process import FAILED, PHASE, JobRequest

STAND_IN = Path(__file__).parents[1] / "stand_in_job.py"
REQUEST = JobRequest(
    config_name="no_hunter22",
    overrides=[],
    device="cpu",
    profiled_steps=[],
    probes=False,
    start="cold",
    collective_timeout_s=60,
    keeps_first=False,
    rollout_folder=None,
)


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


def test_a_job_whose_log_does_not_fit_on_the_disk_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "script.json"
    # More than a pipe holds, in lines that the device refuses.
    line = {"kind": "print", "text": "x" * 1000}
    script.write_text(json.dumps({"processes": [[[line] * 200 + [{"kind": "done"}]]]}))
    process = VerlProcess(
        address="none",
        placement_group_id="00",
        job="none/00",
        log_path=Path("/dev/full"),
        command=(sys.executable, str(STAND_IN), str(script)),
    )
    process.submit(REQUEST)
    event = process.next_event(60)
    process.kill()
    assert event == {"kind": "done"}
    assert caplog.text.count("/dev/full has gaps: [Errno 28] No space left on device") == 1
