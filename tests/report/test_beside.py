"""What a report says of trials that ran at once: an hour each, the baseline with its cold jobs."""

import dataclasses
from typing import Any

import pytest
from report_cases import sweep_data, trial

from autotune.objective import Start, TrialRecord
from autotune.report.answer import answer
from autotune.report.beside import disturbance_line, disturbance_of
from autotune.report.reading import SweepData
from autotune.report.summary import summary_text
from autotune.verification import VerifyJob


def at(hour: int, record: TrialRecord) -> TrialRecord:
    return dataclasses.replace(
        record,
        started_at=f"2026-01-01T{hour:02}:00:00+00:00",
        ended_at=f"2026-01-01T{hour + 1:02}:00:00+00:00",
    )


def cold_job(index: int, throughput: float) -> VerifyJob:
    record = at(10 + index, trial(0, throughput=throughput))
    return VerifyJob(plan="p.1", block=index, trial=0, record=record)


def data(*records: TrialRecord, jobs: tuple[float, ...] = (), **changes: Any) -> SweepData:
    verify_jobs = [cold_job(index, value) for index, value in enumerate(jobs)]
    found = sweep_data(records, verify_jobs=verify_jobs, **changes)
    found.config.search.max_concurrent = 2
    return found


BOTH_AT_ONCE = (at(0, trial(0, throughput=50.0)), at(0, trial(1, throughput=80.0)))


def test_a_baseline_that_was_faster_alone_shows_that_trials_slow_one_another() -> None:
    slowed = data(*BOTH_AT_ONCE, jobs=(100.0, 102.0, 98.0))
    line = disturbance_line(slowed)
    assert line.startswith("Trials at once: they slow one another down, 0.50 times as fast as alon")
    assert line.endswith("compare them with one another only (1 job beside others, 3 alone).")
    assert line in summary_text(answer(slowed), slowed).splitlines()


def test_a_baseline_that_was_as_fast_alone_shows_no_difference() -> None:
    line = disturbance_line(data(*BOTH_AT_ONCE, jobs=(50.0, 51.0, 49.0)))
    assert line.startswith("Trials at once: no difference beyond noise, 1.00 times as fast as alo")


def test_trials_that_ran_one_after_another_were_not_beside_others() -> None:
    apart = data(at(0, trial(0)), at(1, trial(1)), jobs=(100.0,))
    assert disturbance_of(apart) is None
    assert "is not known" in disturbance_line(apart)


def test_a_setting_repeated_alone_in_the_sweep_counts_too() -> None:
    again = dataclasses.replace(at(5, trial(0, throughput=100.0)), number=2)
    found = disturbance_of(data(*BOTH_AT_ONCE, again))
    assert found is not None and found.ratio == pytest.approx(0.5)


def test_jobs_that_were_restarted_live_are_not_compared_with_fresh_ones() -> None:
    live = [dataclasses.replace(record, start=Start.HOT) for record in BOTH_AT_ONCE]
    assert disturbance_of(data(*live, jobs=(100.0,))) is None


def test_a_sweep_of_one_trial_at_a_time_says_nothing() -> None:
    alone = data(at(0, trial(0)))
    alone.config.search.max_concurrent = 1
    assert disturbance_line(alone) == ""


def test_trials_of_replayed_rollouts_are_not_compared_with_whole_steps() -> None:
    replaying = data(*BOTH_AT_ONCE, jobs=(100.0,))
    replaying.config.trial.fidelity = "update"
    assert disturbance_of(replaying) is None
