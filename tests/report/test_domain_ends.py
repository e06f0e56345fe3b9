"""A winner at the end of a domain is called that."""

import dataclasses
from typing import Any

import pytest
from report_cases import sweep_data, trial

from autotune.report.answer import answer
from autotune.report.domain_ends import domain_end_lines
from autotune.report.page import report_page
from autotune.report.reading import SweepData
from autotune.report.summary import summary_text
from autotune.settings import DomainConfig

MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"


def data_of(setting: dict[str, Any], **domains: DomainConfig) -> SweepData:
    won = trial(1, 150.0, setting={**trial(0).setting, **setting}, params=setting)
    data = sweep_data([trial(0), won])
    return dataclasses.replace(data, config=dataclasses.replace(data.config, knobs=domains))


def lines_of(setting: dict[str, Any], **domains: DomainConfig) -> list[str]:
    data = data_of(setting, **domains)
    return domain_end_lines(data, data.trials[1])


SIZES = DomainConfig(choices=[2, 4, 8, 16])
LARGEST = f"{MICRO} = 16 is the largest that was allowed: a wider domain may hold more."


def test_the_largest_of_the_choices_is_said_in_text_and_page() -> None:
    data = data_of({MICRO: 16}, **{MICRO: SIZES})
    assert domain_end_lines(data, data.trials[1]) == [LARGEST]
    found = answer(data)
    assert LARGEST in summary_text(found, data).splitlines()
    assert LARGEST in report_page(data, found)


def test_several_knobs_share_a_line() -> None:
    assert lines_of({MICRO: 16, SCORING: 16}, **{MICRO: SIZES, SCORING: SIZES}) == [
        f"{MICRO} = 16 and {SCORING} = 16 are the largest that were allowed: "
        "a wider domain may hold more."
    ]


def test_the_smallest_of_a_range_is_said() -> None:
    name = "rollout_gpu_memory_utilization"
    [line] = lines_of({name: 0.3}, **{name: DomainConfig(low=0.3, high=0.8, step=0.1)})
    assert line.startswith(f"{name} = 0.3 is the smallest that was allowed")


@pytest.mark.parametrize(
    ("name", "value", "domain"),
    [
        (MICRO, 8, SIZES),
        (MICRO, 1, DomainConfig(choices=[1, 2, 4])),
        (MICRO, 4, DomainConfig(choices=[4])),
        ("reshard_after_forward", False, DomainConfig(choices=[True, False])),
    ],
)
def test_inside_a_domain_at_a_knobs_own_end_and_for_switches_nothing_is_said(
    name: str, value: Any, domain: DomainConfig
) -> None:
    assert lines_of({name: value}, **{name: domain}) == []


def test_a_knob_that_does_not_act_is_left_out() -> None:
    assert lines_of({}, **{MICRO: SIZES}) == []
