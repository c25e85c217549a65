"""Runs that keep a row of memory only for clients that have taken part."""

from __future__ import annotations

import numpy as np

from proxskip.interfaces import Claims, Method
from proxskip.links.cohorts import Everyone
from proxskip.links.rows import RowStore
from proxskip.loop.run_spec import RunSpec
from proxskip.problems.federated import Problem
from proxskip.types import Array, Vectors

LARGEST_WHOLE = 1 << 28
"""The most bytes of client memory that a run on cohorts keeps as full arrays."""


def store_of(spec: RunSpec, h0: Array | None, x0: Array) -> RowStore | None:
    """The store of a run on cohorts of many clients; None if all rows are kept."""
    method, problem, engine = spec.method, spec.problem, spec.engine
    large = 8 * problem.n * problem.d * len(method.remembers) > LARGEST_WHOLE
    if not large or h0 is not None or isinstance(spec.asked, Everyone) or engine is None or not engine.keeps_rows():
        return None
    return RowStore.of(lasting(method), problem.n, x0)


def lasting(method: Method) -> list[str]:
    """The vectors that clients keep between rounds."""
    return [k for k in method.remembers if k not in method.about.passing]


def all_rows(method: Method, problem: Problem, x0: Array, h0: Array | None) -> Vectors:
    """The memory of all clients at the start."""
    memory = {k: np.zeros((problem.n, problem.d)) for k in method.remembers}
    if "h" in memory and h0 is not None:
        memory["h"] = h0
    if "x" in memory:
        memory["x"] = np.tile(x0, (problem.n, 1))
    return memory


def left_out(method: Method, problem: Problem) -> list[str]:
    """Notes on what such a run does not compute."""
    if method.claims(problem).lyapunov is Claims().lyapunov:
        return []
    return ["the Lyapunov function is not computed: it needs the h_i of all clients at once."]
