"""The clients' memory at the start of a run, and what runs with very many clients leave out."""

from __future__ import annotations

import numpy as np

from proxskip.core.method import Claims, Method
from proxskip.participation import Everyone
from proxskip.problems.federated import Problem
from proxskip.running.run_spec import RunSpec
from proxskip.support.rows import MemoryRows
from proxskip.types import Array, Indices, Vectors

LARGEST_WHOLE = 1 << 28
"""The most bytes of client memory of a run on cohorts that is saved as whole arrays."""


def is_large(spec: RunSpec, h0: Array | None) -> bool:
    """Whether the memory of most clients is never written to, and too large to be treated as a whole."""
    numbers = spec.problem.n * spec.problem.d * len(spec.method.remembers)
    return 8 * numbers > LARGEST_WHOLE and not isinstance(spec.asked, Everyone) and not _moves(h0)


def start_rows(spec: RunSpec, x0: Array, h0: Array | None) -> Vectors:
    """What the clients remember at the start; on cohorts, rows that exist once they are written to."""
    n, d = spec.problem.n, spec.problem.d
    memory: Vectors = {}
    for name in spec.method.remembers:
        if name == "h" and h0 is not None and _moves(h0):
            memory[name] = h0
        elif name == "x" and _moves(x0):
            memory[name] = np.tile(x0, (n, 1))
        elif isinstance(spec.asked, Everyone):
            memory[name] = np.zeros((n, d))
        else:
            memory[name] = MemoryRows.zeros(n, d)
    return memory


def restored_rows(spec: RunSpec, x0: Array, h0: Array | None, saved: Vectors, took_part: Indices) -> Vectors:
    """What the clients remember in a checkpoint, kept as from the start."""
    memory = start_rows(spec, x0, h0)
    for name, rows in memory.items():
        if isinstance(rows, MemoryRows):
            rows.fill_rows(took_part, saved[name][took_part])
        else:
            memory[name] = np.asarray(saved[name])
    return memory


def left_out(method: Method, problem: Problem) -> list[str]:
    """Notes on what a large run does not compute."""
    if method.claims(problem).lyapunov is Claims().lyapunov:
        return []
    return ["the Lyapunov function is not computed: it needs the h_i of all clients at once."]


def _moves(start: Array | None) -> bool:
    """Whether a start is not zero."""
    return start is not None and bool(start.any())
