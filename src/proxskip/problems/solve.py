"""The reference solution: x* with a certificate, or None where it would be too expensive or cannot be certified."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy

from proxskip.problems import gradient_check, oracles, prox_check
from proxskip.problems.operators import is_identity, operator_norm2
from proxskip.prox import ProxWarning
from proxskip.support.cores import one_blas_thread
from proxskip.types import Array, GradientWarning

Problem: TypeAlias = Any
"""``federated.Problem``, which imports this module."""

MAX_DENSE_HESSIAN = 3000
"""Up to this many unknowns, Newton's method factorises the Hessian; beyond, it uses conjugate gradients."""
MAX_UNKNOWNS = 200_000
"""Beyond this many unknowns, no reference solution is computed."""
MAX_CERTIFICATE = 1e-10
"""A point is a solution if its gradient is this small, relative to the clients' gradients that cancel in it."""
MAX_ONE_THREAD = 10_000_000
"""Up to this many numbers of data, one thread of BLAS is fast enough, and often faster than several."""


@dataclass(frozen=True)
class Solution:
    """What the methods converge to.

    Args:
        x: the minimizer x*.
        f: the minimum f*.
        gradients: the function that computes h.
        y: the dual solution of psi(D x), otherwise None.
        certificate: |grad f(x*)|, with psi the norm of the prox-gradient residual.
    """

    x: Array
    f: float
    gradients: Callable[[], Array]
    y: Array | None
    certificate: float

    @cached_property
    def h(self) -> Array:
        """grad f_i(x*), one row per client; computed on first use, since it is large for many clients."""
        return self.gradients()


def minimize(problem: Problem) -> tuple[Array, Array | None, float] | None:
    """(x*, y*, certificate); None where no point can be certified at a reasonable cost, or a gradient is wrong."""
    newton = problem.psi is None and hasattr(problem.whole, "hessp") and oracles.has_rows(problem.whole)
    if problem.d > MAX_UNKNOWNS or (problem.mu is None and not (newton and problem.d <= MAX_DENSE_HESSIAN)):
        return None
    problem = in_double(problem)
    scale = _scale(problem)
    y, curved = None, True
    if problem.psi is None:
        x = _smooth_minimizer(problem)
        certificate = float(np.linalg.norm(problem.gradient(x)))
        # Without mu, a small gradient may also mean a slope that only flattens out towards infinity.
        curved = problem.mu is not None or _is_curved(problem, x)
    elif problem.D is None or is_identity(problem.D):
        plain = problem if problem.D is None else replace(problem, D=None)
        x = _accelerated(plain)
        certificate = plain.residual(x, 1.0 / problem.L_average)
        y = None if problem.D is None else -problem.gradient(x)  # the optimality condition for D = I
    else:
        x, y, certificate = _papc(problem)
    probed = prox_check.of_operator(problem.psi)
    if probed is not None:
        gamma = 1.0 / problem.L_average
        _ = probed(x - gamma * problem.gradient(x), gamma) if y is None else probed(y + problem.D @ x, 1.0)
        certificate += probed.spoils
    if certificate > MAX_CERTIFICATE * scale or not curved:
        return None
    fault = gradient_check.of_clients(problem.clients, x)
    wrong = None if probed is None else probed.doubt(certificate, certificate)
    if fault is not None or wrong is not None:
        kind = ProxWarning if fault is None else GradientWarning
        warnings.warn(f"{fault or wrong} The minimum is therefore unknown.", kind, stacklevel=4)
        return None
    return x, y, certificate


def _smooth_minimizer(problem: Problem) -> Array:
    """The minimizer without psi, by the best way that there is."""
    exact = None if problem.mu is None else oracles.attribute(problem.whole, "minimizer")
    if exact is not None:
        return np.asarray(exact)
    if hasattr(problem.whole, "hessp"):
        return _newton(problem.whole, problem.d)
    return _accelerated(problem)


def _is_curved(problem: Problem, x: Array) -> bool:
    """Whether the Hessian at x is far from singular."""
    eigenvalues = scipy.linalg.eigvalsh(problem.whole.hessian(x))
    steepest = problem.L_average if problem.knows_L else eigenvalues[-1]
    return bool(eigenvalues[0] > 1e-9 * steepest)


def blas_threads(problem: Problem) -> AbstractContextManager[None]:
    """Within this, the matrices of this problem are multiplied on as many threads as are worth it."""
    return one_blas_thread() if (problem.N or 1) * problem.d <= MAX_ONE_THREAD else nullcontext()


def in_double(problem: Any) -> Any:
    """The same problem with its data converted from single to double precision."""
    clients = problem.clients.in_double()
    if clients is problem.clients:
        return problem
    return replace(problem, clients=clients, whole=oracles.in_double(problem.whole))


def _scale(problem: Problem) -> float:
    """The root mean square of the clients' gradients at zero; at the solution they cancel."""
    squares = np.concatenate([np.sum(G * G, axis=1) for _, G in problem.gradient_blocks(np.zeros(problem.d))])
    return float(np.sqrt(problem.weights @ squares)) + 1e-300


def _newton(f: Any, d: int, steps: int = 200) -> Array:
    """Newton's method with backtracking on the value, then full steps while the gradient still falls."""
    x = np.zeros(d)
    g = f.gradient(x)
    first, size = float(np.linalg.norm(g)), 0.0
    for _ in range(steps):
        step = _newton_step(f, x, g, d, first)
        slope = float(g @ step)
        value, t = f.value(x), 1.0
        # Close to x* the value no longer changes beyond rounding, so the gradient decides there.
        size = max(size, abs(value), abs(slope))
        near = abs(slope) <= 1e-10 * size
        while not near and t > 1e-10 and f.value(x - t * step) > value - 1e-4 * t * slope:
            t /= 2
        new = x - t * step
        g_new = f.gradient(new)
        if near and not np.linalg.norm(g_new) < np.linalg.norm(g):
            return x
        x, g = new, g_new
    return x


def _newton_step(f: Any, x: Array, g: Array, d: int, first: float) -> Array:
    """H^-1 g, by a Cholesky factorisation or by conjugate gradients; ``first`` is the norm of the first gradient."""
    if d <= MAX_DENSE_HESSIAN and hasattr(f, "hessian") and oracles.has_rows(f):
        try:
            return np.asarray(scipy.linalg.cho_solve(scipy.linalg.cho_factor(f.hessian(x)), g))
        except np.linalg.LinAlgError:  # singular: take the shortest step
            return np.asarray(scipy.linalg.lstsq(f.hessian(x), g)[0])
    from scipy.sparse.linalg import LinearOperator, cg

    H = LinearOperator((d, d), matvec=lambda v: f.hessp(x, v), dtype=np.float64)
    share = float(np.linalg.norm(g)) / (first or 1.0)
    # inexact Newton: looser far from x*, superlinear close to it
    step, _ = cg(H, g, rtol=min(0.1, share), maxiter=2000)
    return np.asarray(step)


def _fast_gradient(problem: Problem) -> Callable[[Array], Array]:
    """The gradient of the smooth part, in one pass over all rows where that is possible."""
    return problem.gradient if problem.whole is None else lambda x: np.asarray(problem.whole.gradient(x))


def _accelerated(problem: Problem, steps: int = 100_000) -> Array:
    """FISTA with the constant momentum of strong convexity, until the residual no longer falls."""
    gamma = 1.0 / (problem.L_average if problem.whole is not None else problem.L_max)
    gradient = _fast_gradient(problem)
    # Nesterov, 2018, section 2.2: beta = (1 - sqrt(gamma mu))/(1 + sqrt(gamma mu))
    root = np.sqrt(gamma * (problem.mu or 0.0))
    beta = (1 - root) / (1 + root)
    x = np.zeros(problem.d)
    y = best_x = x
    best, since = np.inf, 0  # the least residual, and the steps since it fell by one percent
    for _ in range(steps):
        new = y - gamma * gradient(y)
        if problem.psi is not None:
            new = problem.psi.prox(new, gamma)
        residual = float(np.linalg.norm(new - y)) / gamma
        y, x = new + beta * (new - x), new
        since += 1
        if residual < 0.99 * best:
            best = residual
            best_x = x
            since = 0
        elif since > 20 / root + 50:
            break
    return best_x


def _papc(problem: Problem, steps: int = 200_000) -> tuple[Array, Array, float]:
    """The primal-dual method of Loris and Verhoeven (SplitSkip with p = 1), until the residual no longer falls."""
    D, psi = problem.D, problem.psi
    gamma, gradient = 1.0 / problem.L_average, _fast_gradient(problem)
    tau = 1.0 / (gamma * operator_norm2(D))
    x, y = np.zeros(problem.d), np.zeros(D.shape[0])
    best: tuple[float, Array, Array] = (np.inf, x, y)
    since = 0  # steps since the residual last fell by one percent
    for _ in range(steps):
        # xhat: a step with the old y; then the prox of psi* by Moreau's identity, and x corrected for the new y
        xhat = x - gamma * (gradient(x) + D.T @ y)
        u = y + tau * (D @ xhat)
        y_new = u - tau * psi.prox(u / tau, 1.0 / tau)
        x_new = xhat - gamma * (D.T @ (y_new - y))
        residual = float(
            np.linalg.norm(x_new - x) / gamma + np.linalg.norm(y_new - y) / tau * np.sqrt(problem.L_average)
        )
        x = x_new
        y = y_new
        since = since + 1
        if residual < 0.99 * best[0]:
            best, since = (residual, x, y), 0
        elif since > 5000:
            break
    return best[1], best[2], best[0]
