"""Projection onto a polyhedron: small ones by an active-set method, large ones by OSQP (Stellato et al., 2020).

Both start where the last call ended. OSQP factors its matrix once.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.prox import active_set
from proxskip.prox.contract import Iterative
from proxskip.prox.parts import INSIDE, as_point, max_abs, norm, sized
from proxskip.types import Array, InputError

OSQP_TOLERANCES = (1e-9, 1e-11, 1e-13)
"""Requested of OSQP one after another, while the certificate is above the tolerance."""


EMPTY = "Polyhedron is empty: no point satisfies all of its rows."
LARGEST_D, LARGEST_ROWS = 500, 2000
"""Up to this size the active-set method is the default: a change of its rows takes some d^2 operations."""


class Polyhedron(Iterative):
    """``{x : l <= G x <= u, E x = e}``, where either part may be missing.

    Up to 500 unknowns and 2000 rows a dual active-set method (Goldfarb, Idnani, 1983) finds the projection up to
    rounding. It keeps the active rows and their factorization for the next call, which costs a few products with
    vectors if they stay the same. Larger polyhedra are left to OSQP (the extra ``prox``), which is inexact.

    With multipliers z, ``y = x - A'z`` is the exact projection onto a polyhedron with slightly different bounds. So
    ``|y - prox|^2`` is at most the sum over the rows i of ``|z_i|`` times the distance of row i to its bound, a duality
    gap; a row outside its bounds counts with twice the largest multiplier. If the active rows are known (to the
    active-set method, and if OSQP has polished its solution), the error is to first order at most the least change of y
    that puts them on their bounds. The accuracy is the smaller of the two, plus the distance to the y of the solver.

    Args:
        G, E: dense or scipy.sparse matrices.
        max_iterations: of OSQP, or changes of the active rows, in one call.
        solver: "active-set" or "osqp"; by the size if not given.
    """

    def __init__(
        self,
        G: Any = None,
        l: npt.ArrayLike | None = None,
        u: npt.ArrayLike | None = None,
        E: Any = None,
        e: npt.ArrayLike | None = None,
        tolerance: float = 1e-8,
        max_iterations: int = 20_000,
        warm: bool = True,
        solver: str | None = None,
    ):
        self.A, self.l, self.u = _stacked(G, l, u, E, e)
        self.d = self.A.shape[1]
        if solver not in (None, "active-set", "osqp"):
            raise InputError(f'Polyhedron has the solvers "active-set" and "osqp", not {solver!r}.')
        small = self.d <= LARGEST_D and self.A.shape[0] <= LARGEST_ROWS
        self.solver = solver or ("active-set" if small else "osqp")
        self._solver: Any = None
        self._begin(tolerance, max_iterations, warm)

    def __repr__(self) -> str:
        digest = hashlib.sha256()
        for part in (self.A.indptr.astype(np.int64), self.A.indices.astype(np.int64), self.A.data, self.l, self.u):
            digest.update(np.ascontiguousarray(part).tobytes())
        rows = self.A.shape[0]
        return f"Polyhedron({rows} rows, d={self.d}, sha256 {digest.hexdigest()[:16]}, tolerance={self.tolerance})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_solver": None}

    def _forget(self) -> None:
        self._solver = None

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
        find = self._by_rows if self.solver == "active-set" else self._by_osqp
        y, accuracy, count = find(flat)
        if not self.warm:
            self._solver = None
        self._record(accuracy, count)
        return y.reshape(x.shape)

    def _by_rows(self, x: Array) -> tuple[Array, float, int]:
        if self._solver is None:
            self._solver = _ActiveRows(self.A, self.l, self.u)
        projection: tuple[Array, float, int] = self._solver.project(x, self.max_iterations, self.tolerance)
        return projection

    def _by_osqp(self, x: Array) -> tuple[Array, float, int]:
        y, accuracy, count = x, math.inf, 0
        # A warm start makes each stricter solve cheap.
        for strictness in OSQP_TOLERANCES:
            solution = self._solve(x, strictness, self.max_iterations - count)
            count += int(solution.info.iter)
            if solution.info.status_val in (3, 4):  # primal infeasible, exactly or approximately
                raise InputError(EMPTY)
            reached = self._accuracy(x, solution)
            if reached < accuracy:
                y, accuracy = np.array(solution.x), reached
            if accuracy <= self.tolerance or count >= self.max_iterations:
                break
        return y, accuracy, count

    def _solve(self, x: Array, strictness: float, most: int) -> Any:
        if self._solver is None:
            self._solver = _osqp().OSQP()
            eye = scipy.sparse.eye(self.d, format="csc")
            # A fixed interval for rho: OSQP can also take it from the clock, and then results do not repeat.
            fixed = {"verbose": False, "polishing": True, "adaptive_rho": 1, "adaptive_rho_interval": 50}
            self._solver.setup(eye, -x, self.A, self.l, self.u, **fixed)
        else:
            self._solver.update(q=-x)
        self._solver.update_settings(eps_abs=strictness, eps_rel=strictness, max_iter=max(most, 25))
        return self._solver.solve(raise_error=False)

    def _accuracy(self, x: Array, solution: Any) -> float:
        """The certificate in the docstring of the class."""
        from scipy.sparse.linalg import lsqr

        y, z = np.asarray(solution.x), np.array(solution.y)
        if not (np.isfinite(y).all() and np.isfinite(z).all()):
            return math.inf
        # A multiplier of an infinite bound is an error of OSQP.
        z[(z > 0) & np.isinf(self.u) | (z < 0) & np.isinf(self.l)] = 0.0
        near = x - self.A.T @ z  # the primal point of z
        gap = _gap((self.A, self.l, self.u), near, z)
        if solution.info.status_polish == 1:  # polished: the rows with a multiplier are the active ones
            rows = self.A @ near
            bound = np.where(z > 0, self.u, np.where(z < 0, self.l, np.clip(rows, self.l, self.u)))
            lack = np.where((z != 0) | (rows != bound), rows - bound, 0.0)
            active = (z != 0) | (lack != 0)
            mend = lsqr(self.A[active], lack[active], atol=1e-6, btol=1e-6)[0] if lack.any() else lack[:0]
            gap = min(gap, 2 * norm(mend))
        return gap + norm(y - near)


class _ActiveRows:
    """The state of the active-set method: the active rows with their signs, multipliers v and factors J, T."""

    def __init__(self, A: Any, l: Array, u: Array):
        size = np.sqrt(np.asarray(A.multiply(A).sum(axis=1)).ravel())
        size[size == 0] = 1.0
        self.set = np.ascontiguousarray(A.toarray() / size[:, None]), l / size, u / size
        d = A.shape[1]
        self.kept = np.eye(d), np.zeros((d, d)), np.zeros(d, np.int64), np.zeros(d), np.zeros(d)
        self.q = 0

    def project(self, x: Array, most: int, tolerance: float) -> tuple[Array, float, int]:
        """y with its accuracy and the changes of the active rows; from a cold start where the warm one failed."""
        y, x, count = np.empty(len(x)), np.ascontiguousarray(x), 0
        for again in (False, True):
            status, self.q, changes = active_set.project(x, *self.set, *self.kept, self.q, most - count, y)
            count += changes
            failed = status in (active_set.EMPTY, active_set.GAVE_UP)
            accuracy = self._gap(x, y) if failed else active_set.error_bound(x, *self.set, *self.kept, self.q, y)
            # rotations by the thousand lose bits
            if again or count >= most or (not failed and accuracy <= tolerance):
                break
            self.kept[0][:], self.q = np.eye(len(x)), 0
        if status == active_set.EMPTY:
            raise InputError(EMPTY)
        return y, float(accuracy), count

    def _gap(self, x: Array, y: Array) -> float:
        _, _, rows, signs, v = self.kept
        z = np.zeros(len(self.set[1]))
        z[rows[: self.q]] = -signs[: self.q] * v[: self.q]
        near = x - self.set[0].T @ z
        return _gap(self.set, near, z) + norm(y - near)


def _gap(polyhedron: tuple[Any, Array, Array], near: Array, z: Array) -> float:
    """The bound by a duality gap of the primal point of z, in the docstring of Polyhedron."""
    A, l, u = polyhedron
    rows = A @ near
    outside = float(np.abs(rows - np.clip(rows, l, u)).sum())
    if outside > 0 and max_abs(z) == 0:
        return math.inf
    missed = np.abs(rows - np.where(z > 0, u, np.where(z < 0, l, rows)))
    return math.sqrt(float(np.abs(z) @ missed) + 2 * max_abs(z) * outside)


def _osqp() -> Any:
    try:
        import osqp
    except ImportError:
        raise InputError(
            "a projection onto a Polyhedron of this size needs OSQP; install it with pip install 'proxskip[prox]', or "
            'give solver="active-set".'
        ) from None
    return osqp


def _stacked(G: Any, l: Any, u: Any, E: Any, e: Any) -> tuple[Any, Array, Array]:
    """G and E as one matrix A, with its lower and upper bounds."""
    if G is None and E is None:
        raise InputError("Polyhedron needs G with l or u, or E with e.")
    if G is None and not (l is None and u is None):
        raise InputError("Polyhedron was given bounds l or u without their rows G.")
    # a missing e is not taken for zero
    if (E is None) != (e is None):
        raise InputError("Polyhedron needs E and e together.")
    if G is not None and l is None and u is None:
        raise InputError("Polyhedron was given rows G without a bound l or u.")
    parts = []
    if G is not None:
        G = _matrix("G", G)
        parts.append((G, _bound("l", l, G, -np.inf), _bound("u", u, G, np.inf)))
    if E is not None:
        E = _matrix("E", E)
        right = _bound("e", e, E, 0.0)
        if not np.isfinite(right).all():
            raise InputError("Polyhedron needs finite numbers in e.")
        parts.append((E, right, right))
    if len({part[0].shape[1] for part in parts}) > 1:
        raise InputError(f"Polyhedron has G with {G.shape[1]} columns but E with {E.shape[1]}.")
    A = scipy.sparse.vstack([part[0] for part in parts], format="csr")
    low, high = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    wrong = ~(low <= high) | (low == np.inf) | (high == -np.inf)
    if wrong.any():
        i = int(wrong.argmax())
        raise InputError(f"Polyhedron needs l <= u, not l = {low[i]} and u = {high[i]} (row {i}).")
    return scipy.sparse.csc_matrix(A), low, high


def _matrix(name: str, matrix: Any) -> Any:
    M = scipy.sparse.csc_matrix(matrix, dtype=np.float64)
    if not np.isfinite(M.data).all():
        raise InputError(f"Polyhedron needs finite numbers in {name}.")
    return M


def _bound(name: str, values: npt.ArrayLike | None, M: Any, missing: float) -> Array:
    bound = np.asarray(missing if values is None else values, dtype=np.float64)
    if bound.ndim > 1 or bound.size not in (1, M.shape[0]):
        raise InputError(f"Polyhedron has {M.shape[0]} rows but {bound.size} numbers in {name}.")
    return np.array(np.broadcast_to(bound, M.shape[0]))
