"""Compiled local steps with the gradients of L-SVRG, for shards that are read row by row.

For each client j in [lo, hi) of the cohort, with the same minibatch at both points,

    K[j] times:  z = x_j;  x_j <- z - gamma_j (g(z) - g(w_j) + gw_j - h_j);  and with probability q_j  w_j <- z

where gw_j is the full gradient at w_j.
"""

from typing import Any, NamedTuple

import numpy as np

from proxskip.engines.cpu.kernels import _FAST, block_gradient
from proxskip.engines.cpu.minibatches import draw_rows, philox
from proxskip.lazy.compilation import njit
from proxskip.randomness import STREAMS

_COIN = 0x80000000 | STREAMS["anchor"]
"""The first word of the counter of ``randomness.anchor_coin``."""


class Anchors(NamedTuple):
    """By member the anchor w, the full gradient there, the probability that w moves, and how often it has."""

    W: Any
    GW: Any
    q: Any
    moved: Any


@njit(**_FAST)
def rows_gradient(rows, factor, picks, first, x, data, g, part, p):
    """g <- ``factor`` times the sum of the gradients of these rows without the regularizer, block after block."""
    blocks = max(1, rows // data.per_block)
    block_gradient(0, blocks, rows, picks, first, x, data, factor, g, p)
    for u in range(1, blocks):
        block_gradient(u, blocks, rows, picks, first, x, data, factor, part, p)
        for c in range(g.shape[0]):
            g[c] += part[c]


@njit(nogil=True, cache=True, borrows=True)
def coin(seed, client, round, step):
    """``randomness.anchor_coin``."""
    words = philox(np.uint32(_COIN), np.uint32(step), np.uint32(round), np.uint32(client), np.uint64(seed))
    return words[0] / 4294967296.0


@njit(**_FAST)
def descend_anchored(lo, hi, steps, anchors, data, draws, work):
    """All steps of members lo .. hi-1; X and the anchors are changed in their place."""
    clients, _, X, H, gamma, K = steps
    reg, batch, d = data.reg, draws.batch, X.shape[1]
    at_x, at_w, part, picks, everything, p, room = work
    for j in range(lo, hi):
        i = clients[j]
        first, m = data.row0[i], data.row0[i + 1] - data.row0[i]
        x, w, gw, h = X[j], anchors.W[j], anchors.GW[j], H[j]
        for k in range(K[j]):
            number = draws.step0[j] + k
            draw_rows(draws.seed, draws.number0 + i, draws.round, number, first, m, batch, picks, room)
            rows_gradient(batch, data.share[i], picks, first, x, data, at_x, part, p)
            rows_gradient(batch, data.share[i], picks, first, w, data, at_w, part, p)
            moves = coin(draws.seed, draws.number0 + i, draws.round, number) < anchors.q[j]
            for c in range(d):
                slope = at_x[c] - at_w[c] + reg[c] * (x[c] - w[c]) + gw[c] - h[c]
                if moves:
                    w[c] = x[c]
                x[c] -= gamma[j] * slope
            if moves:
                rows_gradient(m, 1.0 / m, everything, first, w, data, gw, part, p)
                for c in range(d):
                    gw[c] += reg[c] * w[c]
                anchors.moved[j] += 1
