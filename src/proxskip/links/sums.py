"""Weighted sums over clients, in client order, with the same bytes on every engine:  x = sum_i w_i x_i."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.links.rows import RowView
from proxskip.types import Array, Indices, InputError

SUM_BLOCK = 256
"""Rows are summed one after another in blocks of this many, and then the blocks are summed in order."""

FEW_NUMBERS = 1 << 16
"""Up to this many numbers, the time goes into calls of numpy, and not into sums."""


def weighted_sum(w: npt.ArrayLike, U: Any) -> Array:
    """``sum_i w_i U_i`` in client order: the same bytes for every memory layout, BLAS and engine.

    Args:
        w: the weights.
        U: one row per client.
    """
    if isinstance(U, RowView):
        return _sum_of_view(np.asarray(w, dtype=np.float64), U)
    w, U = np.asarray(w, dtype=np.float64), np.asarray(U, dtype=np.float64)
    if U.ndim != 2 or w.shape != U.shape[:1]:
        raise InputError(f"a weighted sum takes n weights and n rows, not shapes {w.shape} and {U.shape}.")
    return sum_in_order(_block_sums(w, U))


def _block_sums(w: Array, U: Array) -> Array:
    if 0 < U.size <= FEW_NUMBERS:  # one call of numpy for a block; ``accumulate`` adds in order, which ``sum`` does not
        products = w[:, None] * U
        starts = range(0, len(U), SUM_BLOCK)
        return np.stack([np.add.accumulate(products[k : k + SUM_BLOCK], axis=0)[-1] for k in starts])
    blocks = np.zeros((-(-len(U) // SUM_BLOCK), U.shape[1]))
    for k in range(min(SUM_BLOCK, len(U))):  # adds row k of every block at once, which keeps each block's order
        w_k, U_k = w[k::SUM_BLOCK], U[k::SUM_BLOCK]
        blocks[: len(U_k)] += w_k[:, None] * U_k
    return blocks


def _sum_of_view(w: Array, view: RowView) -> Array:
    """The same bytes from rows of those who took part: rows of zeros change no sum, and are left out."""
    for weights, total, _ in view.sums:
        if weights is w:
            return total
    n, d = view.shape
    if view.elsewhere.any():  # everybody counts
        at_once = 32 * SUM_BLOCK
        parts = (np.arange(lo, min(lo + at_once, n)) for lo in range(0, n, at_once))
        return sum_in_order(np.concatenate([_block_sums(w[some], view.rows(some)) for some in parts]))
    clients, largest = view.clients, 0.0
    blocks = np.zeros((-(-n // SUM_BLOCK), d))
    block = clients // SUM_BLOCK
    first = np.searchsorted(block, np.arange(len(blocks)))
    rank = np.arange(len(clients)) - first[block]  # among those of its block
    for some in _by_rank(rank):
        rows = view.rows(clients[some])
        largest = float(np.maximum(largest, np.abs(rows).max(initial=0.0)))  # which is NaN if one is
        blocks[block[some]] += w[clients[some], None] * rows
    total = sum_in_order(blocks)
    view.sums.append((w, total, largest))
    return total


def _by_rank(rank: Indices) -> Iterator[Indices]:
    """The places of all 0, of all 1, and so on."""
    order = np.argsort(rank, kind="stable")
    ends = np.searchsorted(rank[order], np.arange(int(rank.max(initial=-1)) + 2))
    for lo, hi in pairwise(ends.tolist()):
        yield order[lo:hi]


def largest(U: Any) -> float:
    """The largest absolute value of all entries."""
    return U.largest() if isinstance(U, RowView) else float(np.abs(U).max(initial=0.0))


def sum_in_order(blocks: Array) -> Array:
    """The sum of the rows, one after another."""
    total = np.zeros(blocks.shape[1])
    for row in blocks:
        total += row
    return total
