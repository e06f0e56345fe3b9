"""Reading the overlap settings of an engine's configuration."""

import pytest
from overlap_cases import CALIBRATION

from autotune.errors import BadInputError
from autotune.models.overlap_settings import OverlapSettings


def test_sizes_may_be_written_with_an_exponent() -> None:
    settings = OverlapSettings.from_dict({"bucket_size": 25e6}, "key")
    assert settings.bucket_size == 25_000_000 and isinstance(settings.bucket_size, int)


def test_a_calibration_alone_changes_nothing() -> None:
    data = {"calibration": CALIBRATION.to_dict(), "sequence_tokens": 512, "bucket_size": 0}
    settings = OverlapSettings.from_dict(data, "key")
    assert settings.is_neutral and settings.calibration == CALIBRATION


@pytest.mark.parametrize(
    "name",
    [
        "bucket_size",
        "min_overlap_time_s",
        "overlap_threshold",
        "forward_prefetch_depth",
        "backward_prefetch_depth",
    ],
)
def test_every_knob_takes_the_job_off_verls_own_wrapping(name: str) -> None:
    assert not OverlapSettings.from_dict({name: 1}, "key").is_neutral


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"bucket_sise": 1}, "key: there is no overlap setting 'bucket_sise'.*'bucket_size'"),
        ({"bucket_size": -1}, "key.bucket_size is -1"),
        ({"bucket_size": 2.5}, "key.bucket_size is 2.5. It must be an integer"),
        ({"bucket_size": "25e6"}, "key.bucket_size is '25e6'"),
        ({"overlap_threshold": True}, "key.overlap_threshold is True"),
        ({"overlap_threshold": None}, "key.overlap_threshold is None"),
        ({"calibration": {}}, "key.calibration has the fields of no mapping"),
        (3, "key is 3. It must be a mapping"),
    ],
)
def test_what_a_setting_cannot_take_is_refused_with_its_key(data: object, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        OverlapSettings.from_dict(data, "key")


@pytest.mark.parametrize("name", ["min_overlap_time_s", "overlap_threshold"])
def test_times_without_a_calibration_are_refused_when_they_are_needed(name: str) -> None:
    settings = OverlapSettings.from_dict({name: 0.5}, "key")
    with pytest.raises(BadInputError, match=f"overlap.{name} is 0.5, but there is no .*calib"):
        settings.check_calibrated()
