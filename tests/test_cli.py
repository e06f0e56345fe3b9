"""The command line: what is taken as a setting, and what is refused."""

import pytest

from autotune.cli import parse


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
