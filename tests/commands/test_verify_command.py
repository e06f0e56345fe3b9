"""``autotune verify`` as a shell runs it, as far as it goes before any job."""

from pathlib import Path

import pytest
from test_config import SweepFile

from autotune.cli import main
from autotune.errors import ExitCode
from autotune.store import CONFIG_FILE
from autotune.verl_bridge.config_file import job_file

KEY = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep file in the current folder, beside a production file that it could be tuned into."""
    monkeypatch.chdir(tmp_path)
    file = SweepFile(tmp_path)
    overrides = list(file.load().base_overrides)
    (tmp_path / "best.yaml").write_text(job_file("ppo_trainer", [*overrides, f"{KEY}=4"]))
    return file.path()


def test_a_file_needs_its_base_job(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "best.yaml"]) == ExitCode.BAD_INPUT
    assert "best.yaml is a file; --base is missing." in capsys.readouterr().err


def test_records_of_another_sweep_are_left_alone(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = base.parent / "sweeps" / "tiny_verify"
    other.mkdir(parents=True)
    (other / CONFIG_FILE).touch()
    assert main(["verify", "best.yaml", "--base", str(base)]) == ExitCode.BAD_INPUT
    assert "tiny_verify is a sweep of its own. Add output_dir=" in capsys.readouterr().err
    assert [path.name for path in other.iterdir()] == [CONFIG_FILE]


@pytest.mark.parametrize("target", ["missing.yaml", "missing"])
def test_what_is_not_there_is_bad_input(
    base: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", target, "--base", str(base)]) == ExitCode.BAD_INPUT
    assert target in capsys.readouterr().err
