"""Residuals with the rounding that they may contain, so that a tolerance is met or is not.

A gradient is assumed to be off by ``ASSUMED_ULPS`` units of rounding of what cancels in it: |grad f| and L |x| for an
oracle whose arithmetic is unknown, and for a linear model the gradients of its rows. Data in single precision are
converted to double before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from proxskip.problems import oracles
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.quadratic import Quadratic
from proxskip.problems.sharded import RemoteClient
from proxskip.types import Array, is_sparse

Prox: TypeAlias = Callable[[Array, float], Array]
UNIT = float(np.finfo(np.float64).eps) / 2
FUNCTION_ULPS = 16.0
"""Units of rounding by which a prox in closed form may be off."""
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


def gradient(f: Any, x: Array) -> tuple[Array, float]:
    """grad f(x), and the norm of its error."""
    f = oracles.in_double(f)
    g = np.asarray(f.gradient(x), dtype=np.float64)
    size, length = _norm(g), _norm(x)
    if isinstance(f, LinearModel):
        spread, slopes = _row_sizes(f, x)
        size += spread * (f.curvature * spread * length + slopes) + _norm(f.reg * x)
    elif isinstance(f, Quadratic):
        size += f.L * length + _norm(f.b)
    elif oracles.knows_L(f):
        size += float(f.L) * length
    return g, ASSUMED_ULPS * _unit_of(f) * size


def value(f: Any, x: Array) -> tuple[float, float]:
    """f(x), and its error."""
    f = oracles.in_double(f)
    total = float(f.value(x))
    size, length = abs(total), _norm(x)
    if isinstance(f, LinearModel):
        spread, slopes = _row_sizes(f, x)
        # the margins of softmax cancel in its loss, those of the other losses only as far as these are steep
        size += (1.0 if f.loss == "softmax" else slopes) * spread * length
    elif isinstance(f, Quadratic):
        size += length * (f.L * length + _norm(f.b)) + abs(f.c)
    return total, ASSUMED_ULPS * _unit_of(f) * size


def _row_sizes(f: LinearModel, x: Array) -> tuple[float, float]:
    """The mean sizes of a row and of the derivative of its loss: their product is that of a row's gradient."""
    slopes = f.row_slopes(x)
    squares = slopes**2 if slopes.ndim == 1 else np.sum(slopes**2, axis=1)
    if not f.has_rows:
        rows = f.L0 / f.curvature
    elif np.ptp(f.s) == 0:  # without a copy of data that may be large
        entries = f.A.data if is_sparse(f.A) else np.ravel(f.A)
        rows = float(f.s[0]) * float(entries @ entries)
    else:
        rows = float(np.sum(f.s * f.row_squares))
    return float(np.sqrt(rows)), float(np.sqrt(np.sum(f.s * squares)))


def gap(problem: Problem, x: Array) -> Bounded:
    """f(x) - f*, with its error."""
    s = problem.solution
    assert s is not None
    (here, one), (least, two) = (_whole_value(problem, v) for v in (x, s.x))
    # how far below f(s.x) the minimum may lie, by strong convexity
    below = s.certificate**2 / problem.mu if problem.mu else s.certificate * _norm(x - s.x)
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
    psi = 0.0 if problem.psi is None else float(problem.psi(x if problem.D is None else problem.D @ x))
    return total + psi, error + ASSUMED_ULPS * UNIT * abs(psi)


def smooth_gradient(problem: Problem, x: Array) -> tuple[Array, float]:
    """The gradient of sum_i w_i f_i, and the norm of its error."""
    if _is_remote(problem):
        G = problem.client_gradients(x)
        size = float(problem.weights @ np.linalg.norm(G, axis=1)) + problem.L_max * float(np.linalg.norm(x))
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


def residual(problem: Problem, x: Array, y: Array | None = None) -> Bounded:
    """The residual that ``run`` stops by, with its error."""
    g, error = smooth_gradient(problem, x)
    if problem.psi is None:
        return Bounded(_norm(g), error)
    if problem.D is None:
        return prox_residual(problem.psi.prox, x, g, error, 1.0 / problem.L_global if problem.knows_L else 1.0)
    assert y is not None
    return dual_residual(problem.psi.prox, problem.D, x, y, g, error)


def prox_residual(prox: Prox, x: Array, g: Array, error: float, t: float) -> Bounded:
    """|x - prox_{t psi}(x - t g)|/t; a prox is nonexpansive, so an error of its argument is not enlarged."""
    m = x - t * g
    step = x - np.asarray(prox(m, t))
    rounded = UNIT * (4 * _norm(x) + 4 * t * _norm(g) + FUNCTION_ULPS * _norm(m))
    return Bounded(_norm(step) / t, error + rounded / t)


def dual_residual(prox: Prox, D: Any, x: Array, y: Array, g: Array, error: float) -> Bounded:
    """|g + D'y| + |y - prox_{psi*}(y + D x)|."""
    back, image = np.asarray(D.T @ y), np.asarray(D @ x)
    u = y + image
    # prox_{psi*}(u) = u - prox_psi(u), Moreau's identity
    primal, dual = _norm(g + back), _norm(y - (u - prox(u, 1.0)))
    products = ASSUMED_ULPS * (_norm(back) + _norm(y) + _norm(image) + _norm(x))
    rounded = 4 * _norm(g) + 4 * _norm(back) + (4 + FUNCTION_ULPS) * (_norm(y) + _norm(u))
    return Bounded(primal + dual, error + UNIT * (products + rounded))


def _norm(v: Array) -> float:
    """The norm, without overflow or underflow of the squares."""
    top = float(np.max(np.abs(v), initial=0.0))
    return top * float(np.linalg.norm(v.ravel() / top)) if 0.0 < top < np.inf else top


def _unit_of(f: Any) -> float:
    """The unit of rounding of the gradients of f."""
    return UNIT if isinstance(f, LinearModel) else float(np.finfo(oracles.dtype_of(f)).eps) / 2
