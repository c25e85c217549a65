"""Residuals with a bound on what rounding may have changed in them, so that a tolerance is met or is not.

The bounds are those of N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 2002, Section 3.5: a
computed product A x is off by at most  k u/(1 - k u) |A| |x|  in each entry, with k the length of its sums, in whatever
order they are added. For linear models and quadratics that holds for every step of the gradient. If the bound of double
precision does not decide, the gradient is computed once more in the extended precision of the machine. Of an oracle
whose arithmetic is unknown it is assumed that its gradient is off by a few units of rounding of |grad f| and L |x|.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from proxskip.problems import oracles
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.packed import Packed
from proxskip.problems.quadratic import Quadratic
from proxskip.problems.sharded import RemoteClient
from proxskip.problems.softmax import Softmax
from proxskip.prox import conjugate_prox
from proxskip.types import Array, is_sparse

UNIT = float(np.finfo(np.float64).eps) / 2
FUNCTION_ULPS = 16.0
"""Units of rounding by which an elementary function, or a prox in closed form, may be off."""
ASSUMED_ULPS = 64.0
"""Units of rounding by which the gradient of an oracle of unknown arithmetic may be off."""
EXTENDED_UP_TO = 5_000_000
"""Stored numbers up to which a gradient is computed in extended precision; it is slow where it is software."""
MAX_CLIENTS_EXTENDED = 1000
ENTRIES_AT_ONCE = 1 << 20
MIN_SPARSE_ROWS = 256
"""Rows of a sparse block below which cutting it out takes longer than its products."""


class Bounded(NamedTuple):
    """A number, and how far rounding may have moved it."""

    value: float
    error: float

    @property
    def most(self) -> float:
        """An upper bound on the true number."""
        return self.value + self.error


def gradient(f: Any, x: Array, extended: bool = False) -> tuple[Any, float]:
    """grad f(x), and a bound on the norm of its error."""
    kind: Any = np.longdouble if extended else np.float64
    if isinstance(f, LinearModel) and f.has_rows:
        return _of_rows(f, x, kind)
    if isinstance(f, Quadratic):
        H, bound = f.H.astype(kind), np.abs(f.H)
        diagonal = f.H.ndim == 1
        g = (H * x if diagonal else H @ x.astype(kind)) - f.b
        spread = bound * np.abs(x) if diagonal else bound @ np.abs(x)
        return g, _norm((f.d + 2) * _unit(kind) * (spread + np.abs(f.b)))
    f = oracles.in_double(f)
    g = np.asarray(f.gradient(x), dtype=np.float64)
    size = float(np.linalg.norm(g))
    if oracles.knows_L(f):
        size += float(f.L) * float(np.linalg.norm(x))
    if isinstance(f, LinearModel) and not isinstance(f, Softmax):  # on an operator: |A' diag(s) c| <= sqrt(lmax) |c|_s
        c = f.slopes(f.margins(x), f.b)
        size += float(np.sqrt(f.L0 / f.curvature)) * float(np.sqrt(np.sum(f.s * c * c)))
    return g, ASSUMED_ULPS * _unit_of(f) * size


def _of_rows(f: LinearModel, x: Array, kind: Any) -> tuple[Any, float]:
    """Block by block of rows; each sum has at most as many terms as f has features, or rows."""
    N, F = f.A.shape
    u = _unit(kind)
    X = x.reshape(f.C, F).T if isinstance(f, Softmax) else x[:, None]
    g, error = np.zeros(X.shape, kind), np.zeros(X.shape)
    rows = _rows_at_once(f.A)
    for lo in range(0, N, rows):
        B, b, s = f.A[lo : lo + rows], f.b[lo : lo + rows], f.s[lo : lo + rows, None]
        size = np.abs(B).astype(np.float64)
        z = B.astype(kind) @ X.astype(kind)
        off = (F + 2) * u * (size @ np.abs(X))
        c = _slopes(f, z, b)
        # the slope's own rounding, and the margin's, which it passes on with at most the curvature of the loss
        off = f.curvature * (np.linalg.norm(off, axis=1, keepdims=True) if X.shape[1] > 1 else off)
        off = s * (off + FUNCTION_ULPS * u * (np.abs(c).astype(np.float64) + (X.shape[1] > 1)))
        g += B.astype(kind).T @ (s * c)
        error += size.T @ (off + (N + 4) * u * np.abs(s * c).astype(np.float64))
    shift = f.reg.reshape(X.T.shape).T * X.astype(kind)
    g = g + shift
    error += 4 * u * (np.abs(g) + np.abs(shift)).astype(np.float64)
    return (g.T.ravel() if isinstance(f, Softmax) else g[:, 0]), 1.1 * _norm(error)


def _rows_at_once(A: Any) -> int:
    """Rows of a block: as if A were dense, unless it is sparse and so wide that the blocks would be thin."""
    N, F = int(A.shape[0]), int(A.shape[1])
    rows = max(1, ENTRIES_AT_ONCE // F)
    if rows >= MIN_SPARSE_ROWS or isinstance(A, np.ndarray):
        return rows
    return max(MIN_SPARSE_ROWS, ENTRIES_AT_ONCE * N // (int(A.nnz) + N))


def _slopes(f: LinearModel, z: Any, b: Array) -> Any:
    """The derivative of each row's loss, in the precision of z."""
    if isinstance(f, Softmax):
        P = np.exp(z - z.max(axis=1, keepdims=True))
        P = P / P.sum(axis=1, keepdims=True)
        P[np.arange(len(P)), b.astype(np.int64)] -= 1
        return P
    if f.loss == "squared":
        return z - b[:, None]
    t = np.exp(-np.abs(z))  # without overflow at any margin
    agree = b[:, None] * z > 0
    return -b[:, None] * np.where(agree, t, 1.0) / (1.0 + t)


def value(f: Any, x: Array, extended: bool = False) -> tuple[Any, float]:
    """f(x), and a bound on its error."""
    kind: Any = np.longdouble if extended else np.float64
    u = _unit(kind)
    if isinstance(f, Quadratic):
        H, v = (np.diag(f.H) if f.H.ndim == 1 else f.H), x.astype(kind)
        spread = float(np.abs(x) @ (np.abs(H) @ np.abs(x))) + float(np.abs(f.b) @ np.abs(x)) + abs(f.c)
        return 0.5 * (v @ (H.astype(kind) @ v)) - f.b @ v + f.c, (2 * f.d + 8) * u * spread
    if not (isinstance(f, LinearModel) and f.has_rows):
        found = float(oracles.in_double(f).value(x))
        return found, ASSUMED_ULPS * _unit_of(f) * abs(found)
    N, F = f.A.shape
    X = x.reshape(f.C, F).T if isinstance(f, Softmax) else x[:, None]
    total, error, rows = kind(0.0), 0.0, _rows_at_once(f.A)
    for lo in range(0, N, rows):
        B, b, s = f.A[lo : lo + rows], f.b[lo : lo + rows], f.s[lo : lo + rows]
        z = B.astype(kind) @ X.astype(kind)
        off = (F + 2) * u * np.sum(np.abs(B).astype(np.float64) @ np.abs(X), axis=1)
        losses, slope = _losses(f, z, b), np.abs(_slopes(f, z, b)).max(axis=1).astype(np.float64)
        size = np.abs(losses).astype(np.float64) + np.abs(z).max(axis=1).astype(np.float64)
        total += np.sum(s * losses)
        error += float(np.sum(s * ((slope + u) * off + (N + FUNCTION_ULPS) * u * size)))
    shift = 0.5 * np.sum(f.reg * x.astype(kind) * x)
    return total + shift, 1.1 * (error + (f.d + 4) * u * abs(float(shift)) + 4 * u * abs(float(total)))


def _losses(f: LinearModel, z: Any, b: Array) -> Any:
    """The loss of each row, in the precision of z."""
    if isinstance(f, Softmax):
        top = z.max(axis=1)
        return top + np.log(np.sum(np.exp(z - top[:, None]), axis=1)) - z[np.arange(len(z)), b.astype(np.int64)]
    if f.loss == "squared":
        return 0.5 * (z[:, 0] - b) ** 2
    return np.logaddexp(np.zeros_like(z[:, 0]), -b * z[:, 0])


def gap(problem: Problem, x: Array, target: float = 0.0) -> Bounded:
    """f(x) - f*, with its error; in extended precision where that decides about the target."""
    found = _gap(problem, x, extended=False)
    undecided = found.value - found.error <= target < found.most
    return _gap(problem, x, extended=True) if undecided and can_extend(problem.clients) else found


def _gap(problem: Problem, x: Array, extended: bool) -> Bounded:
    s = problem.solution
    assert s is not None
    (here, one), (there, two) = (_whole_value(problem, v, extended) for v in (x, s.x))
    # how far below f(s.x) the minimum may lie, by strong convexity
    below = s.certificate**2 / problem.mu if problem.mu else s.certificate * _norm(x - s.x)
    return Bounded(float(here - there), one + two + below)


def _whole_value(problem: Problem, x: Array, extended: bool) -> tuple[Any, float]:
    if not _is_here(problem):
        found = problem.value(x)
        return found, ASSUMED_ULPS * UNIT * abs(found)
    if isinstance(problem.clients, Packed) and not problem.by_client:  # many small clients: all rows in one pass
        total, error = value(problem.whole, x, extended)
        error *= 2  # the weights of the rows are rounded once more than those of the clients
    else:
        total, error, size = np.longdouble(0.0) if extended else 0.0, 0.0, 0.0
        for w, f in zip(problem.weights, problem.clients, strict=True):
            v, e = value(f, x, extended)
            total, error, size = total + w * v, error + w * e, size + w * abs(float(v))
        error += (problem.n + 2) * _unit(np.longdouble if extended else np.float64) * size
    if problem.psi is None:
        return total, error
    psi = float(problem.psi(x if problem.D is None else problem.D @ x))
    return total + psi, error + (problem.d + FUNCTION_ULPS) * UNIT * abs(psi)


def smooth_gradient(problem: Problem, x: Array, extended: bool = False) -> tuple[Any, float]:
    """The gradient of sum_i w_i f_i, and a bound on the norm of its error."""
    if not _is_here(problem):
        g = problem.gradient(x)
        G = problem.client_gradients(x)
        size = float(problem.weights @ np.linalg.norm(G, axis=1)) + problem.L_max * float(np.linalg.norm(x))
        return g, ASSUMED_ULPS * max(map(_unit_of, problem.clients)) * size
    if not problem.by_client and not extended:  # many small clients: all rows in one pass
        g, error = gradient(problem.whole, x)
        return g, 2 * error  # the weights of the rows are rounded once more than those of the clients
    total: Any = 0.0
    error, size = 0.0, 0.0
    for w, f in zip(problem.weights, problem.clients, strict=True):
        g, e = gradient(f, x, extended)
        total, error, size = total + w * g, error + w * e, size + w * _norm(g)
    return total, error + (problem.n + 2) * _unit(np.longdouble if extended else np.float64) * size


def _is_here(problem: Problem) -> bool:
    """Whether the data of the clients can be read in this process."""
    return isinstance(problem.clients, Packed) or not any(isinstance(f, RemoteClient) for f in problem.clients)


def residual(problem: Problem, x: Array, y: Array | None = None, tol: float = 0.0) -> Bounded:
    """The residual that ``run`` stops by, with its error; in extended precision where that decides about tol."""
    found = _residual(problem, x, y, extended=False)
    undecided = found.value - found.error <= tol < found.most
    if undecided and can_extend(problem.clients):
        again = _residual(problem, x, y, extended=True)
        return min(found, again, key=lambda b: b.most)
    return found


def can_extend(clients: Sequence[Any]) -> bool:
    """Whether gradients of these can be had in extended precision, at a reasonable cost."""
    if len(clients) > MAX_CLIENTS_EXTENDED:
        return False
    known = all(isinstance(f, Quadratic) or (isinstance(f, LinearModel) and f.has_rows) for f in clients)
    return known and sum(oracles.stored_numbers(f) for f in clients) <= EXTENDED_UP_TO


def _residual(problem: Problem, x: Array, y: Array | None, extended: bool) -> Bounded:
    g, error = smooth_gradient(problem, x, extended)
    if problem.psi is None:
        return Bounded(_norm(g), error)
    if problem.D is None:
        return prox_residual(problem.psi, x, g, error, 1.0 / problem.L_global if problem.knows_L else 1.0)
    assert y is not None
    return dual_residual(problem.psi, problem.D, x, y, g, error)


def prox_residual(psi: Any, x: Array, g: Any, error: float, t: float, inexact: float = 0.0) -> Bounded:
    """|x - prox_{t psi}(x - t g)|/t; a prox is nonexpansive, so an error of its argument is not enlarged."""
    m = np.asarray(x - t * g, dtype=np.float64)
    step = x - np.asarray(psi.prox(m, t))
    rounded = UNIT * (4 * _norm(x) + 4 * t * _norm(g) + FUNCTION_ULPS * _norm(m))
    return Bounded(_norm(step) / t, error + (rounded + inexact) / t)


def dual_residual(psi: Any, D: Any, x: Array, y: Array, g: Any, error: float) -> Bounded:
    """|g + D'y| + |y - prox_{psi*}(y + D x)|."""
    back, there = np.asarray(D.T @ y), np.asarray(D @ x)
    lost = _product_error(D.T, y, back) + _product_error(D, x, there)
    u = y + there
    primal, dual = _norm(g + back), _norm(y - conjugate_prox(psi, u, 1.0))
    rounded = UNIT * (4 * _norm(g) + 4 * _norm(back) + (4 + FUNCTION_ULPS) * (_norm(y) + _norm(u)))
    return Bounded(primal + dual, error + lost + rounded)


def _product_error(D: Any, v: Array, product: Array) -> float:
    """A bound for a matrix; an assumption for an operator, whose arithmetic is unknown."""
    if isinstance(D, np.ndarray) or is_sparse(D):
        return _norm((D.shape[1] + 2) * UNIT * (abs(D) @ np.abs(v)))
    return ASSUMED_ULPS * UNIT * (_norm(product) + _norm(v))


def _norm(v: Any) -> float:
    """The norm, without overflow or underflow of the squares."""
    v = np.asarray(v, dtype=np.float64).ravel()
    top = float(np.max(np.abs(v), initial=0.0))
    return top * float(np.linalg.norm(v / top)) if 0.0 < top < np.inf else top


def _unit(kind: Any) -> float:
    return float(np.finfo(kind).eps) / 2


def _unit_of(f: Any) -> float:
    """The unit of rounding of the gradients of f."""
    return _unit(oracles.dtype_of(f)) if not isinstance(f, LinearModel) else UNIT
