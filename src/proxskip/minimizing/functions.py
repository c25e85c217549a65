"""Adapters for the smooth part f and the operator D of ``minimize``, in all the forms that users give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip import theory
from proxskip.problems import operators, oracles, spectrum
from proxskip.problems.glm import LeastSquares
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.spectrum import EPS, is_matrix
from proxskip.types import Array, Indices, InputError, Matrix

MAX_WRITTEN_OUT = 500
"""Rows and columns up to which a linear operator is written out as a matrix where that helps."""
CURVATURE_ULPS = 1e4
"""A difference of gradients counts where it is this many times their rounding."""
CURVATURE_SLACK = 1e-3
"""By how much (relative) a measured curvature may exceed L before L counts as too small; allows for rounding."""

FIRST_PRODUCTS, FIRST_SLACK = 8, 0.02
"""Products with the Hessian of a linear model for a first guess of L, and by how much that is raised."""


@dataclass(frozen=True)
class Smooth:
    """f as a function of flat vectors; ``L`` is None if backtracking has to find it.

    Args:
        of: the object that the caller gave.
        rows: the number of terms of a finite sum, else 1.
        batch_gradient: the mean gradient of some rows of a finite sum.
    """

    of: Any
    value: Callable[[Array], float]
    gradient: Callable[[Array], Array]
    d: int
    L: float | None
    mu: float | None
    rows: int = 1
    batch_gradient: Callable[[Array, Indices], Array] | None = None

    def with_L(self, L: float) -> Smooth:
        return replace(self, L=L)


def as_smooth(
    f: Any,
    shape: tuple[int, ...],
    L: float | None = None,
    mu: float | None = None,
    *,
    mu_needed: bool = True,
    hurry: bool = False,
) -> Smooth:
    """f from an object with value and gradient or from that pair of callables, with its constants.

    L and mu override those of the object. Its mu is read only if needed, since it may have to be computed.

    Args:
        hurry: leave L to backtracking, and take a lower bound for mu, if computing them could take longer than the run.
    """
    if isinstance(f, (tuple, list)) and len(f) == 2 and all(callable(part) for part in f):
        value, gradient = f
    else:
        value, gradient = oracles.attribute(f, "value"), oracles.attribute(f, "gradient")
    if not (callable(value) and callable(gradient)):
        raise InputError(f"{type(f).__name__} has no value(x) and gradient(x); give both, or a pair of callables.")
    d = math.prod(shape)
    known = oracles.dimension_of(f)
    if known is not None and known != d:
        raise InputError(f"f has {known} unknowns but x0 has {d} numbers.")
    # an f that knows its dimension takes flat vectors, any other one the shape of x0
    flat = len(shape) == 1 or known is not None
    slow = hurry and L is None and isinstance(f, LinearModel) and f.constants_are_costly
    slow_mu = slow or (hurry and isinstance(f, LeastSquares) and not f.knows("mu") and f.is_large)
    if L is None and mu is None and mu_needed and not slow and not slow_mu and isinstance(f, LeastSquares):
        f.find_constants()
    if L is None and not slow:
        L = oracles.attribute(f, "L") if oracles.knows_L(f) else None
        L = 1.0 if L == 0 else L  # f is affine, as for data of zeros alone: any step is right
    if mu is None and mu_needed:
        mu = float(f.reg.min()) if slow_mu else oracles.attribute(f, "mu")
    L = None if L is None else theory.positive("L", L)
    mu = None if mu is None or theory.nonnegative("mu", mu) == 0 else float(mu)
    if L is not None and mu is not None:
        L, mu = theory.ordered(L, mu)
    of_rows = oracles.attribute(f, "minibatch_gradient")
    sampled = None if of_rows is None else _gradient(of_rows, shape, flat)
    rows = oracles.rows_of(f) if sampled else 1
    return Smooth(f, _value(value, shape, flat), _gradient(gradient, shape, flat), d, L, mu, rows, sampled)


def _value(value: Callable[[Array], float], shape: tuple[int, ...], flat: bool) -> Callable[[Array], float]:
    def number(x: Array) -> float:
        v = value(x if flat else x.reshape(shape))
        if np.size(v) != 1 or np.asarray(v).dtype.kind not in "biuf":
            raise InputError(f"the value of f is {v!r:.40}; it must be one number.")
        return float(np.asarray(v, dtype=np.float64).item())

    return number


def _gradient(gradient: Callable[..., npt.ArrayLike], shape: tuple[int, ...], flat: bool) -> Callable[..., Array]:
    """The gradient (of some rows) at a flat x, with its shape checked at every call."""
    wanted = (math.prod(shape),) if flat else shape

    def checked(x: Array, *rows: Indices) -> Array:
        found = gradient(x if flat else x.reshape(shape), *rows)
        if np.asarray(found).dtype.kind not in "biuf":
            raise InputError(f"the gradient of f is {found!r:.40}; it must be real numbers.")
        g = np.array(found, np.float64)  # a copy: f may reuse its own
        if g.shape != wanted:
            raise InputError(f"the gradient of f has shape {g.shape}; it must have shape {wanted}.")
        return g if flat else g.ravel()

    return checked


def first_gradient(f: Smooth, x: Array) -> Array:
    """The gradient at x0; refused if computing it changes x, or if it is not finite."""
    before = x.copy()
    with np.errstate(all="ignore"):
        g = f.gradient(x)
    if not np.array_equal(before, x, equal_nan=True):
        raise InputError("the gradient of f changes the x it is given; let it work on a copy.")
    if not np.isfinite(g).all():
        raise InputError("the gradient of f at x0 is not finite; start elsewhere.")
    return g.copy()


def curvature(x: Array, g: Array, y: Array, k: Array, L: float = 0.0, eps: float = EPS) -> float:
    """A lower bound on L from two points with gradients g and k:  |g - k|^2 / <g - k, x - y>  (Baillon and Haddad).

    Args:
        L: a guess of it; gradients are known up to eps (|g| + L |x|), which is more than |g| near the minimum.
    """
    dg, dx = g - k, x - y
    moved, turned = float(np.dot(dg, dx)), float(np.dot(dg, dg))
    if not math.isfinite(turned):
        return math.inf
    # below this the difference of the gradients is rounding, and its quotient with the step would mean nothing
    slack = CURVATURE_ULPS * eps
    tiny = slack * slack * (float(np.dot(g, g)) + float(np.dot(k, k)) + L * L * float(np.dot(x, x)))
    return turned / moved if turned > tiny and moved > 0 else 0.0


def first_L(f: Smooth, x: Array, g: Array) -> tuple[float, int]:
    """A first guess for backtracking, and the gradients that it cost."""
    if isinstance(f.of, LinearModel):  # products with its Hessian at x
        k = min(f.d, FIRST_PRODUCTS)
        largest = spectrum.lanczos(lambda v: f.of.hessp(x, v), f.d, k)
        return (1.0 + FIRST_SLACK) * largest if largest > 0 else 1.0, k
    # how much the gradient changes over a short step downhill
    length, step = float(np.linalg.norm(g)), 1e-4 * (1.0 + float(np.linalg.norm(x)))
    guess = float(np.linalg.norm(f.gradient(x - (step / length) * g) - g)) / step if length else 1.0
    return guess if math.isfinite(guess) and guess > 0 else 1.0, 1


# -- finite sums -------------------------------------------------------------------------------------------------------
def sampling(f: Smooth, batch: int) -> int:
    """The batch, if f is a finite sum with at least that many rows."""
    b = theory.whole("batch", batch)
    if not oracles.can_sample(f.of):
        raise InputError("minibatches need a linear model of a matrix, or an f with N, L_rows and minibatch_gradient.")
    if b > f.rows:
        raise InputError(f"batch = {b} is larger than the {f.rows} rows of f.")
    if oracles.row_smoothness_of(f.of) is None:
        raise InputError("f has no L_rows, the largest smoothness of one row, which the step for minibatches needs.")
    return b


def expected_smoothness(f: Smooth, batch: int) -> float:
    """A = 2 L_b."""
    assert f.L is not None
    return theory.expected_smoothness(f.rows, batch, f.L, max(float(f.of.L_rows), f.L), math.nan).es_A


# -- the operator D ----------------------------------------------------------------------------------------------------
class Linear:
    """D with its squared norm, computed once: a matrix, or an operator of scipy or pylops."""

    def __init__(self, D: Matrix, d: int) -> None:
        D = operators.as_operator(np.asarray(D) if isinstance(D, np.ndarray) else D, d, dtype=None)
        if operators.is_complex(D):
            raise InputError("D is complex; it must be real.")
        if is_matrix(D):
            D = np.asarray(D, dtype=np.float64) if isinstance(D, np.ndarray) else D.astype(np.float64)
            entries = D if isinstance(D, np.ndarray) else D.data
            if not (np.isfinite(entries).all() and np.any(entries)):
                raise InputError("D must hold finite numbers, and not zeros alone.")
        else:
            operators.check_adjoint("D", D)  # whether D.T is the transpose of D
        self.of, self.shape = D, (int(D.shape[0]), int(D.shape[1]))
        self.T = D.T
        if operators.as_matrix(D) is not None:
            self.toarray = lambda: operators.as_matrix(D)
        elif max(self.shape) <= MAX_WRITTEN_OUT:
            self.toarray = lambda: np.column_stack([np.asarray(D @ e) for e in np.eye(self.shape[1])])
        self.norm2 = operators.operator_norm2(D)

    def __matmul__(self, v: Array) -> Array:
        return np.asarray(self.of @ v)
