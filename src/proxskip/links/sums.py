"""Weighted sums over clients, in client order, with the same bytes on every engine:  x = sum_i w_i x_i."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from proxskip.types import Array, InputError

SUM_BLOCK = 256
"""Rows are summed one after another in blocks of this many, and then the blocks are summed in order."""


def weighted_sum(w: npt.ArrayLike, U: npt.ArrayLike) -> Array:
    """``sum_i w_i U_i`` in client order: the same bytes for every memory layout, BLAS and engine."""
    w, U = np.asarray(w, dtype=np.float64), np.asarray(U, dtype=np.float64)
    if U.ndim != 2 or w.shape != U.shape[:1]:
        raise InputError(f"a weighted sum takes n weights and n rows, not shapes {w.shape} and {U.shape}.")
    blocks = np.zeros((-(-len(U) // SUM_BLOCK), U.shape[1]))
    for k in range(min(SUM_BLOCK, len(U))):  # adds row k of every block at once, which keeps each block's order
        w_k, U_k = w[k::SUM_BLOCK], U[k::SUM_BLOCK]
        blocks[: len(U_k)] += w_k[:, None] * U_k
    return sum_in_order(blocks)


def sum_in_order(blocks: Array) -> Array:
    """The sum of the rows, one after another."""
    total = np.zeros(blocks.shape[1])
    for row in blocks:
        total += row
    return total
