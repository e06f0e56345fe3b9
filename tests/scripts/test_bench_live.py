"""The comparison of live and cold trials: which settings, and what is made of their numbers."""

import json
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
from objective_cases import record, step
from quickstart_case import ROOT, load_quickstart, quickstart_files

from autotune.config import Sweep
from autotune.in_order import SettingRun
from autotune.knobs import KNOBS, Transition
from autotune.objective import Start, StepKind


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "bench_live.py"))


@pytest.fixture(scope="module")
def sweep() -> Iterator[Sweep]:
    with quickstart_files():
        yield load_quickstart("knobs.rollout_max_num_seqs={choices: [4, 8, 16, 256]}")


def run(
    rank_seconds: float, startup_s: float, start: Start = Start.COLD, **parts: float
) -> SettingRun:
    metrics = {f"autotune/startup_{part}_s": value for part, value in parts.items()}
    first = step(1, StepKind.WARMUP, metrics={**metrics, "timing_s/step": 5.0})
    return SettingRun(
        record=record(0, start=start, metrics={"startup_s": startup_s, "step_s": 2.0}),
        steps=(first,),
        rank_seconds=rank_seconds,
    )


COLD = [run(120.0, 50.0, engines=8.0, model_load=3.0, fsdp=4.0, servers=10.0)] * 2
LIVE = [
    run(120.0, 50.0, engines=8.0, servers=10.0),
    run(10.0, 1.0, Start.HOT),
    run(
        20.0,
        9.0,
        Start.ROLLOUT,
        servers=4.0,
        rollout_end=2.0,
        rollout_memory=1.0,
        rollout_start=3.0,
    ),
]


def test_settings_differ_and_a_live_job_can_follow_them(
    script: dict[str, Any], sweep: Sweep
) -> None:
    settings = script["pick_settings"](sweep, 8, seed=1)
    assert settings[0] == sweep.space.baseline()
    assert len({tuple(setting.items()) for setting in settings}) == 8
    for setting in settings:
        assert sweep.space.is_valid(setting)
        changed = [name for name, value in setting.items() if value != settings[0][name]]
        assert all(KNOBS[name].transition in script["OF_TRAINING"] for name in changed)


def test_one_seed_gives_the_same_settings_each_time(script: dict[str, Any], sweep: Sweep) -> None:
    pick = script["pick_settings"]
    assert pick(sweep, 6, seed=3) == pick(sweep, 6, seed=3)


def test_more_settings_than_there_are_is_said(script: dict[str, Any], sweep: Sweep) -> None:
    with pytest.raises(SystemExit, match="fewer than 100000 settings"):
        script["pick_settings"](sweep, 100000, seed=1)


def test_ratios_are_those_of_rank_seconds_a_setting(script: dict[str, Any]) -> None:
    lines = [line.split() for line in script["table"](LIVE, COLD).splitlines()]
    # cold 120; live (120 + 10 + 20) / 3 = 50, after the first (10 + 20) / 2 = 15
    assert lines[1] == ["cold", "120.0", "50.0", "2.00", "1.0"]
    assert lines[2] == ["live", "50.0", "9.0", "2.00", "2.4"]
    assert lines[3] == ["live", "after", "the", "first", "15.0", "5.0", "2.00", "8.0"]
    assert lines[4] == ["start", "hot", "(1)", "10.0", "1.0", "2.00", "12.0"]
    assert lines[5] == ["start", "rollout", "(1)", "20.0", "9.0", "2.00", "6.0"]


def split(text: str) -> dict[str, float]:
    return {line[:26].strip(): float(line[26:].split()[0]) for line in text.splitlines()}


def test_a_restart_of_the_rollout_is_split_up_too(script: dict[str, Any]) -> None:
    assert split(script["startup"](LIVE[-1:])) == {
        "processes, imports": 2.0,
        "old rollout ended": 2.0,
        "its memory back": 1.0,
        "engines": 0.0,
        "loading models": 0.0,
        "FSDP": 0.0,
        "rollout, first weights": 4.0,
        "restarted servers": 3.0,
        "first step over later": 3.0,
    }


def test_the_rollouts_knobs_are_turned_where_that_is_asked(
    script: dict[str, Any], sweep: Sweep
) -> None:
    settings = script["pick_settings"](sweep, 4, seed=1, followed=(Transition.ROLLOUT,))
    changed = {
        name for one in settings[1:] for name in one if one[name] != settings[0][name]
    }
    assert changed == {"rollout_max_num_seqs"}


def test_a_start_is_split_into_parts_that_add_up(script: dict[str, Any]) -> None:
    assert split(script["startup"](COLD)) == {
        "processes, imports": 32.0,
        "engines": 8.0,
        "loading models": 3.0,
        "FSDP": 4.0,
        "rollout, first weights": 10.0,
        "first step over later": 3.0,
    }


def test_every_number_is_written_with_the_protocol(script: dict[str, Any], sweep: Sweep) -> None:
    written = json.loads(script["as_json"](sweep, LIVE, COLD))
    assert [row["rank_seconds"] for row in written["live"]] == [120.0, 10.0, 20.0]
    assert written["cold"][0]["startup"]["autotune/startup_fsdp_s"] == 4.0
    assert written["protocol"]["measured_steps"] == sweep.config.trial.measured_steps
    assert written["ranks"] == 2
