"""Trials of one setting are called that."""

from report_cases import sweep_data, trial

from autotune.objective import TrialRecord
from autotune.report.answer import answer
from autotune.report.repeats import count_text, repeat_marks, repetitions_line
from autotune.report.summary import counts_line


def again(number: int, of: int, throughput: float) -> TrialRecord:
    return trial(number, throughput, setting=trial(of).setting, params=trial(of).params)


RECORDS = [trial(0), trial(1, 711.4), again(2, 1, 652.3)]


def test_repetitions_name_each_other() -> None:
    marks = repeat_marks([*RECORDS, again(3, 1, 700.0), trial(4)])
    assert marks == {1: "repeated by 2 and 3", 2: "repeats trial 1", 3: "repeats trial 1"}


def test_the_winners_repetitions_are_said_with_what_each_measured() -> None:
    data = sweep_data(RECORDS)
    assert repetitions_line(answer(data)) == (
        "Trials 1 and 2 are one setting, measured 2 times (711 and 652); "
        "the winner's record is the cautious one."
    )
    assert "3 of 9 trials finished (2 settings)" in counts_line(answer(data), data)


def test_of_three_repetitions_the_middle_one_stands_for_the_setting() -> None:
    found = answer(sweep_data([*RECORDS, again(3, 1, 700.0)]))
    assert found.winner is not None and found.winner.number == 3
    assert repetitions_line(found).endswith("(711, 652 and 700); the winner's record is the one "
                                            "in the middle.")  # fmt: skip


def test_a_setting_that_ran_once_needs_no_line() -> None:
    assert repetitions_line(answer(sweep_data([trial(0), trial(1, 150.0)]))) == ""
    assert repeat_marks([trial(0), trial(1)]) == {}
    assert count_text([trial(0)]) == "1 trial, 1 setting"
