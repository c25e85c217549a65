"""Compiled local steps with the gradients of L-SVRG, for shards that are read row by row.

For each client j in [lo, hi) of the cohort, with the same minibatch at both points,

    K[j] times:  z = x_j;  x_j <- z - gamma_j (g(z) - g(w_j) + gw_j - h_j);  and with probability q_j  w_j <- z

where gw_j is the full gradient at w_j.
"""

import numpy as np

from proxskip.engines.cpu.kernels import _FAST, block_gradient
from proxskip.engines.cpu.minibatches import draw_rows, philox
from proxskip.on_demand.kernels import njit
from proxskip.randomness import STREAMS

_COIN = 0x80000000 | STREAMS["anchor"]
"""The first word of the counter of ``randomness.anchor_coin``."""


@njit(**_FAST)
def rows_gradient(rows, factor, picks, first, x, per_block, data, g, part, p):
    """g <- ``factor`` times the sum of the gradients of these rows without the regularizer, block after block."""
    kind, dense, sparse, b, loss, C = data
    blocks = max(1, rows // per_block)
    block_gradient(0, blocks, rows, picks, first, x, kind, dense, sparse, b, factor, loss, C, g, p)
    for u in range(1, blocks):
        block_gradient(u, blocks, rows, picks, first, x, kind, dense, sparse, b, factor, loss, C, part, p)
        for c in range(g.shape[0]):
            g[c] += part[c]


@njit(nogil=True, cache=True, borrows=True)
def coin(seed, client, round, step):
    """``randomness.anchor_coin``."""
    words = philox(np.uint32(_COIN), np.uint32(step), np.uint32(round), np.uint32(client), np.uint64(seed))
    return words[0] / 4294967296.0


@njit(**_FAST)
def descend_anchored(
    lo, hi, clients, X, H, gamma, K, W, GW, q, moved, row0, share, data, reg, batch, seed, round, per_block, number0,
    work, step0,
):  # fmt: skip
    """All steps of members lo .. hi-1; X, W and GW are changed in their place, and moved[j] counts the moves of w_j."""
    d = X.shape[1]
    at_x, at_w, part, picks, everything, p, room = work
    for j in range(lo, hi):
        i = clients[j]
        first, m = row0[i], row0[i + 1] - row0[i]
        x, w, gw, h = X[j], W[j], GW[j], H[j]
        for k in range(K[j]):
            number = step0[j] + k
            draw_rows(seed, number0 + i, round, number, first, m, batch, picks, room)
            rows_gradient(batch, share[i], picks, first, x, per_block, data, at_x, part, p)
            rows_gradient(batch, share[i], picks, first, w, per_block, data, at_w, part, p)
            moves = coin(seed, number0 + i, round, number) < q[j]
            for c in range(d):
                slope = at_x[c] - at_w[c] + reg[c] * (x[c] - w[c]) + gw[c] - h[c]
                if moves:
                    w[c] = x[c]
                x[c] -= gamma[j] * slope
            if moves:
                rows_gradient(m, 1.0 / m, everything, first, w, per_block, data, gw, part, p)
                for c in range(d):
                    gw[c] += reg[c] * w[c]
                moved[j] += 1
