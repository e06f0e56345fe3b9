"""The step-time model: computation and exposed communication apart."""

import numpy as np
import pytest
from model_cases import ENCODER, EXPOSED, THROUGHPUT, every_setting, setting, trial

from autotune.models.evidence import Evidence
from autotune.models.step_time import StepTimeModel
from autotune.objective import TrialState


def parts(size: int, reshard: bool) -> tuple[float, float]:
    """Computation and exposed communication of one step, in seconds."""
    return 1.0 + 4.0 / size, (1.0 if reshard else 0.5) / size


def measured(size: int, reshard: bool = True, **changes: float) -> Evidence:
    rest, exposed = parts(size, reshard)
    metrics = {THROUGHPUT: 1 / (rest + exposed), EXPOSED: exposed / (rest + exposed)}
    return trial(size, reshard, **{**metrics, **changes})


def model(metric: str = THROUGHPUT) -> StepTimeModel:
    seen = [(1, True), (2, False), (4, True), (16, False), (32, True), (8, False)]
    return StepTimeModel(ENCODER, [measured(size, reshard) for size, reshard in seen], metric)


def test_times_of_unseen_settings_are_predicted() -> None:
    settings = every_setting()
    truth = [np.log(sum(parts(s["ppo_micro_batch_size_per_gpu"], s["reshard_after_forward"])))
             for s in settings]
    found = model().predict(ENCODER.batch(settings))
    assert np.abs(found.log_time - truth).max() < 0.12


def test_the_share_of_communication_is_predicted_apart() -> None:
    found = model().predict(ENCODER.batch([setting(1, reshard=False)]))
    assert found.log_odds_exposed is not None
    assert 1 / (1 + np.exp(-found.log_odds_exposed[0])) == pytest.approx(0.5 / 5.5, abs=0.05)


def test_without_measured_communication_the_step_is_one_part() -> None:
    trials = [trial(size, **{THROUGHPUT: float(size)}) for size in (1, 2, 4)]
    found = StepTimeModel(ENCODER, trials, THROUGHPUT).predict(ENCODER.batch([setting(2)]))
    assert found.log_odds_exposed is None
    assert found.log_time[0] == pytest.approx(-np.log(2), abs=0.1)


def test_a_step_in_seconds_is_a_time_already() -> None:
    trials = [trial(size, step_s=8.0 / size) for size in (1, 2, 4)]
    found = StepTimeModel(ENCODER, trials, "step_s").predict(ENCODER.batch([setting(2)]))
    assert found.log_time[0] == pytest.approx(np.log(4), abs=0.1)


def test_a_trial_that_was_stopped_early_counts_by_its_time() -> None:
    stopped = trial(32, state=TrialState.STOPPED, **{THROUGHPUT: 0.01})
    trials = [measured(1), measured(4), stopped]
    found = StepTimeModel(ENCODER, trials, THROUGHPUT).predict(ENCODER.batch([setting(32)]))
    assert found.log_time[0] > np.log(10)
