"""``autotune report``, ``list``, ``show`` and ``compare`` as a shell runs them."""

import json
from pathlib import Path

import pytest
from sweep_maker import SweepSpec, make_sweep

from autotune.cli import main
from autotune.errors import ExitCode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    make_sweep(folder, SweepSpec(name="first", num_trials=8))
    make_sweep(folder, SweepSpec(name="second", num_trials=3, seed=2))
    return folder


def out_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == ExitCode.DONE
    return capsys.readouterr().out


def test_report_prints_the_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out_of(capsys, "report", folder / "first")
    assert text.startswith("Sweep first: 8 of 30 trials finished") and "Winner: trial" in text


def test_list_prints_a_line_a_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = out_of(capsys, "list", folder).splitlines()
    assert [line.split()[0] for line in lines] == ["sweep", "first", "second"]
    assert all(line.rstrip().endswith(name) for line, name in zip(lines[1:], ("first", "second")))


def test_list_says_where_it_found_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert out_of(capsys, "list", tmp_path) == f"No sweep in {tmp_path}.\n"


def test_list_passes_over_a_broken_sweep_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep(tmp_path, SweepSpec(name="good", num_trials=2))
    make_sweep(tmp_path, SweepSpec(name="torn", num_trials=2))
    (tmp_path / "torn" / "trials.jsonl").write_text("{}\n{}\n")
    assert main(["list", str(tmp_path)]) == ExitCode.FAILED
    captured = capsys.readouterr()
    assert "good" in captured.out and "torn" not in captured.out
    assert "torn/trials.jsonl, line 1, cannot be read" in captured.err


def test_show_prints_a_trial_in_full(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out_of(capsys, "show", folder / "first", 1)
    assert text.startswith("Trial 1 of first: feasible")
    for part in ("ppo_micro_batch_size_per_gpu", "kl_std", "measured", "the last line of the job"):
        assert part in text


def test_compare_prints_both_sides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out_of(capsys, "compare", f"{folder}/first:0", folder / "second")
    assert text.startswith(f"a: trial 0 (chosen) of {folder}/first\nb: trial ")
    assert "Settings that differ" in text and "throughput_tokens_per_s_per_gpu" in text


@pytest.mark.parametrize(
    "arguments",
    [("report", "first"), ("list",), ("show", "first", "0"), ("compare", "first", "second")],
)
def test_every_answer_is_one_json_object_too(
    arguments: tuple[str, ...],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    command = [*arguments, "--json"] if arguments != ("list",) else ["list", ".", "--json"]
    assert json.loads(out_of(capsys, *command))["schema_version"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "third"), "third is not the folder of a sweep"),
        (("show", "first", "9999"), "trial 9999 of"),
        (("compare", "first:77", "second"), "trial 77 of"),
    ],
)
def test_what_is_not_there_is_bad_input(
    arguments: tuple[str, ...],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert main(arguments) == ExitCode.BAD_INPUT
    assert message in capsys.readouterr().err
