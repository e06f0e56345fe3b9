"""Verifications of two equal settings: who runs which one, and what is made of them."""

import dataclasses
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_config import SweepFile
from verify_cases import record

from autotune.config import Sweep
from autotune.errors import BadInputError
from autotune.store import VERIFICATION_FILE
from autotune.verification import VerifyJob

SCRIPT = Path(__file__).parents[2] / "scripts" / "verify_aa.py"
HOLDER = """
import runpy, sys
from pathlib import Path
script = runpy.run_path(sys.argv[1])
for store in script["claimed"](Path(sys.argv[2]), 3):
    print(store.folder.name, flush=True)
    sys.stdin.readline()
    store.write("verification.json", "{}")
"""


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, script: dict[str, Any]) -> Sweep:
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        file = SweepFile(folder)
        file.content["verify"] = {"top_k": 1, "max_jobs": 6}
        found = script["without_limits"](file.load(), 4)
    assert isinstance(found, Sweep)
    return found


def play(script: dict[str, Any], sweep: Sweep, out: Path, number: int, ratio: float) -> None:
    """Run one verification whose second setting is so many times faster."""
    store, itself = script["store_of_run"](out, number), script["itself"](sweep)
    with store.locked():
        for position, trial in enumerate([0, 1, 1, 0, 0, 1]):
            value = (100.0 + position) * (ratio if trial else 1.0)
            store.append_verify_job(
                VerifyJob(
                    plan=script["plan_name"](sweep, [itself], script["ATTEMPT"]),
                    block=position // 2,
                    trial=trial,
                    record=record(position, value),
                )
            )
        begun = script["Verifier"](sweep, store, [itself], console=None, attempt=script["ATTEMPT"])
        assert begun.run() is not None


def test_what_only_limits_need_is_not_measured(sweep: Sweep) -> None:
    trial = sweep.config.trial
    assert (trial.profiled_steps, trial.consistency_probe) == (0, False)
    assert sweep.config.constraints == []
    assert sweep.config.search.max_concurrent == 4


def test_processes_that_share_a_folder_never_take_the_same_run(
    script: dict[str, Any], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", HOLDER, str(SCRIPT), str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "run_01\n"
        taken = script["claimed"](tmp_path, 3)
        assert next(taken).folder.name == "run_02"
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "run_03\n"
        # The first is over, the third is held.
        assert list(taken) == []
        other.kill()
    assert [store.folder.name for store in script["claimed"](tmp_path, 3)] == ["run_02", "run_03"]
    assert script["is_over"](tmp_path, 1)


def test_all_runs_are_summed_up_from_their_folders(
    script: dict[str, Any], sweep: Sweep, tmp_path: Path
) -> None:
    play(script, sweep, tmp_path, 1, 1.0)
    play(script, sweep, tmp_path, 3, 2.0)
    found = script["write_summary"](tmp_path, sweep, 4)
    assert json.loads((tmp_path / "runs.json").read_text()) == found
    assert (found["num_runs"], found["num_finished"], found["num_proven"]) == (4, 2, 1)
    assert found["num_without_ratio"] == 0
    first, second = found["runs"]
    assert (first["run"], first["decision"], first["num_jobs"]) == (1, "not_proven", 6)
    assert first["interval"][0] < 1 < first["interval"][1]
    assert first["seconds"] == 360.0
    assert (second["run"], second["decision"]) == (3, "proven")
    assert second["gain_ratio"] == pytest.approx(2.0, rel=0.02)


def test_runs_of_another_protocol_are_not_mixed_in(
    script: dict[str, Any], sweep: Sweep, tmp_path: Path
) -> None:
    script["write_summary"](tmp_path, sweep, 4)
    trial = dataclasses.replace(sweep.config.trial, measured_steps=9)
    other = dataclasses.replace(sweep, config=dataclasses.replace(sweep.config, trial=trial))
    with pytest.raises(BadInputError, match=r"another base job .* another --out"):
        script["write_summary"](tmp_path, other, 4)
    assert not (tmp_path / "run_01" / VERIFICATION_FILE).exists()
