"""The sampler on a real space: what it draws for a trial, and what it never draws."""

import functools

import optuna
import pytest
from optuna.trial import Trial
from search_cases import SMALL_JOB

from autotune.domain import make_domain
from autotune.models.promise import Goal
from autotune.sampler import SETTING, FeasibleSampler, ask_parameters
from autotune.settings import SearchConfig
from autotune.space import Space
from autotune.verl_bridge.overrides import compose_base, leaves, sources
from autotune.verl_bridge.rules import job_rules

MICRO, CLIP = "ppo_micro_batch_size_per_gpu", "clip_ratio"
SETTINGS = SearchConfig(
    sampler="tpe", num_trials=20, max_concurrent=1, seed=5, num_startup_trials=2
)

GOAL = Goal(objectives=("throughput_tokens_per_s_per_gpu",), limits={})


@functools.cache
def small_space() -> Space:
    """16 sequences a rank: of the micro-batch sizes 1 to 16, five are divisors; clip_ratio is
    continuous; a knob with one value, the base job's, cannot vary."""
    config = compose_base("ppo_trainer", list(SMALL_JOB))
    flat = leaves(config)
    domains = {
        MICRO: make_domain(MICRO, low=1, high=16, log=True),
        CLIP: make_domain(CLIP, low=0.1, high=0.3),
        "reshard_after_forward": make_domain("reshard_after_forward", choices=[True]),
    }
    return Space(domains, flat, job_rules(flat), sources(config))


def ask(study: optuna.Study) -> Trial:
    trial = study.ask()
    ask_parameters(trial, small_space())
    return trial


def make_study(settings: SearchConfig = SETTINGS) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction="maximize", sampler=FeasibleSampler(small_space(), settings, GOAL)
    )


def test_draws_are_valid_and_stored_as_a_whole_with_the_trial() -> None:
    study = make_study()
    for index in range(12):
        trial = ask(study)
        assert trial.params == study.trials[index].user_attrs[SETTING]
        assert small_space().is_valid(trial.params)
        study.tell(trial, float(index))


def test_a_trial_interrupted_while_asked_gets_the_rest_of_its_setting() -> None:
    study = make_study()
    interrupted = study.ask()
    interrupted.suggest_int(MICRO, 1, 16, log=True)
    stored = study.trials[0].user_attrs[SETTING]
    again = Trial(study, study.trials[0]._trial_id)
    ask_parameters(again, small_space())
    assert again.params == stored


def test_what_is_drawn_depends_on_the_number_and_the_seed_alone() -> None:
    first, second = make_study(), make_study()
    for study in (first, second):
        for index in range(4):
            study.tell(ask(study), float(index))
    second.sampler = FeasibleSampler(small_space(), SETTINGS, GOAL)
    assert ask(first).params == ask(second).params


def test_after_the_random_start_draws_gather_around_the_best() -> None:
    study = make_study()
    for _ in range(30):
        trial = ask(study)
        study.tell(trial, -abs(trial.params[CLIP] - 0.25))
    # random draws between 0.1 and 0.3 are 0.0625 away on average
    late = [trial.params[CLIP] for trial in study.trials[-10:]]
    assert sum(abs(value - 0.25) for value in late) / len(late) < 0.045


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_failed_trial_may_be_asked_again_and_a_running_one_may_not(sampler: str) -> None:
    study = make_study(
        SearchConfig(sampler=sampler, num_trials=9, max_concurrent=2, seed=5, num_startup_trials=2)
    )
    running, failed = ask(study), ask(study)
    study.tell(failed, state=optuna.trial.TrialState.FAIL)
    sampler_of_study = study.sampler
    assert isinstance(sampler_of_study, FeasibleSampler)
    asked = sampler_of_study.asked(study)
    assert small_space().key(running.params) in asked
    assert small_space().key(failed.params) not in asked
