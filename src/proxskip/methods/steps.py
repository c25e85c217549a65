"""What the methods share and no paper names: drawing K, and saying whether a step size is safe."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxskip.links.graphs import Graph
from proxskip.problems.federated import Problem
from proxskip.theory import table1
from proxskip.types import InputError

SMALLEST = 1e-8
"""The smallest probability of communicating: below it a single round would hardly ever end."""


def geometric(rng: np.random.Generator, p: float) -> int:
    """K ~ Geom(p) on {1, 2, ...}: the number of coin flips up to the first head of probability p."""
    u = 1.0 - rng.random()  # in (0, 1]
    return 1 if p >= 1 else 1 + int(math.log(u) / math.log1p(-p))


def check_probability(name: str, value: float) -> None:
    """A probability in (0, 1]."""
    if isinstance(value, bool) or not (isinstance(value, (int, float, np.number)) and 0 < value <= 1):
        raise InputError(f"{name} = {value!r} must lie in (0, 1].")
    if value < SMALLEST:
        raise InputError(f"{name} = {value:g} asks for {1 / value:.0e} steps at a time; take at least {SMALLEST:g}.")


def check_decay(value: Any) -> None:
    """A finite number of at least zero."""
    number = not isinstance(value, bool) and isinstance(value, (int, float, np.number))
    if not (number and math.isfinite(value) and value >= 0):
        raise InputError(f"decay = {value!r} must be a number of at least 0.")


def check_count(name: str, value: Any, n: int = 1) -> None:
    """Whole numbers of at least one; a sequence needs one a client."""
    counts = np.atleast_1d(np.asarray(value))
    if counts.dtype.kind not in "iu" or counts.min() < 1 or (np.ndim(value) and len(counts) != n):
        raise InputError(f"{name} = {value} must be a whole number of at least 1 (or one for each of the {n} clients).")


def check_steps(
    method: str, gamma: Any, problem: Problem, insist: bool, *, L: float | None = None, **given: Any
) -> list[str]:
    """Refuse or warn by the method's own limits; with own steps gamma_i, client by client against L_i.

    ``problem.L_kind == "global"`` counts as insisting: whoever asks for the figures' L knows that it is smaller.
    """
    gammas = np.atleast_1d(np.asarray(gamma, dtype=np.float64))
    if not np.isfinite(gammas).all() or gammas.min() <= 0:
        raise InputError(f"gamma = {gamma} must be positive.")
    if np.ndim(gamma) and len(gammas) != problem.n:
        raise InputError(f"gamma has {len(gammas)} entries for {problem.n} clients.")
    one = problem.es_A if problem.batch is not None else problem.L_max if L is None else L
    smooth = np.full(1, one) if np.ndim(gamma) == 0 else problem.es_A_i
    worst = int(np.lexsort((gammas * smooth, gammas > 1.0 / smooth))[-1])  # exact at the boundary 1/L_i
    limits = table1.step_limits(method, float(smooth[worst]), **given)
    insist = insist or problem.L_kind == "global"
    return table1.check_step(method, float(gammas[worst]), limits, float(smooth[worst]), insist)


def local_steps(problem: Problem) -> int:
    """sqrt(kappa) rounded: as many local steps as Scaffnew takes on average at its best p (paper, Section 6)."""
    from proxskip import theory

    return max(1, round(math.sqrt(theory.kappa(problem.L, problem.mu))))


def check_gossip(graph: Graph, problem: Problem) -> None:
    """One node a client, equal weights."""
    if graph.n != problem.n:
        raise InputError(f"the graph '{graph.name}' has {graph.n} nodes but there are {problem.n} clients.")
    if float(problem.weights.max() - problem.weights.min()) > 1e-12:
        raise InputError(
            'gossip with a doubly stochastic W solves the equally weighted problem; split with weights="equal".'
        )
