"""How a verification reads."""

import dataclasses
from typing import Any

import pytest
from test_verification import verification
from verify_cases import LIMIT, OBJECTIVE, record

from autotune.objective import TrialState
from autotune.report.verify_text import (
    claim_text,
    job_text,
    knowledge_text,
    setting_name,
    verification_text,
)
from autotune.settings import (
    BaseJobConfig,
    ResourcesConfig,
    SearchConfig,
    SweepConfig,
    TrialConfig,
)
from autotune.verification import Decision, Estimate

CONFIG = SweepConfig(
    name="tiny",
    base=BaseJobConfig(),
    resources=ResourcesConfig(nodes=1, ranks_per_node=1, device="cpu"),
    knobs={},
    trial=TrialConfig(
        warmup_steps=1,
        measured_steps=1,
        profiled_steps=1,
        seed=1,
        startup_timeout_s=1,
        step_timeout_s=1,
    ),
    search=SearchConfig(
        sampler="tpe", num_trials=1, max_concurrent=1, seed=1, num_startup_trials=1
    ),
    constraints=[LIMIT],
)


def test_a_job_is_one_line_with_what_counts() -> None:
    assert job_text(record(0, 120.0), CONFIG) == "120 tokens/s/GPU, exposed_comm_ratio 10 %"


def test_a_failed_job_says_its_cause() -> None:
    failed = record(1, None, state=TrialState.OUT_OF_MEMORY, cause="no memory")
    assert job_text(failed, CONFIG) == "failed (out_of_memory): no memory"


def test_settings_have_names() -> None:
    names = [setting_name(0), setting_name(4), setting_name(1, is_file=True)]
    assert names == ["baseline", "trial 4", "the file's setting"]


def test_the_outcome_names_the_winner_its_gain_and_its_constraints() -> None:
    text = verification_text(verification(), "gpu")
    assert "trial 3: PROVEN, the winner. 1.5 [1.4, 1.6] times the base job" in text
    assert f"{OBJECTIVE}: 150 tokens/s/GPU (149 to 151)" in text
    assert "exposed_comm_ratio: 10 % (9 to 11), limit 20 %, kept; base job n/a" in text
    assert text.endswith("cost: 0.178 GPU-hours in 8 cold jobs.")
    assert "cost: 0.178 rank-hours" in verification_text(verification(), "cpu")
    assert "NOT PROVEN" in verification_text(verification(Decision.NOT_PROVEN), "gpu")


def test_the_width_that_was_reached_stands_beside_the_one_that_was_asked() -> None:
    said = "Proven faster; its interval is 13 % of the gain wide, 20 % was asked: the interval is"
    assert said in verification_text(verification(), "gpu")
    wide = Estimate(value=1.8, low=1.34, high=2.42, num_jobs=4)
    found = dataclasses.replace(verification(), why_ended="all 8 jobs ran (verify.max_jobs)")
    assert knowledge_text(dataclasses.replace(found.candidates[0], gain_ratio=wide), found) == (
        "Proven faster; its interval is 60 % of the gain wide, 20 % was asked: "
        "all 8 jobs ran (verify.max_jobs)."
    )
    lost = dataclasses.replace(found.candidates[0], decision=Decision.WORSE, gain_ratio=None)
    assert knowledge_text(lost, found).startswith("Worse; no gain was measured: all 8 jobs")


def claim(gain_ratio: Any, *, proven: bool = True, objective: str = OBJECTIVE) -> dict[str, Any]:
    return {"gain_ratio": gain_ratio, "proven": proven, "objective": objective}


@pytest.mark.parametrize(
    ("claimed", "decision", "said"),
    [
        (claim([1.45, 1.5, 1.55]), Decision.PROVEN, "1.50 (1.40 to 1.60): it comes out again."),
        (claim([2.0, 2.1, 2.2]), Decision.PROVEN, "it does not come out here, the gain is smaller"),
        (claim([1.0, 1.1, 1.2]), Decision.PROVEN, "the gain is larger here"),
        (claim([1.45, 1.5, 1.55]), Decision.NOT_PROVEN, "but the setting is not proven here"),
        (claim([1.4, 1.5, 1.6], proven=False), Decision.PROVEN, "1.60) times, unproven, in"),
        (claim([1.4, 1.5, 1.6], objective="step_s"), Decision.PROVEN, "so that it stays open"),
        (claim(None), Decision.PROVEN, "states no gain"),
        (None, Decision.PROVEN, "states no gain"),
    ],
)
def test_a_files_claim_is_held_against_the_measurement(
    claimed: Any, decision: Decision, said: str
) -> None:
    found = dataclasses.replace(verification(decision), file="/prod/best.yaml", claim=claimed)
    text = verification_text(found, "gpu")
    assert said in text
    assert text.startswith("Verified /prod/best.yaml on the base job of tiny: 8 cold jobs")


def test_a_file_is_no_trial_and_no_winner() -> None:
    text = verification_text(dataclasses.replace(verification(), file="/prod/best.yaml"), "gpu")
    assert "  the file's setting: PROVEN. 1.5 [" in text
    assert "trial" not in text and "winner" not in text


def test_an_interval_that_holds_1_proves_no_claim() -> None:
    wide = Estimate(value=1.5, low=0.9, high=2.5, num_jobs=3)
    found = dataclasses.replace(
        verification(Decision.NOT_PROVEN).candidates[0], gain_ratio=wide
    )
    said = claim_text(claim([1.4, 1.5, 1.6]), found, OBJECTIVE)
    assert said.endswith("the intervals overlap, but here no gain is proven.")


def test_without_a_gain_the_claim_stays_open() -> None:
    lost = dataclasses.replace(
        verification().candidates[0], decision=Decision.WORSE, gain_ratio=None
    )
    said = claim_text(claim([1.4, 1.5, 1.6]), lost, OBJECTIVE)
    assert said.endswith("; no gain was measured here.")
