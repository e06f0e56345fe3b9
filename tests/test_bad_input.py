"""Every kind of bad input at the command line: one line, exit code 2, nothing is started."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_config import ACTOR, MICRO, STORAGE_UNITS, SweepFile

from autotune.cli import main

Change = Callable[[SweepFile], object]
ROOT = Path(__file__).parents[1]


def knobs(**domains: object) -> Change:
    return lambda file: file.set("knobs", domains)


def setting(key: str, value: object) -> Change:
    return lambda file: file.set(key, value)


def override(text: str) -> Change:
    return lambda file: file.add(text)


def text(content: str) -> Change:
    """Replace the whole file."""
    return lambda file: (file.folder / "sweep.yaml").write_text(content)


def line(content: str) -> Change:
    """Append a line to the file."""
    return lambda file: (file.folder / "sweep.yaml").write_text(
        f"{file.path().read_text()}{content}\n"
    )


CASES: dict[str, tuple[Change, str]] = {
    "unknown knob": (knobs(ppo_micro_batch_sise={"choices": [1]}), f"Did you mean '{MICRO}'?"),
    "knob outside its range": (knobs(**{MICRO: {"choices": [1, 0]}}), "choices[1] is 0, outside"),
    "knob of another type": (knobs(reshard_after_forward={"choices": [7]}), "takes true or false"),
    "no valid point": (
        knobs(**{MICRO: {"choices": [3, 5]}}),
        "no valid setting besides the base job's own: micro_batch_in_mini_batch excludes 2 of 2",
    ),
    "first outside its domain": (setting("search.first", [{MICRO: 16}]), "not in the knob"),
    "unknown verl key": (override(f"{ACTOR}.ppo_minibatch_size=8"), "Did you mean"),
    "wrong type of a verl key": (override("data.train_batch_size=eight"), "'eight' (str), but"),
    "an override of two lines": (override("a\nb=1"), "The override 'a b=1' is not in Hydra's syn"),
    "deleted verl key": (override("~critic"), "the job has no key 'critic.enable'"),
    "unknown estimator": (override("algorithm.adv_estimator=grppo"), "Did you mean 'grpo'?"),
    "no storage units": (override(f"{STORAGE_UNITS}=null"), f"{STORAGE_UNITS} is None"),
    "missing model folder": (
        override("actor_rollout_ref.model.path=./none"),
        "model folder './none' does not exist",
    ),
    "missing data file": (override("data.train_files=no.parquet"), "'no.parquet' does not exist"),
    "a secret": (override("+a.env_vars={HF_TOKEN: verysecret}"), "a.env_vars.HF_TOKEN holds a sec"),
    "unknown key": (setting("trial.warmup", 1), "Did you mean 'warmup_steps'?"),
    "missing section": (setting("search", None), "The sweep file lacks search"),
    "seed out of range": (setting("search.seed", 2**64), "It must be from 0 to 4294967295."),
    "output_dir is a file": (setting("output_dir", "reward.py"), "reward.py is a file."),
    "NUL in a path": (setting("output_dir", "a\0b"), "output_dir is 'a\\x00b'"),
    "no earlier sweep": (setting("search.warm_start", ["gone"]), "gone does not exist"),
    "not YAML": (text("knobs: {a: [1,\n"), "sweep.yaml is not valid YAML"),
    "not text": (lambda file: (file.folder / "sweep.yaml").write_bytes(b"\x80\xff"), "not a text"),
    "a list": (text("- 1\n"), "does not hold a mapping: it is a list"),
    "a Python tag": (
        line("output_uri: !!python/object/apply:os.system ['touch mark']"),
        "YAML tag '!!python/object/apply:os.system'",
    ),
    "an alias": (line("output_uri: &a [*a]"), "this value holds itself"),
    "endless nesting": (line("output_uri: " + "[" * 3000), "nested more than 50 levels deep"),
    "an interpolation": (setting("output_uri", "${oc.env:HOME}"), "output_uri contains an interp"),
}


def write(file: SweepFile, change: Change) -> None:
    change(file)
    if not (file.folder / "sweep.yaml").exists():
        file.path()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFile:
    monkeypatch.chdir(tmp_path)
    return SweepFile(tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_it_is_one_line_and_exit_code_2(
    case: str, file: SweepFile, capsys: pytest.CaptureFixture[str]
) -> None:
    change, said = CASES[case]
    write(file, change)
    before = contents(file.folder)
    assert main(["check", "sweep.yaml"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("autotune: ") and said in shown.err
    assert shown.err.count("\n") == 1 and "verysecret" not in shown.err
    assert contents(file.folder) == before


def test_a_right_file_is_none_of_these(
    file: SweepFile, capsys: pytest.CaptureFixture[str]
) -> None:
    file.path()
    assert main(["check", "sweep.yaml"]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "Sweep tiny: 4 settings, 3 valid.\n"
        "  1 excluded by micro_batch_in_mini_batch: actor_rollout_ref.actor."
        "ppo_micro_batch_size_per_gpu (3) must divide the 16 sequences of a rank's mini-batch "
        "(actor_rollout_ref.actor.ppo_mini_batch_size 8 x actor_rollout_ref.rollout.n 4 / data "
        "parallel size 2)\n"
    )
    assert shown.err == ""


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("command", "case"),
    [
        ("check", "a Python tag"),
        ("sweep", "no valid point"),
        ("sweep", "no earlier sweep"),
        ("sweep", "output_dir is a file"),
    ],
)
def test_the_command_itself_starts_nothing(
    command: str, case: str, file: SweepFile, ray_folder: Path
) -> None:
    change, said = CASES[case]
    write(file, change)
    before = contents(file.folder)
    done = subprocess.run(
        [sys.executable, "-m", "autotune.cli", command, "sweep.yaml"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(ray_folder)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert contents(file.folder) == before
    assert list(ray_folder.iterdir()) == []
