"""Tables for a terminal, by what they say."""

import pytest

from autotune.report.terminal import metric_text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("step_s", 1.5, "1.5 s"),
        ("phase_ref_s", 0.25, "0.25 s"),
        ("phase_ref_exposed_comm_ratio", 0.25, "25 %"),
        ("phase_ref_peak_reserved_gib", 0.817, "0.817 GiB"),
        ("comm_all_gather_bus_gb_per_s", 31.0, "31 GB/s"),
        ("of_another_version_s", 31.0, "31"),
        ("phase_ref_s", None, "n/a"),
        ("of_another_version_s", None, "n/a"),
    ],
)
def test_every_number_of_a_record_has_its_own_unit(
    name: str, value: float | None, text: str
) -> None:
    assert metric_text(name, value) == text
