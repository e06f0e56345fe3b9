"""The table says what was measured and what follows from it."""

import dataclasses
from pathlib import Path

from autotune.models.calibration_record import CalibrationRecord, read_record
from autotune.report.calibration_text import calibration_line, calibration_text

RECORD = read_record(Path(__file__).parents[1] / "data" / "calibration_by_hand.json")


def with_ranks(world_size: int) -> CalibrationRecord:
    constants = dataclasses.replace(RECORD.constants, world_size=world_size)
    return dataclasses.replace(RECORD, constants=constants)


def test_each_collective_has_a_line_with_its_constants() -> None:
    lines = [line.split() for line in calibration_text(RECORD).splitlines()]
    # 25e6 bytes: 20 us + 25e6 / 600e9 s
    assert "all_gather 20 us 600 GB/s 0.06 ms 0 % 64 KiB to 1 GiB".split() in lines
    assert sum(line[:1] == ["all_reduce"] for line in lines) == 1


def test_the_link_and_the_search_spaces_that_fit_it_are_named() -> None:
    text = calibration_text(RECORD)
    assert "look like NVLink (300 GB/s a rank in a ring)" in text
    assert "*_high_throughput.yaml" in text


def test_the_tokens_that_hide_communication_are_said() -> None:
    # 2 bytes / 600e9 B/s = 2 x tokens / 600e12 FLOP/s
    assert "from about 1000 tokens" in calibration_text(RECORD)


def test_one_rank_communicates_nothing() -> None:
    text = calibration_text(with_ranks(1))
    assert "nothing is communicated" in text
    assert "no links" in calibration_line(with_ranks(1))


def test_the_outcome_fits_into_one_line() -> None:
    line = calibration_line(RECORD)
    assert "2 ranks on 1 node, NVIDIA H200, nccl: links look like NVLink" in line
    assert "all-gather 600 GB/s after 20 us" in line
