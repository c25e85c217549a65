"""Helpers of the methods: drawing K, default parameters, and checks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from proxskip import theory
from proxskip.graphs import Graph
from proxskip.problems.federated import Problem
from proxskip.prox import inner_state
from proxskip.prox.adapted import Adapted
from proxskip.support.sums import weighted_sum
from proxskip.types import Array, Indices, InputError

NEVER = 1e15
"""More coin flips than will ever happen."""


def geometric(rng: np.random.Generator, p: float) -> int:
    """K ~ Geom(p) on {1, 2, ...}: the number of coin flips up to the first head of probability p."""
    u = 1.0 - rng.random()  # in (0, 1]
    return 1 if p >= 1 else 1 + int(math.log(u) / math.log1p(-p))


def over(weights: Array, gamma: npt.ArrayLike) -> Array:
    """w_i/gamma_i."""
    return np.asarray(weights / np.asarray(gamma))


def geometric_each(rng: np.random.Generator, p: Array) -> Indices:
    """K_i ~ Geom(p_i) for each of several probabilities; never, where p_i = 0."""
    u = 1.0 - rng.random(len(p))
    with np.errstate(divide="ignore", invalid="ignore"):
        flips = np.where(p > 0, np.log(u) / np.log1p(-p), NEVER)
    return 1 + np.minimum(flips, NEVER).astype(np.int64)


def check_gossip(graph: Graph, problem: Problem, may_fail: bool = False) -> None:
    """Refuse a graph without one node per client, unequal weights, and failing links unless they may fail."""
    if graph.failure and not may_fail:
        raise InputError(
            f"this method does not tolerate the failing links of the graph '{graph.name}'; use random-gossip or "
            "decentralized-scaffnew."
        )
    if graph.n != problem.n:
        raise InputError(f"the graph '{graph.name}' has {graph.n} nodes but there are {problem.n} clients.")


def off_subgradient(problem: Problem, x: Array, h: Array, t: float) -> float | None:
    """How far -sum_i w_i h_i is from a subgradient of psi at x, the result of a prox with step t; zero without psi.

    s is a subgradient at x exactly if  x = prox_{t psi}(x + t s).  None if the prox is inexact.
    """
    total = weighted_sum(problem.weights, h)
    if problem.psi is None:
        return float(np.abs(total).max())
    if isinstance(problem.psi, Adapted) or inner_state(problem.psi) is not None:
        return None
    return float(np.abs(x - problem.psi.prox(x - t * total, t)).max() / t)


# -- parameters that were not given ------------------------------------------------------------------------------------
def known_mu(problem: Problem, choice: str, instead: str = "") -> float:
    """The problem's mu, refused where it is unknown.

    Args:
        choice: the parameter that depends on it.
        instead: what to give in its place; the parameter itself if not given.
    """
    if problem.mu is None:
        give = instead or choice
        raise InputError(
            f"{choice} is chosen by mu, which is unknown here; give {give}, or l2 > 0 without an intercept."
        )
    return problem.mu


def largest_step(problem: Problem) -> float:
    """gamma = 1/L, or 1/A with minibatches."""
    return theory.largest_step(problem.es_A)


def longer_step(problem: Problem, longest: Callable[[], float]) -> float:
    """The longer step that a theorem allows for similar clients, or 1/L (1/A).

    Theorems consider the worst case, clients with one and the same Hessian. If the average is less than half as steep
    as the steepest client, 1/L takes fewer rounds (measured on quadratics with kappa = 1e3 and 1e4; docs/decisions.md).
    ``longest`` is for full gradients and L = max_i L_i.
    """
    exact = problem.batch is None and problem.smoothness == "max" and problem.mu is not None
    alike = exact and 2 * problem.L_average >= problem.L_max
    return longest() if alike else largest_step(problem)


def best_p(K: int | None, gamma: float, problem: Problem) -> float:
    """1/K for a fixed K, otherwise sqrt(gamma mu)."""
    return 1.0 / K if K is not None else theory.best_p(gamma, known_mu(problem, "p", "p or K"))


def local_steps(problem: Problem) -> int:
    """sqrt(kappa) rounded: the mean number of local steps of Scaffnew at its best p (paper, Section 6)."""
    return max(1, round(math.sqrt(theory.kappa(problem.L, known_mu(problem, "K")))))


def first_of(kept: object, what: str = "a step size that is balanced", instead: str = "give balance=False") -> float:
    """The adaptive number that a server keeps, if its vectors can be read."""
    if not isinstance(kept, np.ndarray):
        raise InputError(f'{what} has to read x in every round; {instead}, or use engine="cpu".')
    return float(kept[0])
