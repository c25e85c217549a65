"""Runs whose clients have a row of memory only once they have taken part: when that is so, and what follows from it."""

from __future__ import annotations

import numpy as np

from proxskip.links.cohorts import Everyone, Participation
from proxskip.links.rows import RowStore
from proxskip.problems.federated import Problem
from proxskip.seam import Claims, Engine, Method
from proxskip.types import Array, InputError, Vectors

LARGEST_WHOLE = 1 << 28
"""Bytes that the clients' memory may have, all together, to be kept as whole arrays in a run on cohorts."""


def check_limit(limit: int | None, engine: Engine, cohorts: Participation) -> None:
    """Refuse a limit that cannot be kept."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InputError(f"memory_limit = {limit!r} must be a number of bytes.")
    if isinstance(cohorts, Everyone):
        raise InputError("memory_limit is for runs on cohorts; with full participation a round uses all of the memory.")
    if not engine.keeps_rows():
        raise InputError(f'memory_limit is not for the engine "{engine.name}"; use engine="cpu".')


def store_of(
    method: Method,
    problem: Problem,
    cohorts: Participation,
    engine: Engine,
    h0: Array | None,
    limit: int | None,
    x0: Array,
) -> RowStore | None:
    """A store for a run on cohorts of many clients, or where there is a limit; None where all rows are kept."""
    if h0 is not None and limit is not None:
        raise InputError("memory_limit is for runs from h0 = 0, where only clients that took part have a memory.")
    large = 8 * problem.n * problem.d * len(method.remembers) > LARGEST_WHOLE
    possible = engine.keeps_rows() and h0 is None and not isinstance(cohorts, Everyone)
    if limit is None and not (large and possible):
        return None
    return RowStore.of(lasting(method), problem.n, x0, limit)


def lasting(method: Method) -> list[str]:
    """What clients remember from one round to another."""
    return [k for k in method.remembers if k not in method.about.passing]


def all_rows(method: Method, problem: Problem, x0: Array, h0: Array | None) -> Vectors:
    """What all clients remember at the start."""
    memory = {k: np.zeros((problem.n, problem.d)) for k in method.remembers}
    if "h" in memory and h0 is not None:
        memory["h"] = h0
    if "x" in memory:
        memory["x"] = np.tile(x0, (problem.n, 1))
    return memory


def said(method: Method, problem: Problem) -> list[str]:
    """What such a run does not compute."""
    if method.claims(problem).lyapunov is Claims().lyapunov:
        return []
    return ["the Lyapunov function is not computed: it needs the h_i of all clients at the solution at once."]


def start_of(problem: Problem, x0: Array) -> tuple[float, float]:
    """The root of  sum_i w_i |grad f_i(x0)|^2,  twice (h0 is zero), some clients at a time; see ``watch.start_of``."""
    parts = (problem.weights[some] @ np.sum(G * G, axis=1) for some, G in problem.gradient_blocks(x0))
    root = float(np.sqrt(sum(map(float, parts))))
    return root, root
