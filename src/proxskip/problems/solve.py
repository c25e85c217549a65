"""The reference minimiser: x* with a certificate, or nothing at all where it cannot be had at a reasonable price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import scipy

from proxskip.problems.operators import is_identity, operator_norm2
from proxskip.types import Array, Prox

DENSE_UP_TO = 3000
"""Unknowns up to which Newton's method factorises the Hessian; beyond, it uses conjugate gradients."""
AFFORDABLE = 200_000
"""Unknowns beyond which no reference solution is sought."""
ENOUGH = 1e-10
"""A point is a solution if its gradient is this small, relative to the gradients that cancel in it."""


class Composite(Protocol):
    """What the minimiser needs to know of a problem (see ``federated.Problem``)."""

    @property
    def clients(self) -> Sequence[Any]: ...
    @property
    def weights(self) -> Array: ...
    @property
    def psi(self) -> Prox | None: ...
    @property
    def D(self) -> Any: ...
    @property
    def whole(self) -> Any: ...
    @property
    def d(self) -> int: ...
    @property
    def mu(self) -> float | None: ...
    @property
    def L_max(self) -> float: ...
    @property
    def L_global(self) -> float: ...
    def gradient(self, x: Array) -> Array: ...
    def client_gradients(self, x: Array) -> Array: ...
    def residual(self, x: Array, gamma: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Solution:
    """Where the methods go: x*, f*, h_i* = grad f_i(x*), y* for psi(D x), and |grad f(x*)| (or the prox residual)."""

    x: Array
    f: float
    h: Array
    y: Array | None
    certificate: float


def minimize(problem: Composite) -> tuple[Array, Array | None, float] | None:
    """(x*, y*, certificate), or None."""
    newton = problem.psi is None and hasattr(problem.whole, "hessp") and getattr(problem.whole, "has_rows", True)
    if problem.d > AFFORDABLE or (problem.mu is None and not (newton and problem.d <= DENSE_UP_TO)):
        return None
    problem = in_double(problem)
    scale = _scale(problem)
    if problem.psi is None:
        if problem.mu is not None and hasattr(problem.whole, "minimizer"):
            x = problem.whole.minimizer
        elif hasattr(problem.whole, "hessp"):
            x = _newton(problem.whole, problem.d)
        else:
            x = _accelerated(problem)
        certificate = float(np.linalg.norm(problem.gradient(x)))
        bowl = problem.mu is not None or _curved(problem.whole.hessian(x), problem.L_global)
        return (x, None, certificate) if certificate <= ENOUGH * scale and bowl else None
    if problem.D is None:
        x = _accelerated(problem)
        certificate = problem.residual(x, 1.0 / problem.L_global)
        return (x, None, certificate) if certificate <= ENOUGH * scale else None
    if is_identity(problem.D):
        plain: Any = problem
        plain = replace(plain, D=None)
        x = _accelerated(plain)
        certificate = plain.residual(x, 1.0 / problem.L_global)
        return (x, -problem.gradient(x), certificate) if certificate <= ENOUGH * scale else None
    x, y, certificate = _papc(problem)
    return (x, y, certificate) if certificate <= ENOUGH * scale else None


def in_double(problem: Any) -> Any:
    """The same problem with data stored in single precision taken as double."""
    if getattr(problem.whole, "dtype", None) != np.dtype(np.float32):
        return problem
    clients: list[Any] = list(problem.clients)
    return replace(problem, clients=[f.double() for f in clients], whole=problem.whole.double())


def _curved(H: Array, L: float) -> bool:
    """Whether the minimiser is one: a small gradient on a plain that only flattens out towards infinity is none."""
    return bool(scipy.linalg.eigvalsh(H)[0] > 1e-9 * L)


def _scale(problem: Composite) -> float:
    """The size of the clients' gradients, which cancel at the solution."""
    G = problem.client_gradients(np.zeros(problem.d))
    return float(np.sqrt(problem.weights @ np.sum(G * G, axis=1))) + 1e-300


def _newton(f: Any, d: int, steps: int = 200) -> Array:
    """Newton's method with backtracking on the value, then pure steps while the gradient still falls."""
    x = np.zeros(d)
    g = f.gradient(x)
    for _ in range(steps):
        step = _newton_step(f, x, g, d)
        slope = float(g @ step)
        value, t = f.value(x), 1.0
        near = abs(slope) <= 1e-10 * (1.0 + abs(value))
        while not near and t > 1e-10 and f.value(x - t * step) > value - 1e-4 * t * slope:
            t /= 2
        new = x - t * step
        g_new = f.gradient(new)
        if near and not np.linalg.norm(g_new) < np.linalg.norm(g):
            return x
        x, g = new, g_new
    return x


def _newton_step(f: Any, x: Array, g: Array, d: int) -> Array:
    if d <= DENSE_UP_TO and hasattr(f, "hessian") and getattr(f, "has_rows", True):
        try:
            return np.asarray(scipy.linalg.cho_solve(scipy.linalg.cho_factor(f.hessian(x)), g))
        except np.linalg.LinAlgError:  # flat in some direction
            return np.asarray(scipy.linalg.lstsq(f.hessian(x), g)[0])
    from scipy.sparse.linalg import LinearOperator, cg

    H = LinearOperator((d, d), matvec=lambda v: f.hessp(x, v), dtype=np.float64)
    norm = float(np.linalg.norm(g))
    step, _ = cg(H, g, rtol=min(0.1, norm), maxiter=2000)
    return np.asarray(step)


def _slope(problem: Composite) -> Callable[[Array], Array]:
    """The gradient of the smooth part in one pass over all rows, where there is a way: it is asked for often."""
    return problem.gradient if problem.whole is None else lambda x: np.asarray(problem.whole.gradient(x))


def _accelerated(problem: Composite, steps: int = 100_000) -> Array:
    """FISTA in its strongly convex form, restarted when the residual stops falling for long."""
    gamma = 1.0 / (problem.L_global if problem.whole is not None else problem.L_max)
    slope = _slope(problem)
    root = np.sqrt(gamma * (problem.mu or 0.0))
    beta = (1 - root) / (1 + root)
    x = y = best_x = np.zeros(problem.d)
    best, since = np.inf, 0
    for _ in range(steps):
        new = y - gamma * slope(y)
        if problem.psi is not None:
            new = problem.psi.prox(new, gamma)
        residual = float(np.linalg.norm(new - y)) / gamma
        y, x = new + beta * (new - x), new
        since += 1
        if residual < 0.99 * best:
            best, best_x, since = residual, x, 0
        elif since > 20 / root + 50:
            break
    return best_x


def _papc(problem: Composite, steps: int = 200_000) -> tuple[Array, Array, float]:
    """Loris and Verhoeven's primal-dual method (SplitSkip with p = 1) to the end of double precision."""
    D, psi = problem.D, problem.psi
    assert psi is not None
    gamma, slope = 1.0 / problem.L_global, _slope(problem)
    tau = 1.0 / (gamma * operator_norm2(D))
    x, y = np.zeros(problem.d), np.zeros(D.shape[0])
    best: tuple[float, Array, Array] = (np.inf, x, y)
    since = 0
    for _ in range(steps):
        xhat = x - gamma * (slope(x) + D.T @ y)
        u = y + tau * (D @ xhat)
        y_new = u - tau * psi.prox(u / tau, 1.0 / tau)
        x_new = xhat - gamma * (D.T @ (y_new - y))
        residual = float(
            np.linalg.norm(x_new - x) / gamma + np.linalg.norm(y_new - y) / tau * np.sqrt(problem.L_global)
        )
        x, y, since = x_new, y_new, since + 1
        if residual < 0.99 * best[0]:
            best, since = (residual, x, y), 0
        elif since > 5000:
            break
    return best[1], best[2], best[0]
