"""Jobs that ``stand_in_job.py`` plays, without a trial actor around them."""

import json
import sys
from pathlib import Path
from typing import Any

from autotune.verl_bridge.launcher import VerlProcess
from autotune.verl_bridge.process import JobRequest

_SCRIPT = Path(__file__).with_name("stand_in_job.py")

REQUEST = JobRequest(
    config_name="no_hunter22",
    overrides=[],
    device="cpu",
    profiled_steps=[],
    probes=False,
    start="cold",
    keeps_engines=False,
    collective_timeout_s=60,
    keeps_first=False,
    rollout_folder=None,
)


def stand_in(folder: Path, run: list[dict[str, Any]], *, job: str, log: Path) -> VerlProcess:
    """Start a process whose first run has these events."""
    script = folder / "script.json"
    script.write_text(json.dumps({"processes": [[run]]}))
    return VerlProcess(
        address="none",
        placement_group_id="00",
        job=job,
        log_path=log,
        command=(sys.executable, str(_SCRIPT), str(script)),
    )
