"""The measurements at a communicated x: value, gap, residual, sum of h, Lyapunov function."""

from __future__ import annotations

import numpy as np

from proxskip.interfaces import Claims
from proxskip.problems.federated import Problem
from proxskip.prox import conjugate_prox
from proxskip.types import Array, Vectors


def residual(problem: Problem, x: Array, server: Vectors) -> float:
    """How far x is from optimal: |grad f|; with psi the prox-gradient residual, with D that of (x, y)."""
    if problem.D is None:
        return problem.residual(x, 1.0 / problem.L_global if problem.knows_L else 1.0)
    assert problem.psi is not None
    y = server["y"]
    primal = problem.gradient(x) + problem.D.T @ y
    dual = y - conjugate_prox(problem.psi, y + problem.D @ x, 1.0)
    return float(np.linalg.norm(primal) + np.linalg.norm(dual))


def at_point(problem: Problem, x: Array) -> dict[str, float]:
    """f, gap and gradient norm at x alone; not the norm for psi(D x), which needs y too."""
    f = problem.value(x)
    row = {"f": f} if problem.D is not None else {"f": f, "grad_norm": residual(problem, x, {})}
    row |= problem.measured(x)
    return row if problem.solution is None else row | {"gap": f - problem.solution.f}


def measure(
    claims: Claims, problem: Problem, x: Array, server: Vectors, memory: Vectors, excess: float | None
) -> dict[str, float]:
    """f, gap, gradient norm, sum of h and Lyapunov function at the communicated x.

    Args:
        excess: ``Method.excess`` there.
    """
    row = at_point(problem, x)
    if problem.D is not None:
        row["grad_norm"] = residual(problem, x, server)
    # with psi the sum tends to minus a subgradient of psi, and one client has no sum
    if problem.psi is None and excess is not None:
        row["sum_h"] = excess
    psi = claims.lyapunov(x, server, memory)
    row["lyapunov"] = np.nan if psi is None else psi
    return row
