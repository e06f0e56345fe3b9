"""The doubts about a setting that is exported."""

import pytest
from test_verification import verification
from verify_cases import record

from autotune.objective import TrialState
from autotune.provenance import doubts_of
from autotune.verification import Decision


def test_a_proven_setting_leaves_no_doubt() -> None:
    found = verification()
    assert doubts_of(record(3, 150.0), found, found.of(3)) == []


@pytest.mark.parametrize("decision", [Decision.NOT_PROVEN, Decision.WORSE])
def test_what_the_verification_found_is_the_doubt(decision: Decision) -> None:
    found = verification(decision)
    assert doubts_of(record(3, 150.0), found, found.of(3))[0].startswith("The verification says: ")


def test_a_setting_that_was_not_among_the_verified_is_doubtful() -> None:
    found = verification()
    assert doubts_of(record(5, 150.0), found, found.of(5)) == [
        "The verification compared other settings."
    ]


def test_a_failed_trial_says_its_cause() -> None:
    failed = record(2, None, state=TrialState.CRASH, cause="it broke")
    assert doubts_of(failed, None, None)[0] == "Trial 2 is not feasible: it broke."
