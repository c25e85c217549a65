"""Two results: the same bit by bit, or near."""

from typing import Any

import numpy as np

import proxskip as ps


def close(a: Any, b: Any, tol: float) -> bool:
    """Equal to ``tol`` relative to the largest entry."""
    scale = max(float(np.max(np.abs(b))), 1e-300)
    return bool(np.max(np.abs(np.asarray(a) - np.asarray(b))) <= tol * scale)


def bits(result: ps.Result) -> bytes:
    """Everything that a run computed, and what it counted."""
    parts = [result.x, *(result.memory[k] for k in sorted(result.memory))]
    parts += [result.trace[k] for k in result.trace.columns if k != "seconds"]
    return b"".join(np.ascontiguousarray(v).tobytes() for v in parts)


def same(a: ps.Result, b: ps.Result) -> bool:
    """Bitwise, but for the clock and the machine."""
    quiet = ("seconds", "versions", "cluster")
    assert bits(a) == bits(b)
    assert a.trace.columns == b.trace.columns
    assert {k: v.tobytes() for k, v in a.server.items()} == {k: v.tobytes() for k, v in b.server.items()}
    assert (a.h is None) == (b.h is None)
    assert a.h is None or np.array_equal(a.h, b.h)
    assert np.array_equal(a.participation, b.participation)
    assert (a.status, a.success, a.message, a.warnings) == (b.status, b.success, b.message, b.warnings)
    ours, theirs = ({k: v for k, v in r.summary.items() if k not in quiet} for r in (a, b))
    assert ours == theirs
    return True


def near(a: ps.Result, b: ps.Result, tol: float) -> None:
    """The iterates, what clients remember, f along the way, and every count."""
    assert close(a.x, b.x, tol)
    assert a.memory.keys() == b.memory.keys()
    for k in b.memory:
        # h and y are differences of vectors: measure them by the gradients and the iterates they come from
        scale = max(np.abs(b.memory[k]).max(), np.abs(b.x).max(), 1e-300)
        assert np.abs(a.memory[k] - b.memory[k]).max() <= 10 * tol * scale, k
    assert close(a.trace["f"], b.trace["f"], tol)
    for k in ("iterations", "local_steps", "grad_evals", "vectors_up", "vectors_down", "bits_up", "bits_down"):
        assert np.array_equal(a.trace[k], b.trace[k]), k
