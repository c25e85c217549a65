"""What the server makes of the clients' vectors on the card, with the bytes of the CPU: sums, gossip, roundings."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.engines.gpu import cuda
from proxskip.links.sums import SUM_BLOCK

THREADS = 64


def weighted_sum(w: Any, U: Any) -> Any:
    """``sum_i w_i U_i`` in the order of ``links.sums.weighted_sum``: blocks of clients, then the blocks."""
    import cupy  # type: ignore[import-not-found]

    (n, d), total = U.shape, cupy.empty(U.shape[1])
    if n <= SUM_BLOCK:
        _block_sums(w, U, n, total)
    else:
        blocks = cupy.empty((-(-n // SUM_BLOCK), d))
        _block_sums(w, U, SUM_BLOCK, blocks)
        _block_sums(cuda.NULL, blocks, len(blocks), total)
    return total


def _block_sums(w: Any, U: Any, block: int, sums: Any) -> None:
    n, d = U.shape
    arguments = w, U, np.int32(n), np.int32(d), np.int32(block), sums
    cuda.kernel("server", "block_sums")((-(-d // THREADS), -(-n // block)), (THREADS,), arguments)


def mixed(indptr: Any, indices: Any, weights: Any, U: Any) -> Any:
    """One gossip step: row i of the result is ``sum_j W_ij U_j`` over the neighbours j of i."""
    import cupy

    n, d = U.shape
    out = cupy.empty((n, d))
    arguments = indptr, indices, weights, U, np.int32(n), np.int32(d), out
    cuda.kernel("server", "mix")((-(-d // THREADS), n), (THREADS,), arguments)
    return out


def natural(v: Any, words: Any) -> Any:
    """Natural compression of each number, by its random word."""
    import cupy

    out = cupy.empty(v.shape)
    cuda.kernel("server", "natural")((-(-v.size // 256),), (256,), (v, words, np.int64(v.size), out))
    return out
