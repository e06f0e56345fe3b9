"""Settings as points, and records as evidence."""

import math

import numpy as np
import pytest
from model_cases import ENCODER, MICRO, THROUGHPUT, record_of, setting
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from autotune.models.evidence import Encoder, Evidence, least_peak
from autotune.objective import TrialState


def test_numbers_lie_between_0_and_1_on_their_own_scale() -> None:
    points = ENCODER.batch([setting(1), setting(32, reshard=False)]).points
    assert points.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert ENCODER.batch([setting(4)]).points[0, 0] == pytest.approx(math.log(4) / math.log(32))


def test_a_logarithmic_number_has_its_reciprocal_among_the_features() -> None:
    features = ENCODER.batch([setting(4)]).features
    assert features[0].tolist() == [1.0, pytest.approx(0.4), 1.0, 0.25]


def test_two_different_words_are_one_apart() -> None:
    encoder = Encoder({"a": CategoricalDistribution(["x", "y", "z"])})
    points = encoder.batch([{"a": "x"}, {"a": "z"}]).points
    assert np.linalg.norm(points[0] - points[1]) == pytest.approx(1.0)


def test_a_knob_with_one_value_has_no_column() -> None:
    encoder = Encoder({"a": IntDistribution(3, 3), "b": FloatDistribution(0.0, 2.0)})
    assert encoder.batch([{"a": 3, "b": 1.0}]).points.tolist() == [[0.5]]


def test_a_record_gives_only_what_was_measured() -> None:
    record = record_of(TrialState.COMPLETE, {THROUGHPUT: 7.0, "exposed_comm_ratio": None})
    evidence = Evidence.of(record, [THROUGHPUT, "exposed_comm_ratio", "kl_std"])
    assert evidence.metrics == {THROUGHPUT: 7.0}
    assert evidence.setting[MICRO] == 8


def test_a_failed_record_gives_nothing_but_its_state() -> None:
    record = record_of(TrialState.OUT_OF_MEMORY, {THROUGHPUT: 7.0})
    evidence = Evidence.of(record, [THROUGHPUT])
    assert (evidence.state, evidence.metrics) == (TrialState.OUT_OF_MEMORY, {})


def test_a_failed_allocation_says_how_much_memory_a_trial_needed_at_least() -> None:
    cause = (
        "in phase update_actor: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        "30.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 512.00 MiB is free. Including "
        "non-PyTorch memory, this process has 79.40 GiB memory in use."
    )
    assert least_peak(cause) == pytest.approx((80 - 0.5 + 30) / 80)
    assert least_peak("DefaultCPUAllocator: can't allocate memory") is None
    assert least_peak("CUDA out of memory. Tried to allocate 2 GiB") is None
