"""How a verification reads."""

import dataclasses
from typing import Any

import pytest
from test_verification import verification
from verify_cases import LIMIT, OBJECTIVE, record

from autotune.objective import TrialState
from autotune.report.verify_text import job_line, knowledge_text, verification_text
from autotune.settings import (
    BaseJobConfig,
    ResourcesConfig,
    SearchConfig,
    SweepConfig,
    TrialConfig,
)
from autotune.verification import Decision, Estimate, VerifyJob

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
    job = VerifyJob(plan="p", block=0, trial=0, record=record(0, 120.0))
    assert job_line(job, 1, 8, CONFIG) == (
        "verify job 1 of at most 8, baseline: 120 tokens/s/GPU, exposed_comm_ratio 10 %"
    )


def test_a_failed_job_says_its_cause() -> None:
    failed = record(1, None, state=TrialState.OUT_OF_MEMORY, cause="no memory")
    line = job_line(VerifyJob(plan="p", block=0, trial=4, record=failed), 2, 8, CONFIG)
    assert line.endswith("trial 4: failed (out_of_memory): no memory")


def test_the_outcome_names_the_winner_its_gain_and_its_constraints() -> None:
    text = verification_text(verification(), "gpu")
    assert "trial 3: PROVEN, the winner. 1.5 [1.4, 1.6] times the base job" in text
    assert f"{OBJECTIVE}: 150 tokens/s/GPU [149 tokens/s/GPU, 151 tokens/s/GPU]" in text
    assert "exposed_comm_ratio: 10 % [9 %, 11 %], limit 20 %, kept; base job n/a" in text
    assert text.endswith("cost: 0.178 GPU-hours in 8 cold jobs.")
    assert "cost: 0.178 rank-hours" in verification_text(verification(), "cpu")
    assert "NOT PROVEN" in verification_text(verification(Decision.NOT_PROVEN), "gpu")


def test_the_width_that_was_reached_stands_beside_the_one_that_was_asked() -> None:
    said = "Proven faster; its size is known to 13 % of the gain, 20 % was asked: the interval is"
    assert said in verification_text(verification(), "gpu")
    wide = Estimate(value=1.8, low=1.34, high=2.42, num_jobs=4)
    found = dataclasses.replace(verification(), why_ended="all 8 jobs ran (verify.max_jobs)")
    assert knowledge_text(dataclasses.replace(found.candidates[0], gain_ratio=wide), found) == (
        "Proven faster; its size is known to 60 % of the gain, 20 % was asked: "
        "all 8 jobs ran (verify.max_jobs)."
    )
    lost = dataclasses.replace(found.candidates[0], decision=Decision.WORSE, gain_ratio=None)
    assert knowledge_text(lost, found).startswith("Worse; no gain was measured: all 8 jobs")


@pytest.mark.parametrize(
    ("claimed", "said"),
    [
        ([1.45, 1.5, 1.55], "it comes out again"),
        ([2.0, 2.1, 2.2], "it does not come out here"),
        (None, "states no gain"),
    ],
)
def test_a_files_claim_is_held_against_the_measurement(claimed: Any, said: str) -> None:
    found = dataclasses.replace(verification(), claim={"gain_ratio": claimed})
    assert said in verification_text(found, "gpu")
