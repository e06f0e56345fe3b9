"""The regression: exact where it must be, honest about what it does not know."""

import numpy as np
import pytest

from autotune.models.gaussian_process import GaussianProcess, Prior, usual_length

PRIOR = Prior(amplitude=0.5, noise=0.02, coefficient=np.array([1.0, 0.5]), length=0.5)


def features(points: np.ndarray) -> np.ndarray:
    return np.hstack([np.ones((len(points), 1)), points])


def fit(points: np.ndarray, values: np.ndarray) -> GaussianProcess:
    return GaussianProcess(points, features(points), values, PRIOR)


def grid(count: int) -> np.ndarray:
    return np.linspace(0, 1, count)[:, None]


def test_a_smooth_function_is_predicted_between_its_observations() -> None:
    points, others = grid(9), grid(8)
    process = fit(points, np.sin(4 * points[:, 0]))
    mean, spread = process.predict(others, features(others))
    assert np.abs(mean - np.sin(4 * others[:, 0])).max() < 0.03
    assert (spread < 0.1).all()


def test_the_spread_grows_away_from_the_observations() -> None:
    points = np.array([[0.0], [0.1], [0.2]])
    process = fit(points, np.array([0.0, 0.1, 0.2]))
    _, spread = process.predict(grid(2), features(grid(2)))
    assert spread[1] > 3 * spread[0]


def test_repetitions_narrow_the_spread_and_average_the_value() -> None:
    once, often = np.zeros((1, 1)), np.zeros((8, 1))
    values = np.array([0.10, 0.14, 0.06, 0.11, 0.09, 0.13, 0.07, 0.10])
    _, spread_once = fit(once, values[:1]).predict(once, features(once))
    mean, spread_often = fit(often, values).predict(once, features(once))
    assert spread_often[0] < spread_once[0]
    assert mean[0] == pytest.approx(0.1, abs=0.01)


def test_noise_is_learned_from_repetitions() -> None:
    points = np.repeat(grid(4), 6, axis=0)
    noise = np.random.default_rng(0).normal(scale=0.2, size=len(points))
    assert fit(points, points[:, 0] + noise).noise > 0.08


def test_the_gradient_of_the_loss_is_that_of_differences() -> None:
    points = np.random.default_rng(1).random((7, 1))
    process = fit(points, np.sin(5 * points[:, 0]))
    theta = process._center + 0.2
    _, gradient = process._loss(theta)
    step = 1e-6 * np.eye(len(theta))
    differences = [(process._loss(theta + d)[0] - process._loss(theta - d)[0]) / 2e-6 for d in step]
    assert gradient == pytest.approx(differences, abs=1e-5)


def test_a_space_without_columns_has_one_value() -> None:
    points = np.zeros((3, 0))
    length = usual_length(points)
    prior = Prior(amplitude=0.5, noise=0.02, coefficient=np.array([1.0]), length=length)
    process = GaussianProcess(points, np.ones((3, 1)), np.array([0.9, 1.0, 1.1]), prior)
    mean, _ = process.predict(points[:1], np.ones((1, 1)))
    assert mean[0] == pytest.approx(1.0, abs=0.05)
