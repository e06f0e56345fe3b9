"""A calibration survives its file, and a file that is none is refused."""

import json
from pathlib import Path

import pytest

from autotune.errors import BadInputError
from autotune.models.calibration_record import read_record

BY_HAND = Path(__file__).parents[1] / "data" / "calibration_by_hand.json"


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    record = read_record(BY_HAND)
    path.write_text(record.to_json())
    assert read_record(path) == record
    assert record.samples["all_gather"][0][0] == 65536


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 99}, "schema_version is 99, not 2"),
        ({"samples": 3}, "calibration.json is not a calibration"),
        ({"speed": 1}, "speed"),
        ({"constants": {}}, "constants has the fields"),
    ],
)
def test_another_file_is_refused_with_what_to_do(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(json.loads(BY_HAND.read_text()) | change))
    with pytest.raises(BadInputError, match=said) as caught:
        read_record(path)
    assert "Remove the file" in caught.value.hint


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(BY_HAND.read_text()[:50])
    with pytest.raises(BadInputError, match="is not a calibration"):
        read_record(path)
