"""Functions of the singular values or eigenvalues of a matrix x.

If a convex psi is invariant under permutations of its arguments (and, for singular values, sign changes), the prox of
``psi(spectrum of X)`` has X's singular or eigenvectors and the prox of psi at its spectrum (Lewis, "The convex
analysis of unitarily invariant matrix functions", 1995). A matrix that is not symmetric is outside the domain of a
function of eigenvalues; its prox is that of its symmetric part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from proxskip.prox.norms import L1, L2, ElasticNet, Huber, SquaredL2, Zero
from proxskip.prox.parts import INSIDE, Operator, as_point, matrix_shape, max_abs, shaped, sized
from proxskip.prox.sets import Box, L1Ball, L2Ball, NonNegative, Simplex
from proxskip.types import Array, InputError

SIGN_SYMMETRIC = (Zero, L1, L2, SquaredL2, ElasticNet, Huber, L1Ball, L2Ball)
"""Operators that neither permutations nor sign changes affect; so is a Box that is symmetric about 0."""
ORDER_SYMMETRIC = (*SIGN_SYMMETRIC, NonNegative, Simplex)
"""Operators that no permutation affects; so is a Box with one lower and one upper bound."""


class _OfSingularValues(Operator):
    """psi of the singular values of x as a matrix; those of a matrix that is not finite are NaN."""

    __slots__ = ()
    psi: Operator
    shape: tuple[int, int]

    def __call__(self, x: Array) -> float:
        shaped(self, x, self.shape)
        X = np.reshape(x, self.shape)
        if not np.isfinite(X).all():  # LAPACK would refuse it
            return self.psi(np.full(min(X.shape), np.nan))
        return self.psi(np.asarray(np.linalg.svd(X, compute_uv=False), dtype=np.float64))

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        shaped(self, x, self.shape)
        if not np.isfinite(x).all():
            return np.full_like(x, np.nan)
        U, s, V = np.linalg.svd(x.reshape(self.shape), full_matrices=False)
        return np.reshape((U * self.psi.prox(s, t)) @ V, x.shape)


@dataclass(frozen=True, slots=True)
class NuclearNorm(_OfSingularValues):
    """``lam`` times the sum of the singular values of x as a matrix of this shape; its prox soft-thresholds them."""

    lam: float
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        Operator.__post_init__(self)
        object.__setattr__(self, "shape", matrix_shape(self, self.shape))

    @property
    def psi(self) -> Operator:  # type: ignore[override]
        """The same norm of the singular values."""
        return L1(self.lam)


@dataclass(frozen=True, slots=True)
class SingularValues(_OfSingularValues):
    """psi of the singular values of x as a matrix of this shape, for a psi without preferred signs or order."""

    psi: Operator
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        # one number for all entries, the same in both directions
        even = isinstance(self.psi, Box) and isinstance(self.psi.lo, float) and self.psi.lo == -np.asarray(self.psi.hi)
        if not (isinstance(self.psi, SIGN_SYMMETRIC) or even):
            raise InputError(f"SingularValues needs a psi that ignores signs and order, not {self.psi!r}.")
        object.__setattr__(self, "shape", matrix_shape(self, self.shape))


@dataclass(frozen=True, slots=True)
class Eigenvalues(Operator):
    """psi of the eigenvalues of x as a symmetric n by n matrix, for a psi that ignores the order of its arguments."""

    psi: Operator
    n: int

    def __post_init__(self) -> None:
        fair = isinstance(self.psi, Box) and isinstance(self.psi.lo, float) and isinstance(self.psi.hi, float)
        if not (isinstance(self.psi, ORDER_SYMMETRIC) or fair):
            raise InputError(f"Eigenvalues needs a psi that ignores the order of its arguments, not {self.psi!r}.")
        if self.n < 1:
            raise InputError(f"Eigenvalues needs n >= 1, not n = {self.n}.")

    def __call__(self, x: Array) -> float:
        sized(self, x, self.n**2)
        X = np.reshape(x, (self.n, self.n))
        if not max_abs(X - X.T) <= INSIDE * max_abs(X):
            return math.inf
        return self.psi(np.asarray(np.linalg.eigvalsh((X + X.T) / 2), dtype=np.float64))

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        sized(self, x, self.n**2)
        X = x.reshape(self.n, self.n)
        if not np.isfinite(X).all():
            return np.full_like(x, np.nan)
        w, V = np.linalg.eigh((X + X.T) / 2)
        P = (V * self.psi.prox(w, t)) @ V.T  # symmetric up to rounding
        return np.reshape((P + P.T) / 2, x.shape)


def psd(n: int) -> Eigenvalues:
    """The positive semidefinite n by n matrices."""
    return Eigenvalues(NonNegative(), n)


def spectral_ball(radius: float, shape: tuple[int, int]) -> SingularValues:
    """The matrices whose largest singular value is at most the radius.

    Args:
        radius: of the ball.
        shape: of the matrices.
    """
    return SingularValues(Box(-L2Ball(radius).radius, radius), shape)


def nuclear_ball(radius: float, shape: tuple[int, int]) -> SingularValues:
    """The matrices whose singular values sum to at most the radius.

    Args:
        radius: of the ball.
        shape: of the matrices.
    """
    return SingularValues(L1Ball(radius), shape)
