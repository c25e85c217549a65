"""Residuals with the rounding that they may contain, so that a tolerance is met or is not.

A value or gradient is assumed to be off by ``ASSUMED_ULPS`` units of rounding of its own size and of the terms that
cancel in it, which an oracle may know (``oracles.sizes_of_terms``). Data in single precision are converted to double
before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from proxskip.problems import oracles
from proxskip.problems.federated import Problem
from proxskip.problems.prox_check import FUNCTION_ULPS
from proxskip.problems.sharded import RemoteClient
from proxskip.problems.spectrum import norm
from proxskip.types import Array, Matrix, Oracle

Prox: TypeAlias = Callable[[Array, float], Array]
UNIT = float(np.finfo(np.float64).eps) / 2
ASSUMED_ULPS = 64.0
"""Units of rounding by which a gradient or a value may be off."""


class Bounded(NamedTuple):
    """A number, and how far rounding may have moved it."""

    value: float
    error: float

    @property
    def most(self) -> float:
        """An upper bound on the true number."""
        return self.value + self.error


def gradient(f: Oracle, x: Array) -> tuple[Array, float]:
    """grad f(x), and the norm of its error."""
    f = oracles.in_double(f)
    g = np.asarray(f.gradient(x), dtype=np.float64)
    return g, ASSUMED_ULPS * _unit_of(f) * (norm(g) + oracles.sizes_of_terms(f, x).of_gradient)


def value(f: Oracle, x: Array) -> tuple[float, float]:
    """f(x), and its error."""
    f = oracles.in_double(f)
    total = float(f.value(x))
    return total, ASSUMED_ULPS * _unit_of(f) * (abs(total) + oracles.sizes_of_terms(f, x).of_value)


def gap(problem: Problem, x: Array) -> Bounded:
    """f(x) - f*, with its error."""
    s = problem.solution
    assert s is not None
    (here, one), (least, two) = (_whole_value(problem, v) for v in (x, s.x))
    # how far below f(s.x) the minimum may lie, by strong convexity
    below = s.certificate**2 / problem.mu if problem.mu else s.certificate * norm(x - s.x)
    return Bounded(here - least, one + two + below)


def _whole_value(problem: Problem, x: Array) -> tuple[float, float]:
    if _is_remote(problem):
        total = problem.smooth_value(x)
        error = ASSUMED_ULPS * UNIT * abs(total)
    elif not problem.by_client:  # many small clients: all rows in one pass
        total, error = value(problem.whole, x)
    else:
        parts = [value(f, x) for f in problem.clients]
        total, error = (float(problem.weights @ column) for column in np.array(parts).T)
    psi = problem.regularizer(x)
    return total + psi, error + ASSUMED_ULPS * UNIT * abs(psi)


def smooth_gradient(problem: Problem, x: Array) -> tuple[Array, float]:
    """The gradient of sum_i w_i f_i, and the norm of its error."""
    if _is_remote(problem):
        G = problem.client_gradients(x)
        size = float(problem.weights @ np.linalg.norm(G, axis=1))
        size += problem.L_max * norm(x) if problem.knows_L else 0.0
        return problem.gradient(x), ASSUMED_ULPS * max(map(_unit_of, problem.clients)) * size
    if not problem.by_client:
        return gradient(problem.whole, x)
    total, error = np.zeros(problem.d), 0.0
    for w, f in zip(problem.weights, problem.clients, strict=True):
        g, e = gradient(f, x)
        total, error = total + w * g, error + w * e
    return total, error


def _is_remote(problem: Problem) -> bool:
    """Whether the data of the clients are on other machines."""
    return isinstance(problem.clients[0], RemoteClient)


def residual(problem: Problem, x: Array, y: Array | None = None, prox: Prox | None = None) -> Bounded:
    """The residual that ``run`` stops by, with its error.

    Args:
        prox: what computes the prox of psi, if not psi itself.
    """
    g, error = smooth_gradient(problem, x)
    if problem.psi is None:
        return Bounded(norm(g), error)
    prox = prox or problem.psi.prox
    if problem.D is None:
        return prox_residual(prox, x, g, error, 1.0 / problem.L_average if problem.knows_L else 1.0)
    assert y is not None
    return dual_residual(prox, problem.D, x, y, g, error)


def prox_residual(prox: Prox, x: Array, g: Array, error: float, t: float) -> Bounded:
    """|x - prox_{t psi}(x - t g)|/t; a prox is nonexpansive, so an error of its argument is not enlarged."""
    m = x - t * g
    step = x - np.asarray(prox(m, t))
    rounded = UNIT * (4 * norm(x) + 4 * t * norm(g) + FUNCTION_ULPS * norm(m))
    return Bounded(norm(step) / t, error + rounded / t)


def dual_residual(prox: Prox, D: Matrix, x: Array, y: Array, g: Array, error: float) -> Bounded:
    """|g + D'y| + |y - prox_{psi*}(y + D x)|."""
    back, image = np.asarray(D.T @ y), np.asarray(D @ x)
    u = y + image
    # prox_{psi*}(u) = u - prox_psi(u), Moreau's identity
    primal, dual = norm(g + back), norm(y - (u - prox(u, 1.0)))
    products = ASSUMED_ULPS * (norm(back) + norm(y) + norm(image) + norm(x))
    rounded = 4 * norm(g) + 4 * norm(back) + (4 + FUNCTION_ULPS) * (norm(y) + norm(u))
    return Bounded(primal + dual, error + UNIT * (products + rounded))


def _unit_of(f: object) -> float:
    """The unit of rounding of the gradients of f."""
    return float(np.finfo(oracles.dtype_of(f)).eps) / 2
