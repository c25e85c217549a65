"""The compiled interpreter of ``lazy``'s programs, on the stacked vectors of a cohort.

No fused multiply-add and no reordering, so the bytes are numpy's.
"""

import numpy as np
from numba import njit

STACK, KEPT, ROW, LINE = range(4)
"""Kinds of vectors: a row per member, a row per client of the problem, one row for all, an earlier line's result."""
_AS_NUMPY = {"nogil": True, "cache": True, "_nrt": False, "error_model": "numpy"}


@njit(inline="always")
def _row(kind, r, lo, members):
    """Where the row of member r is; unsigned, because numba checks signed indices."""
    if kind == STACK:
        return np.uint64(r)
    if kind == KEPT:
        return np.uint64(members[r])
    return np.uint64(0 if kind == ROW else r - lo)


@njit(inline="always")
def _vector(kind, k, arrays, results):
    """The array that operand (kind, k) stands for."""
    if kind == LINE:
        return results[k]
    return arrays[k]


@njit(**_AS_NUMPY)
def _add_multiple(ka, A, kb, B, divides, factor, lo, hi, members, target):
    """target <- A + factor * B, or A + B / factor, for members lo .. hi-1, each operation rounded."""
    d = target.shape[1]
    for r in range(lo, hi):
        i, j, q = _row(ka, r, lo, members), _row(kb, r, lo, members), np.uint64(r - lo)
        s = factor[r]
        if divides:
            for c in range(d):
                target[q, c] = A[i, c] + B[j, c] / s
        else:
            for c in range(d):
                target[q, c] = A[i, c] + s * B[j, c]


@njit(**_AS_NUMPY)
def _copy(kind, target, lo, hi, members, result):
    """Copy the rows of members lo .. hi-1 to their place."""
    for r in range(lo, hi):
        q, k = _row(kind, r, lo, members), np.uint64(r - lo)
        for c in range(result.shape[1]):
            target[q, c] = result[k, c]


@njit(**_AS_NUMPY)
def _add_weighted(weights, result, lo, hi, total):
    """total <- total + w * row, member after member as in ``kernels.block_sums``."""
    for r in range(lo, hi):
        k, w = np.uint64(r - lo), weights[r]
        for c in range(total.shape[0]):
            total[c] += w * result[k, c]


@njit(**_AS_NUMPY)
def evaluate(first, last, size, lines, factors, members, arrays, results, stored, targets, summed, weights, totals):
    """Run a program on pieces first .. last-1 of ``size`` members each.

    Args:
        lines: of each operation (kind and place of A, kind and place of B, whether it divides).
        factors: by line and member.
        results: room for what the lines compute for a few members at a time.
        stored: (line, kind) of what goes to ``targets``, which are written when all lines are done.
        summed: lines of which totals[k, m, piece] is the sum with row m of the weights.
    """
    at_a_time = results.shape[1]
    for piece in range(first, last):
        stop = min((piece + 1) * size, members.shape[0])
        totals[:, :, piece] = 0.0
        for lo in range(piece * size, stop, at_a_time):
            hi = min(lo + at_a_time, stop)
            for q in range(lines.shape[0]):
                ka, kb, divides = lines[q, 0], lines[q, 2], lines[q, 4] != 0
                A, B = _vector(ka, lines[q, 1], arrays, results), _vector(kb, lines[q, 3], arrays, results)
                _add_multiple(ka, A, kb, B, divides, factors[q], lo, hi, members, results[q])
            for k in range(stored.shape[0]):
                _copy(stored[k, 1], targets[k], lo, hi, members, results[stored[k, 0]])
            for k in range(summed.shape[0]):
                for m in range(weights.shape[0]):
                    _add_weighted(weights[m], results[summed[k]], lo, hi, totals[k, m, piece])
