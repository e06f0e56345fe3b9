"""A job that says nothing more because one of its nodes is gone: verl waits for ever."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_in import REQUEST, stand_in

from autotune.job_run import JobEnded, JobRun
from autotune.objective import TrialState
from autotune.settings import TrialConfig

PROTOCOL = TrialConfig(
    warmup_steps=0,
    measured_steps=2,
    profiled_steps=0,
    seed=1,
    startup_timeout_s=30,
    step_timeout_s=4,
)


class Nodes:
    """This machine and one that the cluster may have given up."""

    def __init__(self, dead: list[str]) -> None:
        self._dead = dead

    def ask(
        self, function: Callable[..., Any], *arguments: Any, timeout_s: float
    ) -> dict[str, Any]:
        return {"this": function(*arguments)}

    def lost(self, answers: dict[str, Any]) -> list[str]:
        return self._dead

    def dead(self, *, anywhere: bool = False) -> list[str]:
        return self._dead


@pytest.mark.parametrize(
    ("dead", "state", "cause"),
    [
        (["10.0.0.7"], TrialState.INFRASTRUCTURE, "in phase gen: lost node 10.0.0.7"),
        ([], TrialState.HANG, "the job finished no step for 4 s; it has been in phase gen for 4 s"),
    ],
)
def test_silence_on_a_dead_node_is_nobodys_setting(
    tmp_path: Path, dead: list[str], state: TrialState, cause: str
) -> None:
    run: list[dict[str, Any]] = [
        {"kind": "ready"},
        {"kind": "phase", "name": "gen"},
        {"kind": "sleep", "seconds": 60},
    ]
    log = tmp_path / "trial_0000.log"
    process = stand_in(tmp_path, run, job="silent/00", log=log)
    try:
        job_run = JobRun(
            process,
            REQUEST,
            protocol=PROTOCOL,
            number=0,
            attempt=0,
            nodes=Nodes(dead),
            job="silent/00",
            log_path=log,
        )
        with pytest.raises(JobEnded) as ended:
            job_run.next_step()
    finally:
        process.kill()
    assert ended.value.verdict.state is state
    assert ended.value.verdict.cause.startswith(cause)
    assert "all stacks" in log.read_text()
