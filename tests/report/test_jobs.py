"""How starts, confirmations and recoveries read."""

from report_cases import failed, trial

from autotune.objective import JobOutcome, Recovery, Start, TrialState
from autotune.report.jobs import (
    TERMS,
    recovered_lines,
    repeated_lines,
    start_legend,
    startup_line,
)


def test_starts_are_told_apart() -> None:
    records = [
        trial(0, start=Start.COLD, metrics={"startup_s": 60.0}),
        trial(1, start=Start.HOT, metrics={"startup_s": 1.0}),
        trial(2, start=Start.HOT, metrics={"startup_s": 3.0}),
        trial(3, start=Start.ENGINE, metrics={"startup_s": 9.0}),
        failed(4),
    ]
    assert startup_line(records[:4]) == (
        "Start-up (median): 60 s in a fresh job (1), 9 s live with engines rebuilt (1), "
        "2 s live with engines kept (2)."
    )


def test_without_a_start_there_is_no_line() -> None:
    assert startup_line([]) == ""


def test_a_refuted_failure_is_told_with_its_outcome() -> None:
    job = JobOutcome(start=Start.HOT, state=TrialState.OUT_OF_MEMORY, cause="no room")
    (line,) = repeated_lines([trial(0), trial(5, other_jobs=[job])])
    assert line == (
        "trial 5: out_of_memory live with engines kept (no room), run again: complete"
    )


def test_a_recovered_trial_names_its_rule_and_what_was_asked() -> None:
    asked = failed(5)
    recovery = Recovery(rule="memory: param_offload=true", overrides=["x=true"], asked=asked)
    first = JobOutcome(start=Start.COLD, state=asked.state, cause=asked.cause)
    recovered = trial(5, recovery=recovery, other_jobs=[first])
    assert recovered_lines([recovered]) == [
        "trial 5: out_of_memory as asked, ran with the rule memory: param_offload=true"
    ]
    assert repeated_lines([recovered]) == []


def test_a_rule_that_did_not_help_is_told_too() -> None:
    job = JobOutcome(start=Start.COLD, state=TrialState.NAN, cause="still nan", rule="nan: x=1")
    (line,) = recovered_lines([failed(6, TrialState.NAN, other_jobs=[job])])
    assert line == "trial 6: nan; the rule nan: x=1 did not help: nan (still nan)"


def test_every_kind_of_start_is_explained() -> None:
    for start in Start:
        assert f"{start.value}: {TERMS[start.value]}" in start_legend()
