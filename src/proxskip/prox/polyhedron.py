"""Projection onto a polyhedron by an active-set method, which starts with the active rows of the last call."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.prox.contract import Iterative
from proxskip.prox.parts import INSIDE, as_point, max_abs, norm, sized
from proxskip.types import Array, Indices, InputError, Matrix

DEPENDENT = 1e-10
"""A row that is nearer than this to a combination of the active ones counts as one."""
ULPS = 4e-15
"""What a product with a row may be off, relative to the points; a row that is violated by less is not added."""
NEARLY = 1e-12
"""Rows that contradict each other by less than this, relative to their numbers, make no set empty."""
SMALL = 1e-6
"""An error to first order counts up to this, relative to the points."""
MAX_EXCHANGES = 12
"""Exchanges of active rows before ``nnls`` is called, and after it."""
EMPTY = "Polyhedron is empty: no point satisfies all of its rows."


class Polyhedron(Iterative):
    """``{x : l <= G x <= u, E x = e}``, where either part may be missing.

    The projection is exact up to rounding. A call costs a few products with vectors if the active rows stay the same,
    and a first one takes a second with 300 unknowns and 1,500 rows, which are dense in memory. The accuracy is, to
    first order, twice the least change of y that puts every active row on its bound and every violated one on its own.

    Args:
        l, u: the bounds on G x; infinite if not given.
        e: what E x must be.
        tolerance: the accuracy that a call asks for.
        warm: start from the last call's active rows.
        G, E: dense or scipy.sparse matrices.
        max_iterations: changes of the active rows in one call.
    """

    def __init__(
        self,
        G: Matrix | None = None,
        l: npt.ArrayLike | None = None,
        u: npt.ArrayLike | None = None,
        E: Matrix | None = None,
        e: npt.ArrayLike | None = None,
        tolerance: float = 1e-8,
        max_iterations: int = 20_000,
        warm: bool = True,
    ):
        self.A, self.l, self.u = _stacked(G, l, u, E, e)
        self.d = self.A.shape[1]
        self._begin(tolerance, max_iterations, warm)

    def __repr__(self) -> str:
        digest = hashlib.sha256()
        for part in (self.A.indptr.astype(np.int64), self.A.indices.astype(np.int64), self.A.data, self.l, self.u):
            digest.update(np.ascontiguousarray(part).tobytes())
        rows = self.A.shape[0]
        return f"Polyhedron({rows} rows, d={self.d}, sha256 {digest.hexdigest()[:16]}, tolerance={self.tolerance})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}

    def __call__(self, x: Array) -> float:
        sized(self, x, self.d)
        rows = self.A @ np.ravel(x)
        scale = np.abs(self.A) @ np.abs(np.ravel(x)) + 1.0
        return 0.0 if np.all(np.abs(rows - np.clip(rows, self.l, self.u)) <= INSIDE * scale) else math.inf

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        sized(self, x, self.d)
        flat = np.ravel(x)
        if not np.isfinite(flat).all():
            raise InputError("Polyhedron was given a point with numbers that are not finite.")
        solver = self._kept or _ActiveRows(self.A, self.l, self.u)
        y, accuracy, count = solver.project(flat, self.max_iterations)
        self._kept = solver if self.warm else None
        self._record(accuracy, count)
        return y.reshape(x.shape)


class _ActiveRows:
    """The rows that hold y on their bounds, as ``N y = b`` with rows of length 1, and the pseudoinverse P of N.

    They are exchanged all at once while that succeeds: rows with a negative multiplier leave, violated ones enter. If
    it does not, the least-distance problem is solved by ``scipy.optimize.nnls`` (Lawson and Hanson, "Solving Least
    Squares Problems", 1974, chapter 23). The rows of its solution are used, and not its rounded numbers.
    """

    def __init__(self, A: Matrix, l: Array, u: Array):
        size = np.sqrt(np.asarray(A.multiply(A).sum(axis=1)).ravel())
        size[size == 0] = 1.0
        rows = A.toarray() / size[:, None]
        low = np.isfinite(l)
        high = np.isfinite(u)
        self.N = np.ascontiguousarray(np.vstack([rows[low], -rows[high]]))
        self.b = np.concatenate([(l / size)[low], -(u / size)[high]])
        self._hold(np.zeros(0, np.int64))

    def _hold(self, active: Indices) -> None:
        """Make these rows the active ones."""
        self.active, self.N_active = active, self.N[active]
        Q, R = np.linalg.qr(self.N_active.T)
        if len(active) > len(Q) or np.min(np.abs(np.diag(R)), initial=1.0) < DEPENDENT:
            self.P = np.linalg.pinv(self.N_active)
        else:
            self.P = scipy.linalg.solve_triangular(R, Q.T).T

    def project(self, x: Array, most: int) -> tuple[Array, float, int]:
        """y with its accuracy, infinite after ``most`` changes of the active rows, and the changes."""
        count = exchanges = 0
        tried_nnls = False
        while True:
            y, v = self._point(x)
            lack = self.b - self.N @ y
            rounding = ULPS * math.sqrt(len(x)) * (norm(x) + norm(y))
            contradictory = max_abs(lack[self.active]) > rounding
            lack[self.active] = 0.0
            better = np.union1d(self.active[v >= -rounding], np.flatnonzero(lack > rounding))
            if not contradictory and np.array_equal(better, self.active):
                return y, self._error(x, y, v), count
            if contradictory or exchanges == MAX_EXCHANGES:
                if tried_nnls:
                    break
                better = self._by_nnls(x)
                exchanges = 0
                tried_nnls = True
            exchanges += 1
            count += len(np.setxor1d(better, self.active))
            if count > most:
                break
            self._hold(better)
        error = self._error(x, y, v)
        return y, error if error <= SMALL * (norm(x) + norm(y)) else math.inf, count

    def _point(self, x: Array) -> tuple[Array, Array]:
        """The point nearest to x with the active rows on their bounds, and its multipliers."""
        y = x
        for _ in range(2):  # the second pass takes away what the first has lost to rounding
            y = y + self.P @ (self.b[self.active] - self.N_active @ y)
        return y, self.P.T @ (y - x)

    def _by_nnls(self, x: Array) -> Indices:
        # equal bounds, and rows that depend on each other, may contradict each other by rounding
        lack = self.b - self.N @ x - NEARLY * (norm(x) + np.abs(self.b))
        most = float(np.max(lack))
        u, residual = scipy.optimize.nnls(np.vstack([self.N.T, lack / most]), np.eye(len(x) + 1)[-1])
        if residual < NEARLY:
            raise InputError(EMPTY)
        return np.flatnonzero(u)

    def _error(self, x: Array, y: Array, v: Array) -> float:
        """To first order, how far y is from the projection: twice the least change that puts every row in its place.

        The active rows go to their bounds, and the violated ones to theirs without moving the active ones. Multipliers
        below zero, and what is left of y - x - N'v, count too.
        """
        lack = self.b - self.N @ y
        # lack itself counts too, for active rows that contradict each other
        total = norm(self.P @ lack[self.active]) + norm(lack[self.active]) - float(np.minimum(v, 0.0).sum())
        lack[self.active] = 0.0
        violated = lack > 0
        rest = self.N[violated] - (self.N[violated] @ self.P) @ self.N_active
        size = np.linalg.norm(rest, axis=1)
        # a combination of the active rows is on its bound when they are
        total += float(np.sum(lack[violated] / np.where(size > DEPENDENT, size, 1.0)))
        return 2 * total + norm(x + self.N_active.T @ v - y)


def _stacked(
    G: Matrix | None, l: npt.ArrayLike | None, u: npt.ArrayLike | None, E: Matrix | None, e: npt.ArrayLike | None
) -> tuple[Matrix, Array, Array]:
    """G and E as one matrix A, with its lower and upper bounds."""
    bounded = l is not None or u is not None
    # a missing e is not taken for zero
    if (G is not None) != bounded or (E is None) != (e is None) or (G is None and E is None):
        raise InputError("Polyhedron needs G with l or u, or E with e, or both.")
    parts = []
    if G is not None:
        G = _matrix("G", G)
        parts.append((G, _bound("l", l, G, -np.inf), _bound("u", u, G, np.inf)))
    if E is not None:
        E = _matrix("E", E)
        right = _bound("e", e, E, 0.0)
        parts.append((E, right, right))
    widths = [part[0].shape[1] for part in parts]
    if len(set(widths)) > 1:
        raise InputError(f"Polyhedron has G with {widths[0]} columns but E with {widths[1]}.")
    A = scipy.sparse.vstack([part[0] for part in parts], format="csr")
    low, high = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    wrong = ~(low <= high) | (low == np.inf) | (high == -np.inf)
    if wrong.any():
        i = int(wrong.argmax())
        raise InputError(f"Polyhedron needs l <= u, not l = {low[i]} and u = {high[i]} (row {i}).")
    return scipy.sparse.csc_matrix(A), low, high


def _matrix(name: str, matrix: Matrix) -> Matrix:
    M = scipy.sparse.csc_matrix(matrix, dtype=np.float64)
    if not np.isfinite(M.data).all():
        raise InputError(f"Polyhedron needs finite numbers in {name}.")
    return M


def _bound(name: str, values: npt.ArrayLike | None, M: Matrix, missing: float) -> Array:
    bound = np.asarray(missing if values is None else values, dtype=np.float64)
    if bound.ndim > 1 or bound.size not in (1, M.shape[0]):
        raise InputError(f"Polyhedron has {M.shape[0]} rows but {bound.size} numbers in {name}.")
    return np.array(np.broadcast_to(bound, M.shape[0]))
