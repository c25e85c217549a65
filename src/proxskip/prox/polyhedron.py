"""Projection onto a polyhedron by OSQP (Stellato et al., 2020), with one factorisation and warm starts."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.prox.contract import Iterative
from proxskip.prox.parts import INSIDE, as_point, max_abs, norm, sized
from proxskip.types import Array, InputError

OSQP_TOLERANCES = (1e-9, 1e-11, 1e-13)
"""Requested of OSQP one after another, while the certificate is above the tolerance."""


class Polyhedron(Iterative):
    """``{x : l <= G x <= u, E x = e}``, where either part may be missing; inexact, by OSQP (the extra ``prox``).

    With multipliers z, ``y = x - A'z`` is the exact projection onto a polyhedron with slightly different bounds. So
    ``|y - prox|^2`` is at most the sum over the rows i of ``|z_i|`` times the distance of row i to its bound, a duality
    gap; a row outside its bounds counts with twice the largest multiplier. If OSQP has polished its solution, the
    active rows are known, and the error is to first order at most the least change of y that puts them on their bounds.
    The accuracy is the smaller of the two, plus the distance to the y of OSQP.

    Args:
        G, E: dense or scipy.sparse matrices.
        max_iterations: of OSQP in one call.
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
    ):
        self.A, self.l, self.u = _stacked(G, l, u, E, e)
        self.d = self.A.shape[1]
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
        y, accuracy, count = flat, math.inf, 0
        # A warm start makes each stricter solve cheap.
        for strictness in OSQP_TOLERANCES:
            found = self._solve(flat, strictness, self.max_iterations - count)
            count += int(found.info.iter)
            if found.info.status_val in (3, 4):  # primal infeasible, exactly or approximately
                raise InputError("Polyhedron is empty: no point satisfies all of its rows.")
            reached = self._accuracy(flat, found)
            if reached < accuracy:
                y, accuracy = np.array(found.x), reached
            if accuracy <= self.tolerance or count >= self.max_iterations:
                break
        if not self.warm:
            self._solver = None
        self._record(accuracy, count)
        return y.reshape(x.shape)

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

    def _accuracy(self, x: Array, found: Any) -> float:
        """The certificate in the docstring of the class."""
        from scipy.sparse.linalg import lsqr

        y, z = np.asarray(found.x), np.array(found.y)
        if not (np.isfinite(y).all() and np.isfinite(z).all()):
            return math.inf
        # A multiplier of an infinite bound is an error of OSQP.
        z[(z > 0) & np.isinf(self.u) | (z < 0) & np.isinf(self.l)] = 0.0
        near = x - self.A.T @ z  # the primal point of z
        rows = self.A @ near
        outside = np.abs(rows - np.clip(rows, self.l, self.u))
        bound = np.where(z > 0, self.u, np.where(z < 0, self.l, rows))
        missed = np.abs(rows - bound)
        gap = math.sqrt(float(np.abs(z) @ missed) + 2 * max_abs(z) * float(outside.sum()))
        if found.info.status_polish == 1:  # polished: the rows with a multiplier are the active ones
            active = (z != 0) | (outside > 0)
            lack = np.where(z != 0, rows - bound, rows - np.clip(rows, self.l, self.u))[active]
            mend = lsqr(self.A[active], lack, atol=1e-6, btol=1e-6)[0] if lack.any() else lack[:0]
            gap = min(gap, 2 * norm(mend)) if max_abs(z) > 0 else 2 * norm(mend)
        elif max_abs(z) == 0 and outside.any():
            return math.inf
        return gap + norm(y - near)


def _osqp() -> Any:
    try:
        import osqp
    except ImportError:
        raise InputError(
            "a projection onto a Polyhedron needs OSQP; install it with pip install 'proxskip[prox]'."
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


def _matrix(name: str, given: Any) -> Any:
    M = scipy.sparse.csc_matrix(given, dtype=np.float64)
    if not np.isfinite(M.data).all():
        raise InputError(f"Polyhedron needs finite numbers in {name}.")
    return M


def _bound(name: str, given: npt.ArrayLike | None, M: Any, missing: float) -> Array:
    bound = np.asarray(missing if given is None else given, dtype=np.float64)
    if bound.ndim > 1 or bound.size not in (1, M.shape[0]):
        raise InputError(f"Polyhedron has {M.shape[0]} rows but {bound.size} numbers in {name}.")
    return np.array(np.broadcast_to(bound, M.shape[0]))
