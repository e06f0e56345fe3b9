"""The command line: what is taken as a setting, and what is refused."""

from pathlib import Path

import pytest

from autotune.cli import main, parse


def test_settings_may_stand_on_both_sides_of_options() -> None:
    options = parse(["sweep", "file.yaml", "a=1", "--address", "auto", "b=2", "c=3"])
    assert options.overrides == ["a=1", "b=2", "c=3"]
    assert options.address == "auto"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "file.yaml", "--adress", "auto"], "--adress auto"),
        (["sweep", "file.yaml", "--address", "auto", "trial"], "unrecognized arguments: trial"),
        (["sweep", "file.yaml", "--a-b=2"], "--a-b=2"),
        (["sweeep"], "invalid choice: 'sweeep'"),
    ],
)
def test_what_is_no_setting_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_what_the_file_system_refuses_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trial_0000.log").mkdir()
    assert main(["show", str(tmp_path / ("a" * 300)), "0"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
