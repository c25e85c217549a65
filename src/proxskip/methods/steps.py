"""What the methods share and no paper names: drawing K, and checking the other parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.links.graphs import Graph
from proxskip.links.sums import weighted_sum
from proxskip.problems.federated import Problem
from proxskip.prox import inner_state
from proxskip.prox.adapted import Adapted
from proxskip.types import Array, Indices, InputError

_MADE: tuple[tuple[Callable[..., Array], tuple[Any, ...], Array], ...] = ()
"""What ``once`` made last, and of what."""

NEVER = 1e15
"""As a number of coin flips: more than there will be."""


def geometric(rng: np.random.Generator, p: float) -> int:
    """K ~ Geom(p) on {1, 2, ...}: the number of coin flips up to the first head of probability p."""
    u = 1.0 - rng.random()  # in (0, 1]
    return 1 if p >= 1 else 1 + int(math.log(u) / math.log1p(-p))


def once(make: Callable[..., Array], *given: Any) -> Array:
    """``make(*given)``, made once for these very objects: for what takes as long as there are clients."""
    global _MADE
    for f, seen, array in _MADE:
        if f is make and len(seen) == len(given) and all(a is b for a, b in zip(seen, given, strict=True)):
            return array
    array = make(*given)
    array.setflags(write=False)
    _MADE = ((make, given, array), *_MADE[:3])
    return array


def over(weights: Array, gamma: Any) -> Array:
    """w_i/gamma_i."""
    return np.asarray(weights / np.asarray(gamma))


def geometric_each(rng: np.random.Generator, p: Array) -> Indices:
    """K_i ~ Geom(p_i) for each of several probabilities; never, where p_i = 0."""
    u = 1.0 - rng.random(len(p))
    with np.errstate(divide="ignore", invalid="ignore"):
        flips = np.where(p > 0, np.log(u) / np.log1p(-p), NEVER)
    return 1 + np.minimum(flips, NEVER).astype(np.int64)


def local_steps(problem: Problem) -> int:
    """sqrt(kappa) rounded: as many local steps as Scaffnew takes on average at its best p (paper, Section 6)."""
    return max(1, round(math.sqrt(theory.kappa(problem.L, problem.mu))))


def check_gossip(graph: Graph, problem: Problem, may_fail: bool = False) -> None:
    """One node for each client, equal weights, and links that do not fail unless they may."""
    if graph.failure and not may_fail:
        raise InputError(
            f"the links of the graph '{graph.name}' fail, which this method does not tolerate; use random-gossip or "
            "decentralized-scaffnew."
        )
    if graph.n != problem.n:
        raise InputError(f"the graph '{graph.name}' has {graph.n} nodes but there are {problem.n} clients.")
    if float(problem.weights.max() - problem.weights.min()) > 1e-12:
        raise InputError(
            'gossip with a doubly stochastic W solves the equally weighted problem; split with weights="equal".'
        )


def off_subgradient(problem: Problem, x: Array, h: Array, t: float) -> float | None:
    """How far -sum_i w_i h_i is from a subgradient of psi at x, to which the prox of step t led; zero without psi.

    s is a subgradient at x exactly if  x = prox_{t psi}(x + t s).  None where the prox is inexact.
    """
    total = weighted_sum(problem.weights, h)
    if problem.psi is None:
        return float(np.abs(total).max())
    if isinstance(problem.psi, Adapted) or inner_state(problem.psi) is not None:
        return None
    return float(np.abs(x - problem.psi.prox(x - t * total, t)).max() / t)


# -- parameters that are given, and the theorem's for the rest ---------------------------------------------------------
def gamma_of(given: Mapping[str, Any], problem: Problem) -> float:
    """As given, or 1/L (1/A with minibatches)."""
    gamma = given.get("gamma")
    return gamma if isinstance(gamma, float) else theory.largest_step(problem.es_A)


def longer_gamma(given: Mapping[str, Any], problem: Problem, longest: Callable[[], float]) -> float:
    """As given, or the longer step that a theorem likes best for clients that are alike, or 1/L (1/A).

    Clients with one and the same Hessian are the worst case, which theorems are about. Where the mean of the clients is
    less than half as steep as the steepest of them, 1/L takes fewer rounds (measured on quadratics with kappa = 1e3 and
    1e4; docs/decisions.md). ``longest`` is for full gradients and L = max_i L_i.
    """
    exact = problem.batch is None and problem.L_kind == "max" and problem.mu is not None
    if "gamma" in given or not exact or 2 * problem.L_global < problem.L_max:
        return gamma_of(given, problem)
    return longest()


def p_of(given: Mapping[str, Any], best: Callable[[], float]) -> float:
    """As given, or 1/K for a fixed K, or the best for this gamma."""
    if "p" in given:
        return float(given["p"])
    return best() if "K" not in given else 1.0 / int(given["K"])


def first_of(kept: Any, what: str = "a step size that adapts", instead: str = "give gamma") -> float:
    """The number that a server keeps and changes by what it sees, where its vectors can be read."""
    if not isinstance(kept, np.ndarray):
        raise InputError(f'{what} has to see x in every round; {instead}, or use engine="cpu".')
    return float(kept[0])
