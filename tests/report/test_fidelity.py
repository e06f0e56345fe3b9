"""Every report of a sweep whose trials replayed their rollout says so."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_cases import OUTLINE
from sweep_maker import THROUGHPUT, UPDATE_ONLY_THROUGHPUT, SweepSpec, make_sweep
from test_verification import verification

from autotune.cli import main
from autotune.errors import BadInputError, ExitCode
from autotune.objective import StepKind, StepRecord
from autotune.report.answer import answer
from autotune.report.compare import compare
from autotune.report.documents import report_document
from autotune.report.live import progress_line
from autotune.report.page import report_page
from autotune.report.reading import SweepData, read_sweep
from autotune.report.summary import summary_text
from autotune.report.text import UPDATE_ONLY, step_line
from autotune.report.wandb_runs import report_run, trial_run

NAME = "replayed"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    make_sweep(folder, SweepSpec(name=NAME, num_trials=8, fidelity="update"))
    make_sweep(folder, SweepSpec(name="whole", num_trials=8))
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> SweepData:
    return read_sweep(folder / NAME)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == ExitCode.DONE
    return capsys.readouterr().out


def test_the_report_says_so_in_its_second_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "report", folder / NAME).splitlines()
    assert lines[1] == f"Trials are {UPDATE_ONLY}; only the verification runs whole steps."
    assert "update-only tokens/s/GPU" in lines[2]
    assert any(line.startswith("Update-only step: ") for line in lines)


def test_a_report_of_whole_steps_says_nothing_of_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "report", folder / "whole")
    assert "update-only" not in text.lower() and "\nStep: " in text


def test_list_and_show_say_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, whole = printed(capsys, "list", folder).splitlines()[1:]
    assert ", update-only" in own and "update-only tokens/s/GPU" in own
    assert "update-only" not in whole
    text = printed(capsys, "show", folder / NAME, 0)
    assert f"U{UPDATE_ONLY[1:]}." in text
    assert "the rollout was replayed, the step is not a whole one" in text


def test_the_html_page_says_so(data: SweepData, folder: Path) -> None:
    assert UPDATE_ONLY in report_page(data, answer(data))
    whole = read_sweep(folder / "whole")
    assert UPDATE_ONLY not in report_page(whole, answer(whole))


def test_the_live_table_says_so() -> None:
    assert progress_line([], [], replace(OUTLINE, fidelity="update")).endswith(UPDATE_ONLY)


def test_a_step_shows_the_speed_of_what_ran(data: SweepData) -> None:
    step = next(step for step in data.steps[0] if step.kind is StepKind.MEASURED)
    assert "update-only tokens/s/GPU (measured)" in step_line(step, OUTLINE)
    failed = StepRecord(number=0, attempt=0, step=1, kind=StepKind.WARMUP, metrics={})
    assert step_line(failed, OUTLINE) == "trial 0 step 1 of 6 (warmup)"


def test_wandb_says_so_in_tags_and_configuration(data: SweepData) -> None:
    for run in (trial_run(data, data.trials[0]), report_run(data, answer(data))):
        assert UPDATE_ONLY in run.tags and run.config["fidelity"] == UPDATE_ONLY


def test_the_document_for_machines_says_so(data: SweepData) -> None:
    document = json.loads(json.dumps(report_document(answer(data), data)))
    assert (document["fidelity"], document["objective"]) == ("update", UPDATE_ONLY_THROUGHPUT)
    baseline = document["trials"][0]
    assert baseline["metrics"][THROUGHPUT] is None and baseline["absent"][THROUGHPUT]


def test_replayed_trials_and_whole_steps_are_not_compared(folder: Path) -> None:
    with pytest.raises(BadInputError, match="fidelity: update, .* with full. .*do not compare"):
        compare(str(folder / NAME), str(folder / "whole"))
    assert compare(f"{folder / NAME}:0", str(folder / NAME)).fidelity == "update"


def test_what_is_proven_is_said_of_whole_steps_beside_the_trials_own_numbers(
    data: SweepData,
) -> None:
    proven = replace(data, verification=verification())
    found = answer(proven)
    assert found.gain is not None and found.gain.metric == THROUGHPUT
    lines = summary_text(found, proven).splitlines()
    assert lines[2].startswith(f"Winner: trial 3, {THROUGHPUT} 150 tokens/s/GPU, 1.50 times")
    assert lines[3].startswith("Baseline: 100 tokens/s/GPU")
    assert "In the sweep's own jobs: " in lines[5] and "update-only tokens/s/GPU" in lines[5]
