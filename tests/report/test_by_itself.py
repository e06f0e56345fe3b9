"""What a knob did by itself, on trials whose effects are known by hand."""

from report_cases import MICRO, THROUGHPUT, measured, sweep_data, trial

from autotune.objective import TrialRecord
from autotune.report.answer import answer
from autotune.report.by_itself import effect_of, repetition_ratio, without_effect
from autotune.report.page import report_page

RESHARD = "reshard_after_forward"


def at(number: int, throughput: float, micro: int, reshard: bool) -> TrialRecord:
    setting = {MICRO: micro, RESHARD: reshard}
    return trial(number, throughput, setting=setting, params=setting)


BASE, WINNER = at(0, 100.0, 2, True), at(3, 200.0, 8, False)
REPEATED = [BASE, at(1, 195.0, 8, True), WINNER, at(4, 210.0, 8, False)]


def test_the_knob_is_put_back_alone_at_the_winner_first() -> None:
    records = [BASE, at(1, 190.0, 8, True), at(2, 50.0, 2, False), WINNER]
    found = effect_of(RESHARD, WINNER, BASE, records, THROUGHPUT)
    assert found is not None and (found.after.number, found.before.number) == (3, 1)
    assert found.ratio == 200.0 / 190.0


def test_else_it_is_changed_alone_at_the_baseline() -> None:
    found = effect_of(RESHARD, WINNER, BASE, [BASE, at(2, 50.0, 2, False), WINNER], THROUGHPUT)
    assert found is not None and (found.after.number, found.before.number) == (2, 0)
    assert found.ratio == 0.5
    assert effect_of(MICRO, WINNER, BASE, [BASE, WINNER], THROUGHPUT) is None


def test_an_effect_within_the_spread_of_repetitions_is_none() -> None:
    assert repetition_ratio(REPEATED, THROUGHPUT) == 1.05
    data = sweep_data(REPEATED)
    assert without_effect(data, answer(data)) == {
        RESHARD: "1.03 times, trial 3 against 1; one setting differed by 1.05 times"
    }
    larger = sweep_data([BASE, at(1, 150.0, 8, True), *REPEATED[2:]])
    assert without_effect(larger, answer(larger)) == {}


def test_an_effect_within_the_scatter_of_steps_is_none() -> None:
    records = [BASE, at(1, 190.0, 8, True), WINNER]
    wide = {1: measured(1, [150.0, 190.0, 230.0]), 3: measured(3, [160.0, 200.0, 240.0])}
    data = sweep_data(records, wide)
    assert list(without_effect(data, answer(data))) == [RESHARD]
    narrow = {1: measured(1, [190.0, 190.0]), 3: measured(3, [200.0, 200.0])}
    data = sweep_data(records, narrow)
    assert without_effect(data, answer(data)) == {}


def test_without_any_knowledge_of_noise_nothing_is_called_noise() -> None:
    data = sweep_data([BASE, at(1, 199.0, 8, True), WINNER])
    assert without_effect(data, answer(data)) == {}
    assert without_effect(sweep_data([]), answer(sweep_data([]))) == {}


def test_the_page_marks_such_a_knob_and_says_why_importance_is_not_there() -> None:
    data = sweep_data(REPEATED)
    page = report_page(data, answer(data))
    assert page.count("no measurable effect by itself") == 1
    assert "importance is not shown: 3 settings completed" in page
