"""Compiled local steps with minibatches of bundles: eight rows of about the same length, read side by side.

The margins of eight rows at a time, the slopes of all of them in one vectorized pass, and the gradient scattered line
by line: what a full gradient does with its tiles of rows, on those that were drawn.
"""

from proxskip.engines.cpu.kernels import _FAST, SAFE_MARGIN, margins, slopes, squared_norm, step
from proxskip.engines.cpu.minibatches import pick_bundles, row_share
from proxskip.on_demand.kernels import njit
from proxskip.randomness import BUNDLES


@njit(**_FAST)
def scatter(z, picks, n, lines, index, values, g):
    """g <- g + sum over the rows of the first n bundles of z_r a_r; missing entries go to the one after the last."""
    unit = values.shape[0] == 0
    for a in range(n):
        q, r = picks[a], 8 * a
        z0, z1, z2, z3 = z[r], z[r + 1], z[r + 2], z[r + 3]
        z4, z5, z6, z7 = z[r + 4], z[r + 5], z[r + 6], z[r + 7]
        if unit:
            for e in range(lines[q], lines[q + 1]):
                g[index[e, 0]] += z0
                g[index[e, 1]] += z1
                g[index[e, 2]] += z2
                g[index[e, 3]] += z3
                g[index[e, 4]] += z4
                g[index[e, 5]] += z5
                g[index[e, 6]] += z6
                g[index[e, 7]] += z7
        else:
            for e in range(lines[q], lines[q + 1]):
                g[index[e, 0]] += z0 * values[e, 0]
                g[index[e, 1]] += z1 * values[e, 1]
                g[index[e, 2]] += z2 * values[e, 2]
                g[index[e, 3]] += z3 * values[e, 3]
                g[index[e, 4]] += z4 * values[e, 4]
                g[index[e, 5]] += z5 * values[e, 5]
                g[index[e, 6]] += z6 * values[e, 6]
                g[index[e, 7]] += z7 * values[e, 7]


@njit(**_FAST)
def descend_bundles(
    lo, hi, clients, X0, X, H, gamma, K, row0, data, reg, loss, batch, seed, round, number0, work, room, step0
):
    """All steps of members lo .. hi-1, from X0 (a row for each, or one for all) into X, as ``kernels.descend_rows``."""
    d = X.shape[1]
    first, lines, index, values, labels, longest = data
    x, g, z, b, scale, bits, power = work
    picks, seen, marks = room[2], room[6], room[7]
    for j in range(lo, hi):
        i = clients[j]
        m = row0[i + 1] - row0[i]
        start, share = X0[j if X0.shape[0] > 1 else 0], row_share(BUNDLES, m, batch)
        # x has one entry more than the vector, a zero, which the rows' missing entries read
        for c in range(d):
            x[c] = start[c]
        x[d] = 0.0
        for r in range(batch):
            scale[r] = share
        for k in range(K[j]):
            n = pick_bundles(seed, number0 + i, round, step0[j] + k, m, batch, seen, marks, picks)
            for a in range(n):
                q = first[i] + picks[a]
                picks[a] = q
                for r in range(8):
                    b[8 * a + r] = labels[8 * q + r]
            margins(x, n, 0, picks, lines, index, values, z)
            # |a_r' x| <= |a_r| |x| for all rows
            safe = squared_norm(x, d) * longest < SAFE_MARGIN * SAFE_MARGIN
            slopes(loss, z, b, scale, batch, safe, bits, power)
            for c in range(d + 1):
                g[c] = 0.0
            scatter(z, picks, n, lines, index, values, g)
            step(x, 0, d, gamma[j], g, reg, H[j])
        for c in range(d):
            X[j, c] = x[c]
