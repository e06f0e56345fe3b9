"""``autotune plan`` as a shell runs it."""

import json
from pathlib import Path

import pytest
from quickstart_case import QUICKSTART, TINY

from autotune.cli import main
from autotune.errors import ExitCode

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "tests" / "data" / "calibration_by_hand.json"


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The quickstart in a folder that holds its model's configuration and nothing else of worth."""
    tiny = tmp_path / "demo" / "tiny"
    (tiny / "model").mkdir(parents=True)
    (tiny / "model" / "config.json").write_text(json.dumps(TINY))
    for name in ("train.parquet", "test.parquet", "reward.py"):
        (tiny / name).touch()
    monkeypatch.chdir(tmp_path)
    return str(QUICKSTART)


def test_it_says_everything_without_touching_a_cluster(
    sweep: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", sweep]) == ExitCode.DONE
    text = capsys.readouterr().out
    for part in (
        "300 settings, 300 valid",
        "0: the base job:",
        "At most: 5.1 rank-hours, 2.55 h of wall time for 9 trials",
        "Expected: no basis yet",
        "Training alone: ",
        "every sequence 96 tokens long",
        "Memory on one device",
        "bucket_size=500000",
        "ASSUMED: gloo through the host's memory",
        "trust_remote_code is off",
    ):
        assert part in text
    assert not Path("sweeps").exists()


def test_a_named_link_replaces_the_usual_one(
    sweep: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", sweep, "--link", "ethernet", "--flops-per-s", "1e12"]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert "ASSUMED: Ethernet of 100 Gbit/s a rank: 10 GB/s a rank in a ring" in text
    assert "; 1 TFLOP/s." in text


def test_a_given_calibration_is_measured(sweep: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", sweep, "--calibration", str(MEASURED)]) == ExitCode.DONE
    assert "Links and devices, measured: 2 ranks on 1 node, NVIDIA H200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--flops-per-s", "0"], "--flops-per-s is 0."),
        (["--flops-per-s", "1", "--calibration", "x"], "--flops-per-s is 1 beside --calibration"),
        (["--calibration", "nowhere.json"], "there is no file nowhere.json"),
    ],
)
def test_what_contradicts_itself_is_bad_input(
    sweep: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["plan", sweep, *arguments]) == ExitCode.BAD_INPUT
    assert message in capsys.readouterr().err
