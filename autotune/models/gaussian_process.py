"""A small Gaussian-process regression: what a handful of noisy measurements say about other points.

Runs in the driver. Pure functions over arrays; units are the caller's. Covariance: a linear part
over given features (coefficients with normal priors) plus a Matern-5/2 part with one length scale
a column; hyperparameters by maximum a posteriori (Rasmussen and Williams, 2006, chapters 2 and 5).
Made for 2 to 200 observations of 1 to 40 columns, where priors matter more than data. Knows nothing
about settings, trials or constraints.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

Array = NDArray[np.float64]

_LENGTH_SPREAD, _SCALE_SPREAD, _NOISE_SPREAD = 0.7, 1.0, 0.7
"""Standard deviations of the log-normal priors of length scales, amplitude and noise."""
_MAX_ITERATIONS = 30
_JITTER = 1e-9
_SQRT5 = math.sqrt(5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is believed before the first observation."""

    amplitude: float
    """Standard deviation of what the linear part leaves open, in the unit of the values."""
    noise: float
    """Standard deviation of one observation, in the unit of the values."""
    coefficient: Array
    """Standard deviation of each coefficient of the linear part."""
    length: float
    """Length scale of every column."""


class GaussianProcess:
    """A regression fitted to observations; immutable afterwards.

    Args:
        points: One row an observation.
        features: Columns of the linear part at these rows; a constant is one of them.
        values: What was observed.
        prior: Its ``coefficient`` has one entry a column of ``features``.
    """

    def __init__(self, points: Array, features: Array, values: Array, prior: Prior) -> None:
        assert len(points) == len(features) == len(values) > 0
        self._points, self._features, self._prior = points, features, prior
        self._squares = (points[:, None, :] - points[None, :, :]) ** 2
        self._linear = (features * prior.coefficient**2) @ features.T
        self._values = values
        self._center = np.log(
            [*[prior.length] * points.shape[1], prior.amplitude, prior.noise]
        )
        self._spread = np.array(
            [*[_LENGTH_SPREAD] * points.shape[1], _SCALE_SPREAD, _NOISE_SPREAD]
        )
        self._theta = self._fit()
        self._factor = cholesky(self._covariance(self._theta)[0], lower=True)
        self._weights = cho_solve((self._factor, True), values)

    @property
    def noise(self) -> float:
        """Standard deviation of one observation."""
        return float(np.exp(self._theta[-1]))

    def predict(self, points: Array, features: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the noise-free value at other points."""
        lengths = np.exp(self._theta[:-2])
        squares = ((points[:, None, :] - self._points[None, :, :]) / lengths) ** 2
        variance = float(np.exp(2 * self._theta[-2]))
        scaled = features * self._prior.coefficient**2
        cross = scaled @ self._features.T + variance * _matern(squares.sum(axis=2))[0]
        reduced = solve_triangular(self._factor, cross.T, lower=True)
        total = (scaled * features).sum(axis=1) + variance
        left = np.maximum(total - (reduced**2).sum(axis=0), _JITTER)
        return cross @ self._weights, np.sqrt(left)

    def _fit(self) -> Array:
        found = minimize(
            self._loss,
            self._center,
            jac=True,
            method="L-BFGS-B",
            bounds=[(c - 4 * s, c + 4 * s) for c, s in zip(self._center, self._spread)],
            options={"maxiter": _MAX_ITERATIONS},
        )
        return np.asarray(found.x)

    def _covariance(self, theta: Array) -> tuple[Array, Array, Array]:
        """Return the observations' covariance, its Matern part, and that part's radial slope."""
        scaled = self._squares @ np.exp(-2 * theta[:-2])
        kernel, slope = _matern(scaled)
        variance = np.exp(2 * theta[-2])
        noise = np.exp(2 * theta[-1]) + _JITTER
        whole = self._linear + variance * kernel + noise * np.eye(len(scaled))
        return whole, variance * kernel, variance * slope

    def _loss(self, theta: Array) -> tuple[float, Array]:
        """Return the negative log posterior of the hyperparameters and its gradient."""
        covariance, kernel, slope = self._covariance(theta)
        factor = cholesky(covariance, lower=True)
        weights = cho_solve((factor, True), self._values)
        inner = cho_solve((factor, True), np.eye(len(factor))) - np.outer(weights, weights)
        # d kernel / d log length_k = slope x squared distance in column k / length_k ** 2
        lengths = np.einsum("ij,ij,ijk->k", inner, slope, self._squares) * np.exp(-2 * theta[:-2])
        amplitude = 2 * np.sum(inner * kernel)
        noise = 2 * np.trace(inner) * np.exp(2 * theta[-1])
        off = (theta - self._center) / self._spread
        loss = 0.5 * self._values @ weights + np.log(np.diag(factor)).sum() + 0.5 * off @ off
        return float(loss), 0.5 * np.array([*lengths, amplitude, noise]) + off / self._spread


def usual_length(points: Array) -> float:
    """Return the length scale to believe in before the first observation, for columns between 0 and
    1: distances grow with the number of columns."""
    return math.sqrt(max(points.shape[1], 1)) / 3


def _matern(squared: Array) -> tuple[Array, Array]:
    """Return the Matern-5/2 kernel and minus its derivative by half the squared distance."""
    distance = _SQRT5 * np.sqrt(squared)
    decay = np.exp(-distance)
    return (1 + distance + distance**2 / 3) * decay, 5 / 3 * (1 + distance) * decay
