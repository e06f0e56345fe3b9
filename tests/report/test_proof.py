"""The data behind a verification, from jobs whose ratios are known by hand."""

import dataclasses
from collections.abc import Sequence

import pytest
from report_cases import sweep_data, trial
from test_answer import verification

from autotune.objective import TrialRecord, TrialState
from autotune.report.answer import answer
from autotune.report.page import report_page
from autotune.report.proof import begun_line, jobs_of, pair_ratios, proof_of, ratios_text
from autotune.report.summary import next_step, summary_text
from autotune.verification import Decision, Verification, VerifyJob

ORDER = [(0, 0, 100.0), (0, 1, 150.0), (1, 1, 160.0), (1, 0, 80.0)]
"""Block, trial and throughput of each job."""


def jobs(plan: str = "new.1", **changes: object) -> list[VerifyJob]:
    """Two blocks of trial 1 and the baseline, the second in reverse; 1.5 and 2 times."""
    return [
        VerifyJob(plan=plan, block=block, trial=number, record=_record(place, value, **changes))
        for place, (block, number, value) in enumerate(ORDER)
    ]


def _record(place: int, throughput: float, **changes: object) -> TrialRecord:
    return dataclasses.replace(trial(place, throughput), **changes)  # type: ignore[arg-type]


def found(**changes: object) -> Verification:
    proven = verification(Decision.PROVEN, 1.5, 1.7)
    values = {"num_jobs": 4, "why_ended": "all 4 jobs ran (verify.max_jobs)", **changes}
    return dataclasses.replace(proven, **values)  # type: ignore[arg-type]


def page_of(ran: Sequence[VerifyJob]) -> str:
    data = sweep_data([trial(0), trial(1, 150.0)], verification=found(), verify_jobs=ran)
    return report_page(data, answer(data))


def test_jobs_stand_in_the_order_in_which_they_ran() -> None:
    proof = proof_of(sweep_data([trial(0)], verification=found(), verify_jobs=jobs()))
    assert proof is not None
    assert [(job.number, job.block, job.setting, job.objective) for job in proof.jobs] == [
        (1, 1, "baseline", "100 tokens/s/GPU"),
        (2, 1, "trial 1", "150 tokens/s/GPU"),
        (3, 2, "trial 1", "160 tokens/s/GPU"),
        (4, 2, "baseline", "80 tokens/s/GPU"),
    ]
    assert proof.jobs[0].limits == (("50 %", False), ("n/a", False))
    assert (proof.jobs[0].state, proof.jobs[0].time) == ("complete", "1 min 40 s")


def test_a_pair_is_the_two_jobs_of_one_block() -> None:
    pairs = pair_ratios(jobs(), found())
    assert [(pair.block, pair.ratio) for pair in pairs] == [(1, 1.5), (2, 2.0)]
    assert ratios_text(pairs) == [
        "Trial 1 against the baseline, pair by pair: 1.50×, 2.00×."
    ]


def test_where_less_is_better_the_ratio_is_turned_over() -> None:
    metrics: dict[str, float | None] = {"step_s": 2.0}
    ran = [
        dataclasses.replace(job, record=dataclasses.replace(job.record, metrics=metrics))
        for job in jobs()
    ]
    ran[1] = dataclasses.replace(
        ran[1], record=dataclasses.replace(ran[1].record, metrics={"step_s": 1.0})
    )
    pairs = pair_ratios(ran, found(objective="step_s"))
    assert [pair.ratio for pair in pairs] == [2.0, 1.0]


def test_jobs_of_an_earlier_verification_do_not_count() -> None:
    earlier = jobs("old.1", started_at="2025-12-31T00:00:00+00:00")
    assert jobs_of(found(), [*earlier, *jobs()]) == jobs()
    assert jobs_of(found(), earlier) == []
    assert jobs_of(found(num_jobs=5), jobs()) == []


def test_a_failed_job_says_its_cause_and_makes_no_pair() -> None:
    ran = jobs()
    ran[1] = dataclasses.replace(
        ran[1],
        record=_record(
            1, 1.0, state=TrialState.OUT_OF_MEMORY, cause="rank 1 ran out", feasible=False
        ),
    )
    assert [pair.block for pair in pair_ratios(ran, found())] == [2]
    assert "out of memory<br><span class=\"cause\">rank 1 ran out" in page_of(ran)


def test_the_page_shows_jobs_ratios_cost_and_how_well_the_gain_is_known() -> None:
    page = page_of(jobs())
    for part in (
        "<h2>The proof</h2>",
        "Trial 1: Proven faster; its interval is 12 % of the gain wide, 10 % was asked: "
        "all 4 jobs ran (verify.max_jobs).",
        "pair by pair: 1.50×, 2.00×.",
        "Cost: 0.0278 GPU-hours in 4 cold jobs.",
        ", from 5 pairs (10 cold jobs), interleaved",
        "160 tokens/s/GPU",
    ):
        assert part in page


@pytest.mark.parametrize("is_running", [True, False])
def test_a_verification_without_an_outcome_is_said(is_running: bool) -> None:
    begun = jobs()[:3]
    data = sweep_data(
        [trial(0), trial(1, 150.0)], verify_jobs=begun, is_running=is_running, exported=None
    )
    said = "A verification has begun and has no outcome yet; 3 cold jobs ran."
    for text in (summary_text(answer(data), data), report_page(data, answer(data))):
        assert said in text and ("the same command goes on with it" in text) is not is_running
    assert next_step(answer(data), data) is None


def test_a_newer_verification_without_an_outcome_stands_beside_the_last_one() -> None:
    ran = [*jobs(), *jobs("newer.2", started_at="2026-01-02T00:00:00+00:00")[:1]]
    data = sweep_data([trial(0), trial(1, 150.0)], verification=found(), verify_jobs=ran)
    assert begun_line(data).startswith("A newer verification has begun and has no outcome yet; 1 c")
    ended = sweep_data([trial(0), trial(1, 150.0)], verification=found(), verify_jobs=jobs())
    assert begun_line(ended) == ""


@pytest.mark.parametrize("proven", [True, False])
def test_without_jobs_the_page_says_so_and_without_a_verification_has_no_proof(
    proven: bool,
) -> None:
    verified = found() if proven else None
    data = sweep_data([trial(0), trial(1, 150.0)], verification=verified)
    page = report_page(data, answer(data))
    assert ("does not hold the jobs of this verification" in page) is proven
    assert ("<h2>The proof</h2>" in page) is proven


def test_ratios_of_the_proof_and_of_the_sweep_stand_apart() -> None:
    data = sweep_data([trial(0), trial(1, 150.0)], verification=found(), verify_jobs=jobs())
    result = answer(data)
    assert result.gain is not None and result.gain.ratio == pytest.approx(1.6)
    assert result.sweep_gain is not None and result.sweep_gain.ratio == pytest.approx(1.5)
    card = report_page(data, result).split("Winner against baseline")[1].split("Constraints")[0]
    verified, own = card.split("in the sweep's own jobs")
    assert "1.60×" in verified and "1.50×" not in verified and "1.50×" in own
    assert "compare ratios within each only" in own.replace("&#39;", "'")
    assert "baseline 100 tokens/s/GPU, 1.50 times. The sweep's live jobs" in summary_text(
        result, data
    )


def test_a_constraint_says_which_jobs_its_value_is_of() -> None:
    proven = sweep_data([trial(0), trial(1, 150.0)], verification=found())
    card = report_page(proven, answer(proven)).split("<h2>Constraints")[1]
    assert "50 % head-room, in 5 cold jobs: 40 to 54 %" in card
    own = sweep_data([trial(0), trial(1, 150.0)])
    assert "44 % head-room, in the sweep&#39;s job" in report_page(own, answer(own))
