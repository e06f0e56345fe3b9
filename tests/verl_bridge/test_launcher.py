"""The trial's child process from outside: a real one, given a job that it must refuse."""

from pathlib import Path

import pytest

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
    process.submit(
        JobRequest(
            config_name="no_hunter22",
            overrides=[],
            device="cpu",
            profiled_steps=[],
            probes=False,
            start="cold",
            collective_timeout_s=60,
            keeps_first=False,
        )
    )
    event = process.next_event(60)
    while event is not None and event["kind"] == PHASE:
        event = process.next_event(60)
    while process.next_event(60) is None:
        pass
    process.kill()
    assert event is not None and event["kind"] == FAILED
    assert "no_<WANDB_API_KEY removed>" in log.read_text()
    assert "hunter22" not in log.read_text()
