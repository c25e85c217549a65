"""Weighted sums over clients in client order,  x = sum_i w_i x_i."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from proxskip.support.rows import written_rows
from proxskip.types import Array, InputError

SUM_BLOCK = 256
"""Rows are summed in order in blocks of this size, and then the blocks in order."""

FEW_NUMBERS = 1 << 16
"""Up to this many numbers, numpy calls take longer than the sums."""


def weighted_sum(w: npt.ArrayLike, U: Array) -> Array:
    """``sum_i w_i U_i`` in client order: the same bytes for every memory layout and BLAS.

    Args:
        w: the weights.
        U: one row per client.
    """
    w, some = np.asarray(w, dtype=np.float64), written_rows(U)
    U = np.asarray(U, dtype=np.float64)
    if U.ndim != 2 or w.shape != U.shape[:1]:
        raise InputError(f"a weighted sum takes n weights and n rows, not shapes {w.shape} and {U.shape}.")
    if some is not None:
        w, U = w[some], U[some]
    return sum_in_order(_block_sums(w, U))


def _block_sums(w: Array, U: Array) -> Array:
    if 0 < U.size <= FEW_NUMBERS:  # one numpy call per block; ``accumulate`` adds in order, unlike ``sum``
        products = w[:, None] * U
        starts = range(0, len(U), SUM_BLOCK)
        return np.stack([np.add.accumulate(products[k : k + SUM_BLOCK], axis=0)[-1] for k in starts])
    blocks = np.zeros((-(-len(U) // SUM_BLOCK), U.shape[1]))
    for k in range(min(SUM_BLOCK, len(U))):  # add row k of every block at once
        w_k, U_k = w[k::SUM_BLOCK], U[k::SUM_BLOCK]
        blocks[: len(U_k)] += w_k[:, None] * U_k
    return blocks


def largest(U: Array) -> float:
    """The largest absolute entry; NaN if one is."""
    some = written_rows(U)
    rows = np.asarray(U) if some is None else np.asarray(U)[some]
    return float(np.abs(rows).max(initial=0.0))


def sum_in_order(blocks: Array) -> Array:
    """The sum of the rows, one after another."""
    total = np.zeros(blocks.shape[1])
    for row in blocks:
        total += row
    return total
