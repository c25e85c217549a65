"""Compiled local steps of linear models: all K steps of a client in one call, with the GIL released.

Every kernel does, for each client j in [lo, hi) of the cohort,

    K[j] times:  x_j <- x_j - gamma_j * (g(x_j) - h_j),   g(x) = A_j' c + reg * x,   c_r = scale_r * slope(A_j x, b_j)

which is the local step of the method (``docs/idea.md``).

* Sparse shards, full gradients: *tiles*. Rows are sorted by length and read eight at a time, columns four entries at a
  time; margins read rows, the gradient gathers columns, and nothing is scattered. Empty rows are dropped and equal rows
  merged. A minibatch of most rows is a full gradient whose other rows have weight zero.
* Sparse shards with few entries per column, and small minibatches: row after row, scattered.
* Dense shards: four rows at a time, margins and gradient in one pass.

A client's arithmetic depends on its own shard alone. ``shards`` packs the data, with unsigned indices because numba
checks signed ones at every access. To add a loss, extend ``slope`` and ``slopes``; to add a layout, write a
``descend_*`` kernel and its class in ``shards``.

All kernels that call each other are in this file: numba compiles a function anew if its own file has changed, and looks
at no other.
"""

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numba import njit

from proxskip.support.randomness import REDRAW, STREAMS
from proxskip.types import AnyArray, Indices

ROWS_PER_TILE, ENTRIES_PER_TILE = 8, 4
"""Rows are read eight at a time, and the entries of a column four at a time."""
LOGISTIC, SQUARED = 0, 1
"""Losses of one margin per row."""
DENSE = 0
SPARSE = 1
SOFTMAX = 2
"""Kinds of shards read row by row."""
_COMPILED = {
    "nogil": True,
    "cache": True,
    # kernels make and keep no arrays. Numba would count the references of every view (``X[j]``) and of every array of a
    # tuple, by atomic operations on which threads wait for each other.
    "_nrt": False,
}
# "reassoc" lets the compiler vectorize sums in a fixed order, "contract" lets it fuse multiply-adds. Without "nnan" and
# "ninf", NaN and infinity keep their meaning.
_FAST = {
    **_COMPILED,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
    # a called kernel would have other code in the compiling process than in those that load it
    "forceinline": True,
}
# for ``slopes``: reassociation would cancel the magic number that rounds there
_IN_ORDER = {**_FAST, "fastmath": {"contract"}}
SAFE_MARGIN = 690.0
"""Smaller margins need no clamp: exp neither overflows nor underflows."""
_COIN = 0x80000000 | STREAMS["anchor"]
"""The first word of the counter of ``randomness.anchor_coin``."""


class Steps(NamedTuple):
    """The local steps of a cohort; member j is client clients[j] of the shards."""

    clients: Indices
    X0: AnyArray
    """The starting points: a row per member, or one for all (for ``spread``, X)."""
    X: AnyArray
    """The end points."""
    H: AnyArray
    gamma: AnyArray
    K: Indices
    only_gradient: bool = False
    """Whether a step replaces x by the gradient there; K is then 1, or 0 where none is wanted."""


class Anchors(NamedTuple):
    """By member: L-SVRG's anchor w, its full gradient, the probability that w moves, and how often it has."""

    W: AnyArray
    GW: AnyArray
    q: AnyArray
    moved: Indices


class Draws(NamedTuple):
    """The keys of a round's minibatches, for all members of a cohort."""

    batch: int
    """Rows of a minibatch; 0 for full gradients."""
    seed: int
    round: int
    number0: int
    """The number of the first client among all."""
    step0: Indices
    """The number of each member's first step."""


class RowData(NamedTuple):
    """The rows of all clients end to end; the arrays of other kinds are empty."""

    kind: int
    """DENSE, SPARSE or SOFTMAX."""
    dense: AnyArray
    indptr: AnyArray
    indices: AnyArray
    values: AnyArray
    """Of sparse rows; empty if all are one."""
    b: AnyArray
    loss: int
    C: int
    """Classes of softmax."""
    row0: Indices
    """The first row of each client."""
    share: AnyArray
    """The weight of a row, by client."""
    reg: AnyArray
    per_block: int
    """About how many rows a block has."""


class TileData(NamedTuple):
    """Rows in groups of eight and columns in fours; see the picture in ``shards.Tiles``."""

    blocks: Indices
    groups: Indices
    row_start: AnyArray
    row_index: AnyArray
    row_values: AnyArray
    column_start: AnyArray
    column_index: AnyArray
    column_values: AnyArray
    b: AnyArray
    scale: AnyArray
    """The weight of the row in each slot."""
    loss: int
    longest: float
    """The largest |a_r|^2."""
    reg: AnyArray


# -- slopes ------------------------------------------------------------------------------------------------------------
_LOG2E = 1.4426950408889634
_MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, kept in the low bits of the sum
# ln 2 in two parts, the first with zeros at its end, so that k * _LN2_HI is exact
_LN2_HI, _LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# exp on [-ln 2 / 2, ln 2 / 2], interpolated at the Chebyshev points: relative error below 3e-16
_C0 = 1.0
_C1 = 1.0
_C2 = 0.5000000000000019
_C3 = 0.1666666666666668
_C4 = 0.04166666666648795
_C5 = 0.008333333333319589
_C6 = 0.0013888888952352863
_C7 = 0.00019841269890076403
_C8 = 2.4801485441561313e-05
_C9 = 2.755724088722987e-06
_C10 = 2.763265472252779e-07
_C11 = 2.5110049204818658e-08


@njit(inline="always")
def slope(loss, z, b):
    """The loss's derivative in its margin, without overflow."""
    if loss == LOGISTIC:
        return -b / (1.0 + math.exp(min(b * z, 700.0)))
    return z - b


@njit(inline="always")
def _exp_part(u, i, power, z):
    """exp(u) = 2^k exp(r) with |r| <= ln 2 / 2: power[i] <- k + magic, z[i] <- exp(r)."""
    t = u * _LOG2E + _MAGIC
    power[i] = t
    k = t - _MAGIC
    r = u - k * _LN2_HI - k * _LN2_LO
    # Estrin's scheme: short chains of dependent operations, unlike Horner's
    r2 = r * r
    r4 = r2 * r2
    q0 = (_C0 + _C1 * r) + (_C2 + _C3 * r) * r2
    q1 = (_C4 + _C5 * r) + (_C6 + _C7 * r) * r2
    q2 = (_C8 + _C9 * r) + (_C10 + _C11 * r) * r2
    z[i] = q0 + (q1 + q2 * r4) * r4


@njit(**_IN_ORDER)
def slopes(loss, z, b, scale, m, safe, bits, power):
    """z <- scale * slope(z, b) for the first m rows, vectorized; ``bits`` and ``power`` share one buffer.

    The logistic loss spells out exp, because a library call would not be vectorized. ``safe`` says that every margin is
    below SAFE_MARGIN, so no clamp is needed.
    """
    if loss == SQUARED:
        for i in range(m):
            z[i] = scale[i] * (z[i] - b[i])
        return
    if safe:
        for i in range(m):
            _exp_part(b[i] * z[i], i, power, z)
    else:
        for i in range(m):
            _exp_part(min(max(b[i] * z[i], -700.0), 700.0), i, power, z)
    for i in range(m):
        # the low bits of k + magic become the exponent of a double: read as ``power``, this is 2^k
        bits[i] = (bits[i] << 52) + (1023 << 52)
    for i in range(m):
        z[i] = -b[i] * scale[i] / (1.0 + z[i] * power[i])


# -- minibatches -------------------------------------------------------------------------------------------------------
# The rows of client i at step k of round r, as a function of the seed and (i, r, k) alone; ``randomness.minibatch`` is
# the reference. All arithmetic is on unsigned integers, exact on every machine.
_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
# Philox4x32: multipliers, and the Weyl constants that advance the key
_PHILOX_M0, _PHILOX_M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_PHILOX_W0, _PHILOX_W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_u32, _u64 = np.uint32, np.uint64
_REDRAW = np.uint32(REDRAW)
NO_PICKS = np.zeros(0, np.uint32)
"""All rows, in their order."""
ROWS_PER_PICK = 16
"""A minibatch with fewer rows than one in this many is read in the order drawn."""


Drawing: TypeAlias = tuple[AnyArray, tuple[AnyArray, AnyArray]]
"""``picks``, and the ``room`` of ``draw_rows``: see ``room_for``."""


def room_for(batch: int, rows: int, place: AnyArray = NO_PICKS) -> Drawing:
    """Buffers for a minibatch and for drawing it: ``picks``, and the ``room`` of ``draw_rows``.

    Args:
        batch: rows of a minibatch; 0 if all rows are read.
        rows: the most rows of a client.
        place: the place of each row of all clients within its client; empty if rows are in order.
    """
    picks = np.empty(batch + 3, np.uint32) if batch else NO_PICKS
    return picks, (np.zeros(rows if batch else 0, np.uint8), place)


@njit(**_COMPILED, forceinline=True)
def philox(c0, c1, c2, c3, seed):
    """The four words of ``randomness.philox4x32``; the counter has 32-bit words, the seed 64 bits."""
    k0, k1 = _u32(seed & _WORD), _u32(seed >> _32)
    for _ in range(10):
        p0, p1 = _PHILOX_M0 * _u64(c0), _PHILOX_M1 * _u64(c2)
        c0, c1 = _u32(_u32(p1 >> _32) ^ c1 ^ k0), _u32(p1)
        c2, c3 = _u32(_u32(p0 >> _32) ^ c3 ^ k1), _u32(p0)
        k0, k1 = _u32(k0 + _u32(_PHILOX_W0)), _u32(k1 + _u32(_PHILOX_W1))
    return c0, c1, c2, c3


@njit(**_COMPILED)
def _redrawn(product, side, i, step, round, client, seed):
    """``randomness._redrawn``: a number below ``side``, all of them equally likely."""
    attempt, least = 0, (_u64(0x100000000) - side) % side
    while product & _WORD < least:
        key = _u64(seed + (_u64(attempt // 4) << _32))
        words = philox(_u32(_REDRAW | _u32(i)), _u32(step), _u32(round), _u32(client), key)
        product = _u64(words[attempt % 4]) * side
        attempt += 1
    return product >> _32


@njit(**_COMPILED)
def subset(seed, client, round, step, m, n, seen, rows):
    """n different rows of m into ``rows``, which has room for three more; ``seen`` holds m zeros before and after."""
    seed = _u64(seed)
    blocks = (n + 3) // 4
    for q in range(blocks):
        c0, c1, c2, c3 = philox(_u32(q), _u32(step), _u32(round), _u32(client), seed)
        # word r of the block is that of draw q + r * blocks, a number below its side
        for r in range(4):
            if r == 0:
                word = c0
            elif r == 1:
                word = c1
            elif r == 2:
                word = c2
            else:
                word = c3
            i = q + r * blocks
            side = _u64(m - n + 1 + i)
            product = _u64(word) * side
            if product & _WORD < side and i < n:  # rare, and even then not always redrawn
                rows[i] = _u32(_redrawn(product, side, i, step, round, client, seed))
            else:
                rows[i] = _u32(product >> _32)
    # Floyd: a number drawn before becomes the last one in its range, which was not
    for i in range(n):
        row = rows[i]
        row = _u32(row + seen[row] * _u32(m - n + i - row))  # without a branch, which would often be mispredicted
        seen[row] = 1
        rows[i] = row
    for i in range(n):
        seen[rows[i]] = 0


@njit(**_COMPILED)
def draw_rows(seed, client, round, step, first, m, b, rows, room):
    """The places of b of the client's m rows into ``rows``, which has room for three more.

    In ascending order, so that neighbours in memory are read together, unless they are few of many.

    Args:
        first: the number of the client's first row among all clients'.
        room: m zero bytes, zero again afterwards, and the rows' places: see ``room_for``.
    """
    seen, places = room
    place = places[first : first + m]
    rest, placed = 2 * b > m, place.shape[0] > 0
    n = m - b if rest else b
    subset(seed, client, round, step, m, n, seen, rows)
    if placed:
        for i in range(n):
            rows[i] = place[rows[i]]
    if not rest and m > ROWS_PER_PICK * b:
        return
    for i in range(n):
        seen[rows[i]] = 1
    at = 0
    for r in range(m):
        rows[at] = _u32(r)  # overwritten by the next row unless it is taken
        at += seen[r] != rest
        seen[r] = 0


@njit(**_COMPILED, error_model="numpy")
def weigh_rows(i, k, lo, hi, tiled, draws, share, picks, room):
    """share <- how often each tiled row (lo .. hi-1) of client i is in its minibatch of step k.

    ``tiled`` is (row0, place, count). A tiled row stands for ``count`` equal rows of the data, and place[r] says which
    one stands for row r. Either the minibatch or the remaining rows are drawn, whichever are fewer. Returns the factor
    of the gradient.
    """
    row0, place, count = tiled
    seen, batch = room[0], draws.batch
    first, m = row0[i], row0[i + 1] - row0[i]
    n, one = batch, share.dtype.type(1.0)
    if 2 * batch <= m:
        for r in range(hi - lo):
            share[r] = 0.0
    else:
        n, one = m - batch, -one
        for r in range(hi - lo):
            share[r] = count[lo + r]
    subset(draws.seed, draws.number0 + i, draws.round, k, m, n, seen, picks)
    for q in range(n):
        share[place[first + picks[q]]] += one
    return share.dtype.type(1.0 / batch)


# -- sparse, full gradients: tiles -------------------------------------------------------------------------------------
# Entry e of eight rows lies in one line of ``index`` and ``values``: memory is read front to back, and eight sums hide
# the latency of additions. Short rows are padded with index d, where x is zero. ``values`` is empty if all are one.
@njit(**_FAST)
def margins(x, n, first, tiles, index, values, z):
    """z <- A x for n groups of eight rows each, from ``first`` on."""
    unit = values.shape[0] == 0
    for a in range(n):
        q = first + a
        s0 = z.dtype.type(0.0)
        s1 = z.dtype.type(0.0)
        s2 = z.dtype.type(0.0)
        s3 = z.dtype.type(0.0)
        s4 = z.dtype.type(0.0)
        s5 = z.dtype.type(0.0)
        s6 = z.dtype.type(0.0)
        s7 = z.dtype.type(0.0)
        if unit:
            for e in range(tiles[q], tiles[q + 1]):
                s0 += x[index[e, 0]]
                s1 += x[index[e, 1]]
                s2 += x[index[e, 2]]
                s3 += x[index[e, 3]]
                s4 += x[index[e, 4]]
                s5 += x[index[e, 5]]
                s6 += x[index[e, 6]]
                s7 += x[index[e, 7]]
        else:
            for e in range(tiles[q], tiles[q + 1]):
                s0 += values[e, 0] * x[index[e, 0]]
                s1 += values[e, 1] * x[index[e, 1]]
                s2 += values[e, 2] * x[index[e, 2]]
                s3 += values[e, 3] * x[index[e, 3]]
                s4 += values[e, 4] * x[index[e, 4]]
                s5 += values[e, 5] * x[index[e, 5]]
                s6 += values[e, 6] * x[index[e, 6]]
                s7 += values[e, 7] * x[index[e, 7]]
        r = 8 * a
        z[r] = s0
        z[r + 1] = s1
        z[r + 2] = s2
        z[r + 3] = s3
        z[r + 4] = s4
        z[r + 5] = s5
        z[r + 6] = s6
        z[r + 7] = s7


@njit(**_FAST)
def gather_columns(z, lo, hi, at, tiles, rows, values, g):
    """g <- A' z for columns lo .. hi-1, whose tiles begin with number ``at``.

    Four entries of a column at a time, padded with the row after the last, where z is zero.
    """
    unit = values.shape[0] == 0
    for c in range(lo, hi):
        s0 = g.dtype.type(0.0)
        s1 = g.dtype.type(0.0)
        s2 = g.dtype.type(0.0)
        s3 = g.dtype.type(0.0)
        if unit:
            for e in range(tiles[at + c], tiles[at + c + 1]):
                s0 += z[rows[e, 0]]
                s1 += z[rows[e, 1]]
                s2 += z[rows[e, 2]]
                s3 += z[rows[e, 3]]
        else:
            for e in range(tiles[at + c], tiles[at + c + 1]):
                s0 += values[e, 0] * z[rows[e, 0]]
                s1 += values[e, 1] * z[rows[e, 1]]
                s2 += values[e, 2] * z[rows[e, 2]]
                s3 += values[e, 3] * z[rows[e, 3]]
        g[c] = (s0 + s1) + (s2 + s3)


@njit(**_FAST)
def squared_norm(x, d):
    """|x|^2 of the first d entries."""
    s = 0.0
    for c in range(d):
        s += x[c] * x[c]
    return s


@njit(**_FAST)
def step(x, lo, hi, gamma, g, reg, h):
    """The local step  x <- x - gamma (g + reg x - h)  on entries lo .. hi-1."""
    for c in range(lo, hi):
        x[c] -= gamma * (g[c] + reg[c] * x[c] - h[c])


@njit(**_FAST)
def put_gradient(x, d, g, reg):
    """x <- g + reg x, the gradient at x."""
    for c in range(d):
        x[c] = g[c] + reg[c] * x[c]


@njit(**_FAST)
def block_tiles(u, x, data, scale, at, z, bits, power, g):
    """g <- the gradient sum of block u, small enough for its slopes to stay in the cache.

    ``at`` is the group whose rows come first in ``scale``.
    """
    first = data.groups[u]
    last = data.groups[u + 1]
    d = g.shape[0]
    m = 8 * (last - first)
    z[m] = 0.0  # read by the padding of columns
    margins(x, last - first, first, data.row_start, data.row_index, data.row_values, z)
    # |a_r' x| <= |a_r| |x| for all rows
    safe = squared_norm(x, d) * data.longest < SAFE_MARGIN * SAFE_MARGIN
    slopes(data.loss, z, data.b[8 * first :], scale[8 * (first - at) :], m, safe, bits, power)
    gather_columns(z, 0, d, u * d, data.column_start, data.column_index, data.column_values, g)


@njit(**_FAST)
def descend_tiles(lo, hi, steps, data, draws, tiled, work, drawn):
    """The steps of members lo .. hi-1: sparse shards, all rows or most."""
    clients, X0, X, H, gamma, K, only_gradient = steps
    blocks = data.blocks
    groups = data.groups
    d = X.shape[1]
    x, z, g, total, bits, power = work
    share, picks, room = drawn
    for j in range(lo, hi):
        i = clients[j]
        # x has an additional zero, read by the padding of rows
        start = X0[j if X0.shape[0] > 1 else 0]
        for c in range(d):
            x[c] = start[c]
        x[d] = 0.0
        # a minibatch has this client's weights, the full gradient those of all clients
        own, at = (share, groups[blocks[i]]) if draws.batch > 0 else (data.scale, 0)
        for k in range(K[j]):
            part = share.dtype.type(1.0)
            for c in range(d):
                total[c] = 0.0
            if draws.batch > 0:
                slots = 8 * at, 8 * groups[blocks[i + 1]]
                part = weigh_rows(i, draws.step0[j] + k, slots[0], slots[1], tiled, draws, share, picks, room)
            # sum the blocks in order, as if threads shared them
            for u in range(blocks[i], blocks[i + 1]):
                block_tiles(u, x, data, own, at, z, bits, power, g)
                for c in range(d):
                    total[c] += g[c]
            if part != 1.0:
                for c in range(d):
                    total[c] *= part
            if only_gradient:
                put_gradient(x, d, total, data.reg)
            else:
                step(x, 0, d, gamma[j], total, data.reg, H[j])
        for c in range(d):
            X[j, c] = x[c]


# -- row after row: dense shards, small minibatches, softmax, and sparse shards with few entries per column ------------
@njit(**_FAST)
def add_sparse_rows(lo, hi, picks, first, x, indptr, indices, values, b, factor, loss, g):
    """g <- g + sum over rows of factor * slope * row; rows are first + picks[q], or first + q without picks.

    A row's entries are still in the cache when they are read again for the gradient.
    """
    unit = values.shape[0] == 0
    picked = picks.shape[0] > 0
    for q in range(lo, hi):
        r = first + (picks[q] if picked else q)
        s = g.dtype.type(0.0)
        if unit:
            for e in range(indptr[r], indptr[r + 1]):
                s += x[indices[e]]
        else:
            for e in range(indptr[r], indptr[r + 1]):
                s += values[e] * x[indices[e]]
        s = g.dtype.type(slope(loss, s, b[r]) * factor)
        if unit:
            for e in range(indptr[r], indptr[r + 1]):
                g[indices[e]] += s
        else:
            for e in range(indptr[r], indptr[r + 1]):
                g[indices[e]] += s * values[e]


@njit(**_FAST)
def add_dense_rows(lo, hi, picks, first, x, A, b, factor, loss, g):
    """The same for dense rows, four at a time, so that x and g are read once for all four."""
    d = g.shape[0]
    picked = picks.shape[0] > 0
    zero = g.dtype.type(0.0)
    q = lo
    while q + 4 <= hi:
        r0 = first + q
        r1 = first + q + 1
        r2 = first + q + 2
        r3 = first + q + 3
        if picked:
            r0 = first + picks[q]
            r1 = first + picks[q + 1]
            r2 = first + picks[q + 2]
            r3 = first + picks[q + 3]
        s0 = zero
        s1 = zero
        s2 = zero
        s3 = zero
        for c in range(d):
            s0 += A[r0, c] * x[c]
            s1 += A[r1, c] * x[c]
            s2 += A[r2, c] * x[c]
            s3 += A[r3, c] * x[c]
        s0 = g.dtype.type(slope(loss, s0, b[r0]) * factor)
        s1 = g.dtype.type(slope(loss, s1, b[r1]) * factor)
        s2 = g.dtype.type(slope(loss, s2, b[r2]) * factor)
        s3 = g.dtype.type(slope(loss, s3, b[r3]) * factor)
        for c in range(d):
            g[c] += (s0 * A[r0, c] + s1 * A[r1, c]) + (s2 * A[r2, c] + s3 * A[r3, c])
        q += 4
    while q < hi:
        r = first + (picks[q] if picked else q)
        s = zero
        for c in range(d):
            s += A[r, c] * x[c]
        s = g.dtype.type(slope(loss, s, b[r]) * factor)
        for c in range(d):
            g[c] += s * A[r, c]
        q += 1


@njit(**_FAST)
def add_softmax_rows(lo, hi, picks, first, x, indptr, indices, values, b, factor, C, g, p):
    """The same for softmax loss; x is the C x F matrix of the classes' vectors, row by row.

    The slope for class c is its probability, minus one for the row's own class. Dense data come as sparse rows too.
    """
    F = g.shape[0] // C
    picked = picks.shape[0] > 0
    for q in range(lo, hi):
        r = first + (picks[q] if picked else q)
        softmax_row(r, x, C, F, indptr, indices, values, p)
        p[int(b[r])] -= 1.0
        for c in range(C):
            s = g.dtype.type(p[c] * factor)
            for e in range(indptr[r], indptr[r + 1]):
                g[c * F + indices[e]] += s * values[e]


@njit(**_FAST)
def softmax_row(r, x, C, F, indptr, indices, values, p):
    """Class probabilities of row r into p; the largest margin is subtracted first, so that exp does not overflow."""
    top = -np.inf
    for c in range(C):
        s = 0.0
        for e in range(indptr[r], indptr[r + 1]):
            s += values[e] * x[c * F + indices[e]]
        p[c] = s
        top = max(top, s)
    total = 0.0
    for c in range(C):
        p[c] = math.exp(p[c] - top)
        total += p[c]
    for c in range(C):
        p[c] /= total


@njit(**_FAST)
def block_gradient(k, blocks, taken, picks, first, x, data, factor, g, p):
    """g <- the k-th of ``blocks`` parts of a client's gradient sum."""
    lo, hi = k * taken // blocks, (k + 1) * taken // blocks
    for c in range(g.shape[0]):
        g[c] = 0.0
    indptr = data.indptr
    indices = data.indices
    values = data.values
    b = data.b
    if data.kind == DENSE:
        add_dense_rows(lo, hi, picks, first, x, data.dense, b, factor, data.loss, g)
    elif data.kind == SPARSE:
        add_sparse_rows(lo, hi, picks, first, x, indptr, indices, values, b, factor, data.loss, g)
    else:
        add_softmax_rows(lo, hi, picks, first, x, indptr, indices, values, b, factor, data.C, g, p)


@njit(**_FAST)
def rows_gradient(rows, factor, picks, first, x, data, g, part, p):
    """g <- ``factor`` times the sum of these rows' gradients without the regularizer, block after block.

    A large client's gradient is the sum over blocks of rows in order, whoever computes them.
    """
    blocks = max(1, rows // data.per_block)
    block_gradient(0, blocks, rows, picks, first, x, data, factor, g, p)
    for u in range(1, blocks):
        block_gradient(u, blocks, rows, picks, first, x, data, factor, part, p)
        for c in range(g.shape[0]):
            g[c] += part[c]


@njit(**_FAST)
def descend_rows(lo, hi, steps, data, draws, work):
    """The steps of members lo .. hi-1: dense shards, minibatches, softmax, and sparse shards with thin columns."""
    clients, X0, X, H, gamma, K, only_gradient = steps
    d, batch = X.shape[1], draws.batch
    part, total, picks, p, room = work
    for j in range(lo, hi):
        i = clients[j]
        first, m = data.row0[i], data.row0[i + 1] - data.row0[i]
        x, start = X[j], X0[j if X0.shape[0] > 1 else 0]
        for c in range(d):
            x[c] = start[c]
        for k in range(K[j]):
            if batch > 0:
                number = draws.step0[j] + k
                draw_rows(draws.seed, draws.number0 + i, draws.round, number, first, m, batch, picks, room)
            rows_gradient(batch if batch > 0 else m, data.share[i], picks, first, x, data, total, part, p)
            if only_gradient:
                put_gradient(x, d, total, data.reg)
            else:
                step(x, 0, d, gamma[j], total, data.reg, H[j])


@njit(**_COMPILED)
def coin(seed, client, round, step):
    """``randomness.anchor_coin``."""
    words = philox(np.uint32(_COIN), np.uint32(step), np.uint32(round), np.uint32(client), np.uint64(seed))
    return words[0] / 4294967296.0


@njit(**_FAST)
def descend_anchored(lo, hi, steps, anchors, data, draws, work):
    """Steps of L-SVRG, with the same minibatch at both points; X and the anchors are changed in place.

    K[j] times:  z = x_j;  x_j <- z - gamma_j (g(z) - g(w_j) + gw_j - h_j);  and with probability q_j  w_j <- z
    """
    clients, _, X, H, gamma, K, _ = steps
    reg = data.reg
    batch = draws.batch
    d = X.shape[1]
    at_x, at_w, part, picks, everything, p, room = work
    for j in range(lo, hi):
        i = clients[j]
        first, m = data.row0[i], data.row0[i + 1] - data.row0[i]
        x = X[j]
        w = anchors.W[j]
        gw = anchors.GW[j]
        h = H[j]
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


# -- large clients: their blocks on several threads, step after step --------------------------------------------------
# Part u belongs to a block of member owner[u]; member j has parts starts[j] .. starts[j+1]-1, and no step k >= K[j].
@njit(**_FAST)
def sum_tiles(lo, hi, k, owner, block, at, K, Y, data, share, work, parts):
    """parts[u] <- the gradient sum of block[u] at its member's point Y[j], u = lo .. hi-1, as in ``descend_tiles``."""
    _, z, _, _, bits, power = work
    for u in range(lo, hi):
        j = owner[u]
        if k < K[j]:
            own = share[j] if share.shape[0] > 0 else data.scale
            block_tiles(block[u], Y[j], data, own, at[j], z, bits, power, parts[u])


@njit(**_FAST)
def sum_rows(lo, hi, k, owner, starts, K, X, taken, factor, picks, first, data, p, parts):
    """parts[u] <- the gradient sum of a block at its member's point X[j], u = lo .. hi-1, as in ``descend_rows``."""
    for u in range(lo, hi):
        j = owner[u]
        if k < K[j]:
            q, blocks = u - starts[j], starts[j + 1] - starts[j]
            block_gradient(q, blocks, taken[j], picks[j], first[j], X[j], data, factor[j], parts[u], p)


@njit(**_FAST)
def step_by_parts(k, starts, parts, factor, X, steps, reg, total):
    """Step k of every member; its gradient is ``factor`` times the sum of its parts in order."""
    d, K = parts.shape[1], steps.K
    for j in range(K.shape[0]):
        if k < K[j]:
            for c in range(d):
                total[c] = parts[starts[j], c]
            for u in range(starts[j] + 1, starts[j + 1]):
                for c in range(d):
                    total[c] += parts[u, c]
            if factor[j] != 1.0:
                for c in range(d):
                    total[c] *= factor[j]
            if steps.only_gradient:
                put_gradient(X[j], d, total, reg)
            else:
                step(X[j], 0, d, steps.gamma[j], total, reg, steps.H[j])


# -- tiles are filled --------------------------------------------------------------------------------------------------
@njit(**_COMPILED, error_model="numpy")
def fill_tiles(rows, slot, block, place, indptr, indices, values, d, row_start, by_row, at, by_column):
    """Put every entry of these rows into both tilings.

    Entry k of the row in ``slot`` goes to line k of its group, in the row's lane. Entries of a column are appended in
    the order of the slots; ``at[u d + c]`` is the place of the next one.

    Args:
        block, place: the block of each row, and the row's place there.
        by_row, by_column: indices and values; no values if all are one.
    """
    index, stored = by_row
    row_of, stored_by_column = by_column
    unit = stored.shape[0] == 0
    for q in range(rows.shape[0]):
        line = row_start[slot[q] // ROWS_PER_TILE]
        lane = slot[q] % ROWS_PER_TILE
        first = indptr[rows[q]]
        for k in range(indptr[rows[q] + 1] - first):
            c = indices[first + k]
            where = at[block[q] * d + c]
            at[block[q] * d + c] += 1
            tile, entry = where // ENTRIES_PER_TILE, where % ENTRIES_PER_TILE
            index[line + k, lane] = c
            row_of[tile, entry] = place[q]
            if not unit:
                stored[line + k, lane] = values[first + k]
                stored_by_column[tile, entry] = values[first + k]


# -- sums over clients -------------------------------------------------------------------------------------------------
# no fast-math flags, so that sums have numpy's bytes on every engine
@njit(**_COMPILED, error_model="numpy")
def block_sums(lo, hi, w, U, block, sums):
    """sums[q] = the weighted sum of rows q block .. (q+1) block - 1, row after row, without fused multiply-adds."""
    for q in range(lo, hi):
        for c in range(U.shape[1]):
            sums[q, c] = 0.0
        for i in range(q * block, min((q + 1) * block, U.shape[0])):
            for c in range(U.shape[1]):
                sums[q, c] += w[i] * U[i, c]
