"""Small problems that many tests share."""

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse

import proxskip as ps
from proxskip.types import Array

WEIGHTS = (1.0, 2.0, 3.0, 4.0)


@cache
def quadratics(n: int = 4, d: int = 4, kappa: float = 20.0, own: bool = False, seed: int = 3) -> tuple[Any, ...]:
    """n heterogeneous quadratics; with ``own`` the i-th is 2^i times as steep, so that L_i differ."""
    parts = ps.random_quadratics(n, d, L=1.0, mu=1.0 / kappa, seed=seed)
    return tuple(ps.Quadratic(2.0**i * f.H, 2.0**i * f.b) for i, f in enumerate(parts)) if own else tuple(parts)


def quadratic(kappa: float = 100.0, d: int = 30, seed: int = 0) -> Any:
    """One of them."""
    return quadratics(1, d, kappa, seed=seed)[0]


@cache
def data(classes: int = 2, rows: int = 96, features: int = 6, seed: int = 5) -> tuple[Array, Array]:
    """Rows with a third of zeros and labels that depend on them."""
    rng = np.random.Generator(np.random.Philox(seed))
    A = rng.standard_normal((rows, features)) * (rng.random((rows, features)) < 0.7)
    scores = A @ rng.standard_normal((features, classes)) + 0.5 * rng.standard_normal((rows, classes))
    return A, np.argmax(scores, axis=1).astype(np.float64)


LOSSES = {"logistic": ps.Logistic, "squared": ps.LeastSquares, "softmax": ps.Softmax}


@cache
def model(loss: str = "logistic", sparse: bool = False, dtype: str = "float64", l2: float = 0.02) -> Any:
    """A linear model on ``data``."""
    A, b = data(3, features=4) if loss == "softmax" else data()
    matrix = scipy.sparse.csr_matrix(A) if sparse else A
    return LOSSES[loss](matrix, b, l2_relative=l2, dtype=np.dtype(dtype))


def difference(d: int) -> Array:
    """D x = (x_2 - x_1, ..., x_d - x_{d-1})."""
    return np.diff(np.eye(d), axis=0)


class OwnProx:
    """A psi of a user or of another library, whose calls are counted."""

    def __init__(self, prox: Callable[[Any, float], Any], value: Callable[[Any], Any] = lambda x: 0.0) -> None:
        self.prox, self.value = mock.Mock(side_effect=prox), mock.Mock(side_effect=value)

    def __call__(self, x: Any) -> Any:
        return self.value(x)


def few_steps(lam: float, steps: int) -> OwnProx:
    """The prox of TV1D by some projected gradient steps on the dual, from zero: it is not exact."""

    def solve(x: Array, t: float) -> Array:
        p = np.zeros(len(x) + 1)
        for _ in range(steps):
            p[1:-1] = np.clip(p[1:-1] + np.diff(x + np.diff(p)) / 4, -t * lam, t * lam)
        return np.asarray(x + np.diff(p))

    return OwnProx(solve, ps.prox.TV1D(lam))


def scaled(f: Any, by: float) -> Any:
    """by * f, for a quadratic."""
    return ps.Quadratic(by * f.H, by * f.b)
