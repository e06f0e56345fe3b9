"""The search: what it suggests, what the study hears, and that no kill loses a finished trial."""

import dataclasses
import functools
import itertools
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from local_ray import local_ray
from optuna.trial import TrialState as StudyState
from postgres import postgres, programs
from ray import tune
from ray.tune.search import Searcher
from search_cases import SMALL_JOB
from small_disk import disk_of

from autotune.domain import make_domain
from autotune.errors import SweepError
from autotune.objective import (
    RECORD,
    START,
    STEP_RECORD,
    Recovery,
    Start,
    StepKind,
    StepRecord,
    TrialRecord,
    TrialState,
    evaluate,
    pareto_front,
)
from autotune.search import SweepSearcher
from autotune.settings import ConstraintConfig, SearchConfig
from autotune.space import Space
from autotune.store import SweepStore
from autotune.verl_bridge.overrides import compose_base, leaves, sources
from autotune.verl_bridge.rules import job_rules

MICRO, SCORING = "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"
THROUGHPUT = "throughput_tokens_per_s_per_gpu"
CONSTRAINTS = [
    ConstraintConfig(metric="peak_memory_ratio", max=0.5),
    ConstraintConfig(metric="exposed_comm_ratio", max=0.2),
]

MICRO_SIZES, SCORING_SIZES = [1, 2, 3, 4, 6, 8, 16], [2, 4, 8]
NUM_VALID = 5 * 3 * 2
SLOW_GP = pytest.param("gp", marks=pytest.mark.slow)

Outcome = Callable[[dict[str, Any]], TrialRecord]


@functools.cache
def small_space() -> Space:
    config = compose_base("ppo_trainer", list(SMALL_JOB))
    flat = leaves(config)
    choices: dict[str, list[Any]] = {
        MICRO: MICRO_SIZES,
        SCORING: SCORING_SIZES,
        "reshard_after_forward": [True, False],
    }
    domains = {name: make_domain(name, choices=values) for name, values in choices.items()}
    return Space(domains, flat, job_rules(flat), sources(config))


def record_of(suggestion: dict[str, Any], **changes: Any) -> TrialRecord:
    """Measure a setting: throughput and memory grow with the micro-batch; the two sizes of
    micro-batch must be near each other; communication is not measured."""
    setting = suggestion["setting"]
    metrics = {
        THROUGHPUT: 100.0 * setting[MICRO] ** 0.5 - abs(setting[MICRO] - setting[SCORING]),
        "peak_memory_ratio": setting[MICRO] / 12,
        "exposed_comm_ratio": None,
    }
    violations, feasible = evaluate(metrics, CONSTRAINTS)
    values: dict[str, Any] = {
        "number": suggestion["number"],
        "state": TrialState.COMPLETE,
        "params": setting,
        "setting": setting,
        "overrides": suggestion["overrides"],
        "metrics": metrics,
        "absent": {"exposed_comm_ratio": "no profiled step finished"},
        "violations": violations,
        "feasible": feasible,
        "cause": "",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:00+00:00",
        "retries": 0,
    }
    return TrialRecord(**{**values, **changes})


def failed_record(suggestion: dict[str, Any], state: TrialState) -> TrialRecord:
    return record_of(
        suggestion, state=state, metrics={}, violations={}, feasible=False, cause="it broke"
    )


def measure(suggestion: dict[str, Any]) -> TrialRecord:
    """Measure a setting; the largest micro-batch runs out of memory."""
    if suggestion["setting"][MICRO] == 16:
        return failed_record(suggestion, TrialState.OUT_OF_MEMORY)
    return record_of(suggestion)


def settings(**changes: Any) -> SearchConfig:
    values: dict[str, Any] = {
        "sampler": "tpe",
        "num_trials": 6,
        "max_concurrent": 1,
        "seed": 3,
        "num_startup_trials": 3,
        "confirm_ratio": 0.0,
    }
    return SearchConfig(**{**values, **changes})


def make_searcher(
    store: SweepStore,
    objective: str = THROUGHPUT,
    max_retries: int = 1,
    trade_off: str | None = None,
    steps_per_trial: int = 0,
    **changes: Any,
) -> SweepSearcher:
    return SweepSearcher(
        small_space(),
        settings(**changes),
        objective=objective,
        constraints=CONSTRAINTS,
        records=store,
        max_retries=max_retries,
        trade_off=trade_off,
        steps_per_trial=steps_per_trial,
    )


def suggest(searcher: SweepSearcher, trial_id: str = "id") -> dict[str, Any]:
    suggestion = searcher.suggest(trial_id)
    assert isinstance(suggestion, dict)
    return suggestion


def complete(searcher: SweepSearcher, record: TrialRecord, trial_id: str = "id") -> None:
    searcher.on_trial_complete(trial_id, {RECORD: json.dumps(record.to_dict())})


def drive(searcher: SweepSearcher, outcome: Outcome = measure) -> list[dict[str, Any]]:
    """Run a search one trial at a time until it finishes, and return its suggestions."""
    suggestions = []
    while isinstance(suggestion := searcher.suggest("id"), dict):
        suggestions.append(suggestion)
        complete(searcher, outcome(suggestion))
    assert suggestion == Searcher.FINISHED
    return suggestions


def visited(store: SweepStore) -> list[tuple[int, Any]]:
    return [(record.number, record.setting) for record in store.read_trials()]


def states(searcher: SweepSearcher) -> list[StudyState]:
    return [trial.state for trial in searcher.study.get_trials()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SweepStore]:
    store = SweepStore(tmp_path / "sweep")
    with store.locked():
        yield store


# What is suggested.


def test_nothing_is_to_follow_while_the_last_trials_run_unless_one_is_lost(
    store: SweepStore,
) -> None:
    searcher = make_searcher(store, num_trials=2, max_concurrent=2)
    assert searcher.has_next()
    first, second = suggest(searcher, "a"), suggest(searcher, "b")
    complete(searcher, measure(first), "a")
    assert not searcher.has_next()
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("b", None, error=True)
    assert searcher.has_next()
    assert suggest(searcher, "d")["number"] == second["number"]


def test_nothing_follows_a_request_to_stop(store: SweepStore) -> None:
    searcher = make_searcher(store, max_concurrent=2)
    complete(searcher, measure(suggest(searcher, "a")), "a")
    suggest(searcher, "b")
    assert searcher.has_next()
    searcher.close()
    assert not searcher.has_next()


def test_the_baseline_comes_first_and_overrides_nothing(store: SweepStore) -> None:
    suggestion = suggest(make_searcher(store))
    assert suggestion == {
        "number": 0,
        "attempt": 0,
        "setting": {MICRO: 2, SCORING: 2, "reshard_after_forward": True},
        "params": {MICRO: 2, SCORING: 2, "reshard_after_forward": True},
        "overrides": [],
    }


@pytest.mark.parametrize("sampler", ["model", "tpe", SLOW_GP, "random"])
def test_every_suggestion_is_valid_and_new(store: SweepStore, sampler: str) -> None:
    suggestions = drive(make_searcher(store, sampler=sampler, num_trials=10))
    assert [suggestion["number"] for suggestion in suggestions] == list(range(10))
    assert all(small_space().is_valid(suggestion["setting"]) for suggestion in suggestions)
    assert len({small_space().key(suggestion["setting"]) for suggestion in suggestions}) == 10


@pytest.mark.parametrize("sampler", ["model", "tpe", SLOW_GP, "random"])
def test_equal_seeds_give_equal_searches(tmp_path: Path, sampler: str) -> None:
    runs = []
    for name in ("a", "b"):
        store = SweepStore(tmp_path / name)
        with store.locked():
            runs.append(drive(make_searcher(store, sampler=sampler, num_trials=7)))
    assert runs[0] == runs[1]


def test_another_seed_gives_another_search(tmp_path: Path) -> None:
    runs = []
    for seed in (1, 2):
        store = SweepStore(tmp_path / str(seed))
        with store.locked():
            runs.append(drive(make_searcher(store, seed=seed)))
    assert runs[0] != runs[1]


def test_an_exhausted_space_ends_the_search(store: SweepStore) -> None:
    suggestions = drive(make_searcher(store, sampler="tpe", num_trials=100))
    assert len(suggestions) == NUM_VALID


def test_no_more_run_at_once_than_allowed(store: SweepStore) -> None:
    searcher = make_searcher(store, max_concurrent=2)
    suggest(searcher, "a")
    last = suggest(searcher, "b")
    assert searcher.suggest("c") is None
    complete(searcher, measure(last), "b")
    assert isinstance(searcher.suggest("c"), dict)


def test_the_search_waits_for_running_trials_before_it_finishes(store: SweepStore) -> None:
    searcher = make_searcher(store, num_trials=1)
    baseline = suggest(searcher)
    assert searcher.suggest("b") is None
    complete(searcher, measure(baseline))
    assert searcher.suggest("b") == Searcher.FINISHED


def test_trials_that_run_at_once_differ(store: SweepStore) -> None:
    searcher = make_searcher(store, max_concurrent=NUM_VALID, num_trials=NUM_VALID)
    running = [suggest(searcher, str(index)) for index in range(NUM_VALID)]
    assert len({small_space().key(suggestion["setting"]) for suggestion in running}) == NUM_VALID


@pytest.mark.parametrize("sampler", ["model", "tpe", SLOW_GP])
def test_the_sampler_works_while_trials_run(store: SweepStore, sampler: str) -> None:
    searcher = make_searcher(store, sampler=sampler, max_concurrent=3, num_trials=9)
    running = {str(index): suggest(searcher, str(index)) for index in range(3)}
    for index in range(3, 9):
        trial_id, suggestion = running.popitem()
        complete(searcher, measure(suggestion), trial_id)
        running[str(index)] = suggest(searcher, str(index))
    for trial_id, suggestion in running.items():
        complete(searcher, measure(suggestion), trial_id)
    assert len({small_space().key(record.setting) for record in store.read_trials()}) == 9
    assert searcher.suggest("last") == Searcher.FINISHED


@pytest.mark.parametrize("sampler", ["model", "tpe", SLOW_GP])
def test_the_sampler_finds_the_best_feasible_setting(store: SweepStore, sampler: str) -> None:
    # feasible up to micro-batch 4 (4/12 of the memory); 6 is invalid, 8 breaks the limit of 0.5
    drive(make_searcher(store, sampler=sampler, num_trials=16))
    feasible = [record for record in store.read_trials() if record.feasible]
    best = max(feasible, key=lambda record: record.metrics[THROUGHPUT] or 0.0)
    assert (best.setting[MICRO], best.setting[SCORING]) == (4, 4)


# What the study hears.


def test_every_trial_bears_all_constraints_in_one_order(store: SweepStore) -> None:
    searcher = make_searcher(store, num_trials=12)
    drive(searcher)
    assert any(record.state is TrialState.OUT_OF_MEMORY for record in store.read_trials())
    names = {tuple(trial.constraints) for trial in searcher.study.get_trials()}
    assert names == {("peak_memory_ratio", "exposed_comm_ratio", "completed")}


def test_constraints_are_relative_violations_and_unmeasured_ones_are_zero(
    store: SweepStore,
) -> None:
    searcher = make_searcher(store, num_trials=1)
    drive(searcher)
    # the baseline's memory: 2/12 against a limit of 0.5
    assert searcher.study.get_trials()[0].constraints == {
        "peak_memory_ratio": pytest.approx((2 / 12 - 0.5) / 0.5),
        "exposed_comm_ratio": 0.0,
        "completed": -1.0,
    }


@pytest.mark.parametrize(
    "state", [TrialState.OUT_OF_MEMORY, TrialState.NAN, TrialState.HANG, TrialState.CRASH]
)
def test_a_failed_trial_is_infeasible_with_the_worst_value_measured(
    store: SweepStore, state: TrialState
) -> None:
    searcher = make_searcher(store, num_trials=4)
    drive(
        searcher,
        lambda suggestion: (
            failed_record(suggestion, state) if suggestion["number"] == 3 else record_of(suggestion)
        ),
    )
    *others, last = searcher.study.get_trials()
    assert last.state is StudyState.COMPLETE
    assert last.value == min(trial.value for trial in others if trial.value is not None)
    assert last.constraints["completed"] == 1.0
    assert last.user_attrs["objective_imputed"] is True
    assert (last.user_attrs["state"], last.user_attrs["cause"]) == (state.value, "it broke")


def test_of_a_recovered_trial_the_study_hears_what_the_setting_itself_came_to(
    store: SweepStore,
) -> None:
    searcher = make_searcher(store)
    complete(searcher, measure(suggest(searcher)))
    suggestion = suggest(searcher)
    asked = failed_record(suggestion, TrialState.OUT_OF_MEMORY)
    recovery = Recovery(rule="memory: x=true", overrides=["x=true"], asked=asked)
    complete(searcher, dataclasses.replace(record_of(suggestion), recovery=recovery))
    trial = searcher.study.get_trials()[1]
    assert trial.user_attrs["recovery"] == "memory: x=true"
    assert trial.user_attrs["state"] == "out_of_memory"
    assert trial.constraints["completed"] == 1.0
    assert store.read_trials()[1].state is TrialState.COMPLETE


def test_a_failed_first_trial_has_the_value_zero(store: SweepStore) -> None:
    searcher = make_searcher(store)
    complete(searcher, failed_record(suggest(searcher), TrialState.NAN))
    assert searcher.study.get_trials()[0].value == 0.0


def test_the_worst_of_a_minimised_objective_is_the_largest(store: SweepStore) -> None:
    searcher = make_searcher(store, objective="step_s")
    assert searcher.study.direction is optuna.study.StudyDirection.MINIMIZE
    for step_s in (4.0, 9.0, 6.0):
        complete(searcher, record_of(suggest(searcher), metrics={"step_s": step_s}))
    complete(searcher, failed_record(suggest(searcher), TrialState.HANG))
    assert searcher.study.get_trials()[3].value == 9.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_completed_trial_without_objective_is_told_as_failed(
    store: SweepStore, value: float | None
) -> None:
    searcher = make_searcher(store)
    complete(searcher, record_of(suggest(searcher), metrics={THROUGHPUT: value}))
    [trial] = searcher.study.get_trials()
    assert (trial.value, trial.constraints["completed"]) == (0.0, 1.0)


def test_no_number_in_the_journal_is_infinite_or_nan(store: SweepStore) -> None:
    drive(make_searcher(store, num_trials=12))
    text = (store.folder / "study.journal").read_text()
    assert "NaN" not in text and "Infinity" not in text


# Repetitions, hypotheses, early ends.


def test_the_last_share_of_the_budget_measures_the_best_settings_again(store: SweepStore) -> None:
    suggestions = drive(make_searcher(store, sampler="model", num_trials=10, confirm_ratio=0.3))
    keys = [small_space().key(suggestion["setting"]) for suggestion in suggestions]
    assert len(set(keys[:7])) == 7
    assert set(keys[7:]) <= set(keys[:7])
    feasible = [record for record in store.read_trials()[:7] if record.feasible]
    best = max(feasible, key=lambda record: record.metrics[THROUGHPUT] or 0.0)
    assert small_space().key(best.setting) in keys[7:]


def test_repetitions_follow_when_the_space_is_exhausted(store: SweepStore) -> None:
    suggestions = drive(make_searcher(store, num_trials=100, confirm_ratio=0.04))
    assert len(suggestions) == NUM_VALID + 4


def test_hypotheses_are_tried_right_after_the_baseline_and_invalid_ones_are_not(
    store: SweepStore,
) -> None:
    first = [{MICRO: 8, SCORING: 8}, {MICRO: 2}, {MICRO: 4}]
    searcher = make_searcher(store, num_trials=4, first=first)
    settings_of = [suggestion["setting"] for suggestion in drive(searcher)]
    assert [(setting[MICRO], setting[SCORING]) for setting in settings_of[:3]] == [
        (2, 2),
        (8, 8),
        (4, 2),
    ]


def test_the_search_stops_when_no_more_is_expected_and_says_so(store: SweepStore) -> None:
    searcher = make_searcher(
        store, sampler="model", num_trials=25, min_gain_ratio=0.3, confirm_ratio=0.1
    )
    suggestions = drive(searcher)
    assert 8 + 2 <= len(suggestions) < 25
    assert searcher.stop_reason == (
        f"Stopped after {len(suggestions)} of 25 trials: less than 30 % expected from one more."
    )
    assert searcher.is_done


def test_a_spent_budget_ends_the_search_without_repetitions(store: SweepStore) -> None:
    def one_gpu_hour(suggestion: dict[str, Any]) -> TrialRecord:
        record = record_of(suggestion)
        return record_of(suggestion, metrics={**record.metrics, "gpu_seconds": 3600.0})

    searcher = make_searcher(store, num_trials=20, max_gpu_hours=3.5, confirm_ratio=0.2)
    assert len(drive(searcher, one_gpu_hour)) == 3
    assert searcher.stop_reason is not None and "3 of 3.5 GPU hours are spent" in (
        searcher.stop_reason
    )


def step_result(suggestion: dict[str, Any], step: int, speed: float) -> dict[str, Any]:
    kind = StepKind.WARMUP if step == 1 else StepKind.MEASURED
    record = StepRecord(
        number=suggestion["number"],
        attempt=suggestion["attempt"],
        step=step,
        kind=kind,
        metrics={"perf/throughput": speed, "timing_s/step": 1000.0 / speed},
    )
    return {
        STEP_RECORD: json.dumps(record.to_dict()),
        START: Start.HOT.value,
        "time_total_s": 10.0 * step,
    }


def test_a_trial_that_is_stopped_early_is_kept_with_what_it_measured(store: SweepStore) -> None:
    searcher = make_searcher(store, steps_per_trial=6)
    complete(searcher, record_of(suggest(searcher)))
    bad = suggest(searcher)
    causes = [searcher.note_step("id", step_result(bad, step, 20.0)) for step in (1, 2, 3)]
    assert causes[:2] == [None, None] and causes[2] is not None
    searcher.on_trial_complete("id", step_result(bad, 3, 20.0))
    record = store.read_trials()[1]
    assert (record.state, record.cause, record.feasible) == (TrialState.STOPPED, causes[2], False)
    assert (record.metrics[THROUGHPUT], record.start) == (20.0, Start.HOT)
    trial = searcher.study.get_trials()[1]
    assert (trial.state, trial.value) == (StudyState.COMPLETE, 20.0)
    assert trial.constraints["completed"] == -1.0
    assert suggest(searcher)["number"] == 2


def test_the_baseline_is_never_stopped(store: SweepStore) -> None:
    searcher = make_searcher(store, steps_per_trial=6)
    baseline = suggest(searcher)
    assert [searcher.note_step("id", step_result(baseline, s, 0.1)) for s in (1, 2, 3)] == (
        [None] * 3
    )


@pytest.mark.parametrize("state", [TrialState.CRASH, TrialState.HANG, TrialState.NAN])
def test_a_base_job_that_does_not_run_ends_the_sweep_whenever_it_is_started(
    store: SweepStore, state: TrialState
) -> None:
    for _ in range(2):
        searcher = make_searcher(store, num_trials=20)
        drive(searcher, lambda suggestion: failed_record(suggestion, state))
        assert searcher.failure is not None and state.value in searcher.failure
        assert len(store.read_trials()) == 1


def test_a_base_job_that_needs_too_much_memory_ends_nothing(store: SweepStore) -> None:
    searcher = make_searcher(store, num_trials=3)
    states = iter([TrialState.OUT_OF_MEMORY, TrialState.CRASH, TrialState.CRASH])
    drive(searcher, lambda suggestion: failed_record(suggestion, next(states)))
    assert searcher.failure is None and len(store.read_trials()) == 3


def test_two_objectives_give_a_study_of_two_and_a_front(store: SweepStore) -> None:
    searcher = make_searcher(
        store, sampler="model", num_trials=9, trade_off="peak_memory_ratio"
    )
    drive(searcher)
    assert [direction.name for direction in searcher.study.directions] == ["MAXIMIZE", "MINIMIZE"]
    front = pareto_front(store.read_trials(), (THROUGHPUT, "peak_memory_ratio"))
    speeds = [record.metrics[THROUGHPUT] or 0.0 for record in front]
    memory = [record.metrics["peak_memory_ratio"] or 0.0 for record in front]
    assert speeds == sorted(speeds, reverse=True) and memory == sorted(memory, reverse=True)
    assert len(front) > 1 and all(record.feasible for record in front)


def test_a_slow_trial_may_be_on_the_front_of_two_objectives_and_is_not_stopped(
    store: SweepStore,
) -> None:
    searcher = make_searcher(store, steps_per_trial=8, trade_off="peak_memory_ratio")
    complete(searcher, record_of(suggest(searcher)))
    bad = suggest(searcher)
    assert [searcher.note_step("id", step_result(bad, s, 20.0)) for s in (1, 2, 3)] == [None] * 3


def test_two_objectives_stop_when_neither_end_of_the_front_promises_more(
    store: SweepStore, tmp_path: Path
) -> None:
    rule: dict[str, Any] = {"sampler": "model", "num_trials": 25, "min_gain_ratio": 0.05}
    one = drive(make_searcher(store, **rule))
    both = SweepStore(tmp_path / "both")
    with both.locked():
        two = drive(make_searcher(both, trade_off="peak_memory_ratio", **rule))
    assert len(one) < len(two) < 25


def test_what_is_left_is_told_once_a_trial_has_finished(store: SweepStore) -> None:
    searcher = make_searcher(store, num_trials=5, steps_per_trial=6)
    assert searcher.cost_left() is None
    baseline = record_of(suggest(searcher))
    metrics = {**baseline.metrics, "gpu_seconds": 60.0, "startup_s": 30.0, "step_s": 5.0}
    complete(searcher, dataclasses.replace(baseline, metrics=metrics))
    left = searcher.cost_left()
    # four trials of 30 s and six steps of 5 s, on one GPU
    assert left is not None and left.hours == pytest.approx(4 * 60 / 3600)
    assert left.gpu_hours == pytest.approx(left.hours)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'studies.db'}"
        return
    found = programs()
    if found is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres(found) as url:
        yield url


def test_two_sweeps_share_one_database(database: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        store = SweepStore(tmp_path / name / "sweep")
        with store.locked():
            drive(make_searcher(store, num_trials=3, storage=database))
            assert len(drive(make_searcher(store, num_trials=5, storage=database))) == 2
            assert [record.number for record in store.read_trials()] == list(range(5))
        assert not (store.folder / "study.journal").exists()
    assert len(optuna.get_all_study_names(database)) == 2


def test_a_database_that_cannot_be_reached_is_an_error(store: SweepStore) -> None:
    with pytest.raises(SweepError, match="search.storage is .* cannot be reached"):
        make_searcher(store, storage="sqlite:////nowhere/at/all.db")


def test_eight_trials_at_once_differ_and_the_models_count_them(store: SweepStore) -> None:
    searcher = make_searcher(store, sampler="model", num_trials=17, max_concurrent=8)
    complete(searcher, measure(suggest(searcher, "first")), "first")
    running = {str(index): suggest(searcher, str(index)) for index in range(8)}
    assert searcher.suggest("ninth") is None
    for trial_id, suggestion in running.items():
        complete(searcher, measure(suggestion), trial_id)
    more = [suggest(searcher, str(index)) for index in range(8)]
    keys = {small_space().key(one["setting"]) for one in [*running.values(), *more]}
    assert len(keys) == 16


# Trials that are lost.


def test_a_lost_trial_is_tried_again_with_its_number_and_setting(store: SweepStore) -> None:
    searcher = make_searcher(store)
    first = suggest(searcher)
    searcher.on_trial_complete("id", error=True)
    assert suggest(searcher) == {**first, "attempt": 1}
    complete(searcher, measure(first))
    assert store.read_trials()[0].retries == 1


@pytest.mark.parametrize("result", [None, {}, {"done": True}])
def test_a_result_without_a_record_is_a_loss(
    store: SweepStore, result: dict[str, Any] | None
) -> None:
    searcher = make_searcher(store)
    first = suggest(searcher)
    searcher.on_trial_complete("id", result)
    assert suggest(searcher)["number"] == first["number"]
    assert store.read_trials() == []


def test_infrastructure_reported_by_the_trial_is_a_loss(store: SweepStore) -> None:
    searcher = make_searcher(store)
    complete(searcher, failed_record(suggest(searcher), TrialState.INFRASTRUCTURE))
    assert suggest(searcher)["attempt"] == 1
    assert searcher.study.get_trials()[0].user_attrs["losses"] == ["it broke"]


def test_a_trial_lost_too_often_is_given_up_and_does_not_count(store: SweepStore) -> None:
    searcher = make_searcher(store, num_trials=2, max_retries=1)
    complete(searcher, measure(suggest(searcher)))
    for _ in range(2):
        suggest(searcher)
        searcher.on_trial_complete("id", error=True)
    assert states(searcher)[1] is StudyState.FAIL
    assert store.read_trials()[1].state is TrialState.INFRASTRUCTURE
    assert store.read_trials()[1].retries == 2
    assert suggest(searcher)["number"] == 2


def test_a_lost_baseline_ends_the_search_and_is_continued_by_the_next_run(
    store: SweepStore,
) -> None:
    searcher = make_searcher(store, max_retries=0)
    suggest(searcher)
    searcher.on_trial_complete("id", error=True)
    assert searcher.suggest("id") == Searcher.FINISHED
    assert searcher.failure == "the baseline was lost 1 times: its actor was lost"
    resumed = make_searcher(store)
    drive(resumed)
    assert [record.number for record in store.read_trials()] == list(range(6))
    assert states(resumed) == [StudyState.COMPLETE] * 6


def test_three_lost_trials_in_a_row_end_the_search(store: SweepStore) -> None:
    searcher = make_searcher(store, num_trials=10, max_retries=0)
    complete(searcher, measure(suggest(searcher)))
    for _ in range(3):
        suggest(searcher)
        searcher.on_trial_complete("id", error=True)
    assert searcher.suggest("id") == Searcher.FINISHED
    assert searcher.failure is not None and "3 trials in a row were lost" in searcher.failure


def test_a_record_that_cannot_be_written_ends_the_search(store: SweepStore) -> None:
    searcher = make_searcher(store)
    baseline = suggest(searcher)
    store.trials_path.mkdir()
    complete(searcher, measure(baseline))
    assert searcher.suggest("id") == Searcher.FINISHED
    assert searcher.failure is not None and "could not be written" in searcher.failure
    assert states(searcher) == [StudyState.RUNNING]


def test_an_unknown_trial_is_ignored(store: SweepStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make_searcher(store).on_trial_complete("stranger", error=True)
    assert "stranger" in caplog.text


# Resuming.


def test_a_closed_search_leaves_running_trials_for_the_next_run(store: SweepStore) -> None:
    searcher = make_searcher(store)
    complete(searcher, measure(suggest(searcher)))
    interrupted = suggest(searcher)
    searcher.close()
    assert searcher.suggest("other") is None
    searcher.on_trial_complete("id", error=True)
    assert searcher.suggest("other") == Searcher.FINISHED
    assert suggest(make_searcher(store)) == {**interrupted, "attempt": 1}


def test_all_trials_that_ran_when_the_driver_died_are_continued(store: SweepStore) -> None:
    before = make_searcher(store, max_concurrent=3)
    running = [suggest(before, str(index)) for index in range(3)]
    complete(before, measure(running[1]), "1")
    after = make_searcher(store, max_concurrent=3)
    continued = [suggest(after, str(index)) for index in range(3)]
    assert [suggestion["number"] for suggestion in continued] == [0, 2, 3]
    assert continued[1] == {**running[2], "attempt": 1}


def test_finished_trials_of_earlier_runs_count(store: SweepStore) -> None:
    drive(make_searcher(store, num_trials=4))
    assert [suggestion["number"] for suggestion in drive(make_searcher(store))] == [4, 5]


def test_a_resumed_search_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, parts = SweepStore(tmp_path / "whole"), SweepStore(tmp_path / "parts")
    with whole.locked(), parts.locked():
        drive(make_searcher(whole, num_trials=8))
        for num_trials in (2, 5, 8):
            drive(make_searcher(parts, num_trials=num_trials))
        assert visited(parts) == visited(whole)


def test_a_lost_journal_is_made_again_from_the_records(store: SweepStore) -> None:
    searcher = make_searcher(store, num_trials=4)
    drive(searcher)
    values = [trial.value for trial in searcher.study.get_trials()]
    (store.folder / "study.journal").unlink()
    resumed = make_searcher(store)
    assert [trial.value for trial in resumed.study.get_trials()] == values
    assert [suggestion["number"] for suggestion in drive(resumed)] == [4, 5]


def test_a_gap_in_the_records_of_a_lost_journal_keeps_the_numbers(store: SweepStore) -> None:
    drive(make_searcher(store, num_trials=3))
    lines = store.trials_path.read_text().splitlines(keepends=True)
    store.trials_path.write_text(lines[0] + lines[2])
    (store.folder / "study.journal").unlink()
    searcher = make_searcher(store)
    assert states(searcher) == [StudyState.COMPLETE, StudyState.FAIL, StudyState.COMPLETE]
    assert [suggestion["number"] for suggestion in drive(searcher)] == [3, 4, 5, 6]


def test_a_finished_trial_without_a_record_is_an_error(store: SweepStore) -> None:
    drive(make_searcher(store, num_trials=2))
    store.trials_path.unlink()
    with pytest.raises(SweepError, match="Trial 0 finished, but trials.jsonl holds no record"):
        make_searcher(store)


def test_records_of_another_sweep_are_refused(tmp_path: Path) -> None:
    a, b = SweepStore(tmp_path / "a"), SweepStore(tmp_path / "b")
    with a.locked(), b.locked():
        drive(make_searcher(a, seed=1))
        drive(make_searcher(b, seed=2))
        b.trials_path.write_text(a.trials_path.read_text())
        with pytest.raises(SweepError, match="Trial 1 of trials.jsonl ran with"):
            make_searcher(b)


def test_a_broken_line_in_the_journal_is_an_error(store: SweepStore) -> None:
    drive(make_searcher(store, num_trials=2))
    with (store.folder / "study.journal").open("a") as file:
        file.write("not json\n{}\n")
    with pytest.raises(SweepError, match="study.journal cannot be read"):
        make_searcher(store)


def test_tune_snapshots_hold_which_trial_runs_what(store: SweepStore, tmp_path: Path) -> None:
    searcher = make_searcher(store)
    running = suggest(searcher, "tune-id")
    searcher.save(str(tmp_path / "snapshot"))
    resumed = make_searcher(store)
    resumed.restore(str(tmp_path / "snapshot"))
    complete(resumed, measure(running), "tune-id")
    assert [record.number for record in store.read_trials()] == [0]
    assert suggest(resumed)["number"] == 1


# Kills. A child process runs the search and is killed at the n-th write that it makes permanent.


# Baseline, a hypothesis, the sampler's own, and a repetition: every way in which a trial is asked.
KILLED: dict[str, Any] = {
    "sampler": "model",
    "num_trials": 5,
    "first": [{MICRO: 4, SCORING: 4}],
    "confirm_ratio": 0.2,
}
FULL = 3
"""Exit code of a child whose disk was full."""


def die_at_fsync(write: int, *, before: bool) -> None:
    """Have SIGKILL end this process at its n-th call of fsync."""
    fsync, calls = os.fsync, itertools.count(1)

    def fsync_or_die(fd: Any) -> None:
        is_last = next(calls) == write
        if not (is_last and before):
            fsync(fd)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync_or_die


def killed_at(folder: Path, write: int, *, before: bool, **changes: Any) -> bool:
    """Run a search in a child that dies at one of its writes; say whether it did."""
    child = os.fork()
    if child == 0:
        try:
            die_at_fsync(write, before=before)
            store = SweepStore(folder)
            with store.locked():
                drive(make_searcher(store, **{**KILLED, **changes}))
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.nightly
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.timeout(900)
def test_a_kill_at_any_write_loses_no_finished_trial(tmp_path: Path, before: bool) -> None:
    whole = SweepStore(tmp_path / "whole")
    with whole.locked():
        drive(make_searcher(whole, **KILLED))
    for write in range(1, 1000):
        store = SweepStore(tmp_path / str(write))
        if not killed_at(store.folder, write, before=before):
            break
        kept = store.read_trials()
        with store.locked():
            searcher = make_searcher(store, **KILLED)
            drive(searcher)
        assert store.read_trials()[: len(kept)] == kept
        assert visited(store) == visited(whole), f"killed at write {write}"
        assert states(searcher) == [StudyState.COMPLETE] * 5
    assert write > 30


@pytest.mark.slow
def test_twenty_kills_of_one_search_lose_no_finished_trial(tmp_path: Path) -> None:
    long = {**KILLED, "num_trials": 24}
    whole = SweepStore(tmp_path / "whole")
    with whole.locked():
        drive(make_searcher(whole, **long))
    store = SweepStore(tmp_path / "killed")
    rng = np.random.default_rng(0)
    for _ in range(20):
        kept = store.read_trials()
        write, before = int(rng.integers(1, 25)), bool(rng.integers(2))
        assert killed_at(store.folder, write, before=before, **long)
        assert store.read_trials()[: len(kept)] == kept
    with store.locked():
        searcher = make_searcher(store, **long)
        drive(searcher)
    assert 0 < len(kept) < 24
    assert visited(store) == visited(whole)
    assert states(searcher) == [StudyState.COMPLETE] * 24


def fills_up_at(folder: Path, num_bytes: int) -> bool:
    """Run a search in a child whose files cannot grow further; say whether one had to."""
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            store = SweepStore(folder)
            with store.locked(), disk_of(num_bytes):
                searcher = make_searcher(store, **KILLED)
                drive(searcher)
            exit_code = 0 if searcher.failure is None else FULL
        except OSError:
            # The study could not even be made.
            exit_code = FULL
        finally:
            os._exit(exit_code)
    _, status = os.waitpid(child, 0)
    assert os.WEXITSTATUS(status) in (0, FULL)
    return os.WEXITSTATUS(status) == FULL


def test_a_disk_that_fills_up_loses_no_finished_trial(tmp_path: Path) -> None:
    whole = SweepStore(tmp_path / "whole")
    with whole.locked():
        drive(make_searcher(whole, **KILLED))
    largest = max(path.stat().st_size for path in whole.folder.iterdir())
    for part in (0.01, 0.2, 0.4, 0.6, 0.8, 0.99):
        store = SweepStore(tmp_path / str(part))
        assert fills_up_at(store.folder, int(part * largest))
        kept = store.read_trials()
        with store.locked():
            searcher = make_searcher(store, **KILLED)
            drive(searcher)
        assert store.read_trials()[: len(kept)] == kept
        assert visited(store) == visited(whole), f"full at {part} of the largest file"
        assert states(searcher) == [StudyState.COMPLETE] * 5


@pytest.mark.parametrize("num_bytes", [1, 30])
def test_a_torn_line_of_the_journal_is_repaired(store: SweepStore, num_bytes: int) -> None:
    drive(make_searcher(store, num_trials=3))
    journal = store.folder / "study.journal"
    journal.write_bytes(journal.read_bytes()[:-num_bytes])
    searcher = make_searcher(store)
    drive(searcher)
    assert states(searcher) == [StudyState.COMPLETE] * 6
    assert make_searcher(store).num_finished == 6


# Inside Ray Tune itself.


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    with local_ray(num_cpus=2):
        yield


def make_trainable(folder: Path, texts: dict[str, str]) -> type[tune.Trainable]:
    """A trainable whose first job of trial 1 raises, of trial 2 reports no record."""

    class Playback(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.suggestion = config

        def step(self) -> dict[str, Any]:
            number, attempt = self.suggestion["number"], self.suggestion["attempt"]
            (folder / f"{number}-{attempt}").touch()
            if (number, attempt) == (1, 0):
                raise RuntimeError("the node is gone")
            if (number, attempt) == (2, 0):
                return {"done": True}
            setting = json.dumps(self.suggestion["setting"], sort_keys=True)
            text = texts[setting].replace('"number": -1', f'"number": {number}')
            return {"done": True, RECORD: text, "loss": float("nan")}

    return Playback


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_sweep_runs_inside_ray_tune(store: SweepStore, tmp_path: Path, ray_cluster: None) -> None:
    space = small_space()
    texts = {
        json.dumps(setting, sort_keys=True): json.dumps(
            measure({"number": -1, "setting": setting, "overrides": []}).to_dict()
        )
        for setting in space.iter_valid()
    }
    (tmp_path / "jobs").mkdir()
    searcher = make_searcher(store, num_trials=4, max_concurrent=2)
    tune.Tuner(
        make_trainable(tmp_path / "jobs", texts),
        tune_config=tune.TuneConfig(search_alg=searcher, num_samples=-1),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path / "tune"),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=0,
        ),
    ).fit()
    assert searcher.failure is None
    assert [record.number for record in store.read_trials()] == [0, 1, 2, 3]
    assert [record.retries for record in store.read_trials()] == [0, 1, 1, 0]
    assert states(searcher) == [StudyState.COMPLETE] * 4
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == [
        "0-0",
        "1-0",
        "1-1",
        "2-0",
        "2-1",
        "3-0",
    ]
