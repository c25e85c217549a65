"""Quadratic functions, whose constants and solution are exact."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from proxskip import theory
from proxskip.problems.spectrum import norm, smallest_eigenvalue, top_eigenvalue
from proxskip.support.randomness import generator
from proxskip.types import Array, InputError


class Quadratic:
    """f(x) = 1/2 x' H x - b' x + c,  with H symmetric positive semidefinite, given as a matrix or by its diagonal.

    Args:
        H: a symmetric matrix, or the diagonal of a diagonal one.
        b: the vector of the linear term.
        c: the constant.

    >>> import numpy as np
    >>> f = Quadratic(np.array([1.0, 4.0]), np.ones(2))
    >>> f.L, f.mu, f.minimizer.tolist()
    (4.0, 1.0, [1.0, 0.25])
    """

    def __init__(self, H: npt.ArrayLike, b: npt.ArrayLike, c: float = 0.0) -> None:
        self.H = np.asarray(H, dtype=np.float64)
        self.b = np.asarray(b, dtype=np.float64)
        self.c = float(c)
        d = self.b.shape[0] if self.b.ndim == 1 else -1
        if self.H.shape not in ((d,), (d, d)):
            raise InputError(f"H of shape {self.H.shape} does not fit b of shape {self.b.shape}.")
        if not (np.isfinite(self.H).all() and np.isfinite(self.b).all()):
            raise InputError("H or b holds NaN or infinite values.")
        if self.H.ndim == 2 and not np.allclose(self.H, self.H.T, rtol=1e-12, atol=1e-12 * np.abs(self.H).max()):
            raise InputError("H is not symmetric; give (H + H')/2.")
        # Both are cached, so the eigenvalues are computed only here.
        if self.mu < -1e-12 * abs(self.L):
            raise InputError(f"H has the negative eigenvalue {self.mu:.3g}; the quadratic is not convex.")

    def __repr__(self) -> str:
        return f"Quadratic({self.d:,} unknowns, L={self.L:g}, mu={self.mu:g})"

    @property
    def d(self) -> int:
        """The number of unknowns."""
        return int(self.b.shape[0])

    @cached_property
    def L(self) -> float:
        """The largest eigenvalue of H."""
        return float(self.H.max()) if self.H.ndim == 1 else top_eigenvalue(self.H)

    @cached_property
    def mu(self) -> float:
        """The smallest eigenvalue of H."""
        return float(self.H.min()) if self.H.ndim == 1 else smallest_eigenvalue(self.H)

    def _times(self, x: Array) -> Array:
        return self.H * x if self.H.ndim == 1 else self.H @ x

    def value(self, x: Array) -> float:
        """f(x)."""
        return float(0.5 * (x @ self._times(x)) - self.b @ x + self.c)

    def gradient(self, x: Array) -> Array:
        """H x - b."""
        return self._times(x) - self.b

    def hessian(self, x: Array) -> Array:
        """H."""
        return np.diag(self.H) if self.H.ndim == 1 else self.H

    def hessp(self, x: Array, v: Array) -> Array:
        """H v."""
        return self._times(v)

    def sizes_of_terms(self, x: Array) -> tuple[float, float]:
        """How large the terms of the value and of the gradient are, see ``oracles.Terms``."""
        length, slope = norm(x), self.L * norm(x) + norm(self.b)
        return length * slope + abs(self.c), slope

    @cached_property
    def minimizer(self) -> Array:
        """The exact solution of H x = b."""
        if self.mu <= 0:
            raise InputError("this quadratic has no unique minimizer (its smallest eigenvalue is zero).")
        return self.b / self.H if self.H.ndim == 1 else np.asarray(np.linalg.solve(self.H, self.b))

    @staticmethod
    def average(parts: list[Quadratic], weights: Array) -> Quadratic:
        """sum_i w_i f_i  as one quadratic.

        Args:
            parts, weights: the quadratics and their weights.
        """
        # Diagonal parts become matrices only if some other part is one.
        full = any(f.H.ndim == 2 for f in parts)
        H = sum(w * (f.hessian(f.b) if full else f.H) for w, f in zip(weights, parts, strict=True))
        b = sum(w * f.b for w, f in zip(weights, parts, strict=True))
        return Quadratic(H, b, float(sum(w * f.c for w, f in zip(weights, parts, strict=True))))


def random_quadratics(
    n: int,
    d: int,
    L: float = 1.0,
    mu: float = 0.01,
    *,
    heterogeneity: float = 1.0,
    diagonal: bool = False,
    seed: int = 0,
) -> list[Quadratic]:
    """n heterogeneous quadratics, each with its own minimizer and with eigenvalues from mu to L (both attained).

    Args:
        n: how many.
        d: the number of unknowns.
        L: the largest eigenvalue.
        mu: the smallest eigenvalue.
        seed: of the draw.
        heterogeneity: the standard deviation of the coordinates of the minimizers.
        diagonal: make every H diagonal.
    """
    n, d = theory.whole("n", n), theory.whole("d", d)
    L, mu = theory.ordered(L, theory.positive("mu", mu))
    rng = generator(theory.whole_seed(seed))
    quadratics = []
    for _ in range(n):
        # evenly in the logarithm, so that no method profits from a gap in the spectrum
        eigenvalues = np.geomspace(mu, L, d) if d > 1 else np.array([L])
        center = heterogeneity * rng.standard_normal(d)
        if diagonal:
            H = rng.permutation(eigenvalues)
            quadratics.append(Quadratic(H, H * center))
        else:
            # A random rotation of the same eigenvalues for each client; symmetric to the last bit.
            Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
            S = (Q * eigenvalues) @ Q.T
            S = (S + S.T) / 2
            quadratics.append(Quadratic(S, S @ center))
    return quadratics
