"""Compiled local steps of linear models: all K steps of a client in one call, the GIL released.

Every kernel does, for each client j in [lo, hi) of the cohort,

    K[j] times:  x_j <- x_j - gamma_j * (g(x_j) - h_j),   g(x) = A_j' c + reg * x,   c_r = scale_r * slope(A_j x, b_j)

* Sparse shards, full gradients: *tiles*. Rows are sorted by length and taken eight at a time, columns four entries at
  a time, so the inner loops are straight lines of independent additions whose trip count hardly ever changes; the
  margins read rows, the gradient gathers columns, nothing is scattered. Rows without entries are left out and equal
  rows merged. A minibatch of most of the rows is a full gradient whose other rows weigh nothing.
* Sparse shards with few entries a column, and small minibatches: row after row, scattered.
* Dense shards: four rows at a time, margins and gradient in one pass.

A client's arithmetic depends on its own shard alone: not on the other clients, nor on the number of threads. Indices
are unsigned because signed ones cost a check each; ``reassoc`` lets the compiler vectorise sums, in an order that is
fixed when it compiles. NaN and infinity keep their meaning.
"""

import math

import numpy as np
from numba import njit

LOGISTIC, SQUARED = 0, 1
_FAST = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
}
_EXACT = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract"}}
SAFE_MARGIN = 690.0
"""Below it exp neither overflows nor underflows."""


# -- slopes ------------------------------------------------------------------------------------------------------------
_LOG2E, _MAGIC = (
    1.4426950408889634,
    6755399441055744.0,
)  # adding 1.5 * 2^52 rounds to a whole number, kept in the low bits
_LN2_HI, _LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# exp on [-ln 2 / 2, ln 2 / 2], interpolated at the Chebyshev points: relative error below 3e-16
_C0, _C1, _C2, _C3 = 1.0, 1.0, 0.5000000000000019, 0.1666666666666668
_C4, _C5, _C6, _C7 = 0.04166666666648795, 0.008333333333319589, 0.0013888888952352863, 0.00019841269890076403
_C8, _C9, _C10, _C11 = 2.4801485441561313e-05, 2.755724088722987e-06, 2.763265472252779e-07, 2.5110049204818658e-08


@njit(inline="always")
def slope(loss, z, b):
    """The derivative of the loss in its margin, without overflow at any margin."""
    if loss == LOGISTIC:
        return -b / (1.0 + math.exp(min(b * z, 700.0)))
    return z - b


@njit(inline="always")
def _exp_part(u, i, power, z):
    t = u * _LOG2E + _MAGIC
    power[i] = t
    k = t - _MAGIC
    r = u - k * _LN2_HI - k * _LN2_LO
    r2 = r * r
    r4 = r2 * r2
    q0 = (_C0 + _C1 * r) + (_C2 + _C3 * r) * r2
    q1 = (_C4 + _C5 * r) + (_C6 + _C7 * r) * r2
    q2 = (_C8 + _C9 * r) + (_C10 + _C11 * r) * r2
    z[i] = q0 + (q1 + q2 * r4) * r4


@njit(**_EXACT)
def slopes(loss, z, b, scale, m, safe, bits, power):
    """z <- scale * slope(z, b) for the first m rows, vectorised; ``bits`` and ``power`` are one buffer.

    ``safe`` says that every margin is below SAFE_MARGIN, so that no clamp is needed.
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
        bits[i] = (bits[i] << 52) + (1023 << 52)  # 2^k from the low bits of k + magic
    for i in range(m):
        z[i] = -b[i] * scale[i] / (1.0 + z[i] * power[i])


# -- sparse, full gradients: tiles -------------------------------------------------------------------------------------
@njit(**_FAST)
def margins(x, lo, hi, at, tiles, index, values, z):
    """A x for groups lo .. hi-1 of eight rows each."""
    unit = values.shape[0] == 0
    for q in range(lo, hi):
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = z.dtype.type(0.0)
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
        r = 8 * (q - at)
        z[r] = s0
        z[r + 1] = s1
        z[r + 2] = s2
        z[r + 3] = s3
        z[r + 4] = s4
        z[r + 5] = s5
        z[r + 6] = s6
        z[r + 7] = s7


@njit(**_FAST)
def gather(z, lo, hi, at, tiles, rows, values, g):
    """A' z for columns lo .. hi-1."""
    unit = values.shape[0] == 0
    for c in range(lo, hi):
        s0 = s1 = s2 = s3 = g.dtype.type(0.0)
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
def distance(x, y):
    """|x - y| without a vector in between."""
    s = 0.0
    for c in range(len(x)):
        s += (x[c] - y[c]) * (x[c] - y[c])
    return math.sqrt(s)


@njit(**_FAST)
def step(x, lo, hi, gamma, g, reg, h):
    """x <- x - gamma (g + reg x - h) on entries lo .. hi-1."""
    for c in range(lo, hi):
        x[c] -= gamma * (g[c] + reg[c] * x[c] - h[c])


@njit(**_FAST)
def block_tiles(u, x, d, groups, row_data, column_data, b, scale, at, loss, longest, z, bits, power, g):
    """g <- the gradient sum of block u of rows, small enough for its slopes to stay in the cache.

    ``at`` is the group whose rows come first in ``scale``.
    """
    tiles, index, values = row_data
    columns, rows, by_column = column_data
    first, last = groups[u], groups[u + 1]
    m = 8 * (last - first)
    z[m] = 0.0
    margins(x, first, last, first, tiles, index, values, z)
    safe = squared_norm(x, d) * longest < SAFE_MARGIN * SAFE_MARGIN
    slopes(loss, z, b[8 * first :], scale[8 * (first - at) :], m, safe, bits, power)
    gather(z, 0, d, u * d, columns, rows, by_column, g)


@njit(**_FAST)
def weigh(i, k, lo, hi, row0, place, count, batch, seed, round, number0, share, picks, room):
    """share <- how often each tiled row (lo .. hi-1) of client i is in its minibatch of step k, over the batch.

    The rows that are not in it are the other values of the permutation; whichever are fewer are drawn.
    """
    first, m = row0[i], row0[i + 1] - row0[i]
    one = share.dtype.type(1.0)
    if 2 * batch <= m:
        start, n = 0, batch
        for r in range(hi - lo):
            share[r] = 0.0
    else:
        start, n, one = batch, m - batch, -one
        for r in range(hi - lo):
            share[r] = count[lo + r]
    minibatch(seed, number0 + i, round, k, m, start, n, picks, room)
    for q in range(n):
        share[place[first + picks[q]]] += one
    part = share.dtype.type(1.0 / batch)
    for r in range(hi - lo):
        share[r] *= part


@njit(**_FAST)
def descend_tiles(
    lo, hi, clients, X0, X, H, gamma, K, blocks, groups, row_data, column_data, b, scale, reg, loss, longest, work,
    row0, place, count, batch, seed, round, number0, share, picks, room, step0,
):  # fmt: skip
    """Sparse shards, all rows or most; X0 has a row for each member of the cohort, or one for all.

    Member j draws the minibatch of its local step k as that of step ``step0[j] + k`` of the round.
    """
    d = X.shape[1]
    x, z, g, total, bits, power = work
    for j in range(lo, hi):
        i = clients[j]
        start = X0[j if X0.shape[0] > 1 else 0]
        for c in range(d):
            x[c] = start[c]
        x[d] = 0.0
        own, at = (share, groups[blocks[i]]) if batch > 0 else (scale, 0)
        for k in range(K[j]):
            for c in range(d):
                total[c] = 0.0
            if batch > 0:
                lo8, hi8 = 8 * at, 8 * groups[blocks[i + 1]]
                number = step0[j] + k
                weigh(i, number, lo8, hi8, row0, place, count, batch, seed, round, number0, share, picks, room)
            for u in range(blocks[i], blocks[i + 1]):
                block_tiles(u, x, d, groups, row_data, column_data, b, own, at, loss, longest, z, bits, power, g)
                for c in range(d):
                    total[c] += g[c]
            step(x, 0, d, gamma[j], total, reg, H[j])
        for c in range(d):
            X[j, c] = x[c]


# -- sparse, row after row: minibatches, and shards with few entries a column ------------------------------------------
@njit(**_FAST)
def add_rows(lo, hi, picks, first, x, indptr, indices, values, b, factor, loss, g):
    """g <- g + sum over rows of factor * slope * row; rows are first + picks[q], or first + q without picks."""
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
def add_dense(lo, hi, picks, first, x, A, b, factor, loss, g):
    """The same for dense rows, four at a time."""
    d = g.shape[0]
    picked = picks.shape[0] > 0
    zero = g.dtype.type(0.0)
    q = lo
    while q + 4 <= hi:
        r0, r1, r2, r3 = first + q, first + q + 1, first + q + 2, first + q + 3
        if picked:
            r0, r1, r2, r3 = first + picks[q], first + picks[q + 1], first + picks[q + 2], first + picks[q + 3]
        s0, s1, s2, s3 = zero, zero, zero, zero
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
def add_softmax(lo, hi, picks, first, x, indptr, indices, values, b, factor, C, g, p):
    """The same for softmax loss; dense data come as rows without gaps."""
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
    """Class probabilities of row r into p."""
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
def block_gradient(k, blocks, taken, picks, first, x, kind, dense, sparse, b, factor, loss, C, g, p):
    """g <- the k-th of ``blocks`` parts of a client's gradient sum."""
    lo, hi = k * taken // blocks, (k + 1) * taken // blocks
    for c in range(g.shape[0]):
        g[c] = 0.0
    indptr, indices, values = sparse
    if kind == 0:
        add_dense(lo, hi, picks, first, x, dense, b, factor, loss, g)
    elif kind == 1:
        add_rows(lo, hi, picks, first, x, indptr, indices, values, b, factor, loss, g)
    else:
        add_softmax(lo, hi, picks, first, x, indptr, indices, values, b, factor, C, g, p)


@njit(**_FAST)
def descend_rows(
    lo,
    hi,
    clients,
    X0,
    X,
    H,
    gamma,
    K,
    row0,
    kind,
    dense,
    sparse,
    b,
    reg,
    loss,
    C,
    batch,
    seed,
    round,
    per_block,
    number0,
    work,
    step0,
):
    """Dense shards, minibatches, softmax, and sparse shards with few entries a column.

    A large client's gradient is the sum of the gradients of blocks of rows, in their order, whoever computes them.
    ``number0`` is the first client's number among all, by which minibatches are drawn. Member j draws the minibatch of
    its local step k as that of step ``step0[j] + k`` of the round.
    """
    d = X.shape[1]
    g, total, picks, p, room = work
    for j in range(lo, hi):
        i = clients[j]
        first, m = row0[i], row0[i + 1] - row0[i]
        taken = batch if batch > 0 else m
        blocks = max(1, taken // per_block)
        x, start = X[j], X0[j if X0.shape[0] > 1 else 0]
        for c in range(d):
            x[c] = start[c]
        for k in range(K[j]):
            if batch > 0:
                minibatch(seed, number0 + i, round, step0[j] + k, m, 0, batch, picks, room)
            block_gradient(0, blocks, taken, picks, first, x, kind, dense, sparse, b, 1.0 / taken, loss, C, total, p)
            for q in range(1, blocks):
                block_gradient(q, blocks, taken, picks, first, x, kind, dense, sparse, b, 1.0 / taken, loss, C, g, p)
                for c in range(d):
                    total[c] += g[c]
            step(x, 0, d, gamma[j], total, reg, H[j])


# -- sums over clients -------------------------------------------------------------------------------------------------
@njit(nogil=True, cache=True, error_model="numpy")
def block_sums(lo, hi, w, U, block, out):
    """out[q] = the weighted sum of rows q block .. (q+1) block - 1, row after row, without fused operations."""
    for q in range(lo, hi):
        for c in range(U.shape[1]):
            out[q, c] = 0.0
        for i in range(q * block, min((q + 1) * block, U.shape[0])):
            for c in range(U.shape[1]):
                out[q, c] += w[i] * U[i, c]


LAZY_ROWS = 32
"""Clients whose rows one line of a lazy program works on at a time: their temporaries stay in the cache."""


@njit(inline="always")
def _at(kind, r, lo, members):
    """Where client r's row is in an operand of this kind."""
    if kind == 0:
        return r
    if kind == 1:
        return members[r]
    return 0 if kind == 2 else r - lo


@njit(nogil=True, cache=True, error_model="numpy")
def _two_vectors(op, ka, A, kb, B, lo, hi, members, out, own):
    d = out.shape[1]
    for r in range(lo, hi):
        i, j = np.uint64(_at(ka, r, lo, members)), np.uint64(_at(kb, r, lo, members))
        q = np.uint64(_at(own, r, lo, members))
        if op == 0:
            for c in range(d):
                out[q, c] = A[i, c] + B[j, c]
        elif op == 1:
            for c in range(d):
                out[q, c] = A[i, c] - B[j, c]
        elif op == 2:
            for c in range(d):
                out[q, c] = A[i, c] * B[j, c]
        else:
            for c in range(d):
                out[q, c] = A[i, c] / B[j, c]


@njit(nogil=True, cache=True, error_model="numpy")
def _vector_and_number(op, ka, A, numbers, lo, hi, members, out, own):
    d = out.shape[1]
    for r in range(lo, hi):
        q = np.uint64(_at(own, r, lo, members))
        i, b = np.uint64(_at(ka, r, lo, members)), numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        if op == 0:
            for c in range(d):
                out[q, c] = A[i, c] + b
        elif op == 1:
            for c in range(d):
                out[q, c] = A[i, c] - b
        elif op == 2:
            for c in range(d):
                out[q, c] = A[i, c] * b
        else:
            for c in range(d):
                out[q, c] = A[i, c] / b


@njit(nogil=True, cache=True, error_model="numpy")
def _number_and_vector(op, numbers, kb, B, lo, hi, members, out, own):
    d = out.shape[1]
    for r in range(lo, hi):
        q = np.uint64(_at(own, r, lo, members))
        j, a = np.uint64(_at(kb, r, lo, members)), numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        if op == 0:
            for c in range(d):
                out[q, c] = a + B[j, c]
        elif op == 1:
            for c in range(d):
                out[q, c] = a - B[j, c]
        elif op == 2:
            for c in range(d):
                out[q, c] = a * B[j, c]
        else:
            for c in range(d):
                out[q, c] = a / B[j, c]


@njit(nogil=True, cache=True, error_model="numpy")
def _plus_scaled(op, ka, A, kb, B, numbers, lo, hi, members, out, own):
    d = out.shape[1]
    for r in range(lo, hi):
        i, j = np.uint64(_at(ka, r, lo, members)), np.uint64(_at(kb, r, lo, members))
        q, s = np.uint64(_at(own, r, lo, members)), numbers[r, 0] if numbers.shape[0] > 1 else numbers[0, 0]
        if op == 4:
            for c in range(d):
                out[q, c] = A[i, c] + s * B[j, c]
        else:
            for c in range(d):
                out[q, c] = A[i, c] - s * B[j, c]


@njit(inline="always")
def _operand(kind, k, arrays, numbers, temporary):
    if kind == 3:
        return temporary[k]
    if kind == 5:
        return numbers[k : k + 1]
    return arrays[k]


@njit(nogil=True, cache=True, error_model="numpy")
def evaluate(start, stop, codes, members, arrays, numbers, outs, temporary):
    """Run a program of ``engines.lazy`` on clients start .. stop-1, LAZY_ROWS at a time.

    A line (op, kind, to, kind, k, kind, k, kind, k) combines operands into a temporary or, for kinds 0 and 1, into a
    result. Kinds 0 to 3 are vectors (a row of a stack, a kept row, one row for all, a temporary), 4 and 5 numbers (one
    a client, one for all). Operations 0 to 3 are + - * /, 4 and 5 add or subtract a multiple.
    """
    for lo in range(start, stop, LAZY_ROWS):
        hi = min(lo + LAZY_ROWS, stop)
        for q in range(codes.shape[0]):
            op, own, ka, kb = codes[q, 0], codes[q, 1], codes[q, 3], codes[q, 5]
            out = temporary[codes[q, 2]] if own == 3 else outs[codes[q, 2]]
            a = _operand(ka, codes[q, 4], arrays, numbers, temporary)
            b = _operand(kb, codes[q, 6], arrays, numbers, temporary)
            if op >= 4:
                factor = _operand(codes[q, 7], codes[q, 8], arrays, numbers, temporary)
                _plus_scaled(op, ka, a, kb, b, factor, lo, hi, members, out, own)
            elif ka >= 4:
                _number_and_vector(op, a, kb, b, lo, hi, members, out, own)
            elif kb >= 4:
                _vector_and_number(op, ka, a, b, lo, hi, members, out, own)
            else:
                _two_vectors(op, ka, a, kb, b, lo, hi, members, out, own)


# -- minibatches -------------------------------------------------------------------------------------------------------
SMALLEST_BITS = 6
_MASK = np.uint64(0xFFFFFFFF)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_u32 = np.uint32
_S0, _S1 = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_13, _15, _32 = np.uint32(13), np.uint32(15), np.uint64(32)


@njit(inline="always")
def scramble(v, key):
    """The Feistel network's round function."""
    v = _u32((v ^ key) * _S0)
    v = _u32((v ^ (v >> _15)) * _S1)
    return v ^ (v >> _13)


@njit(nogil=True, cache=True)
def _mix(a, b, n, key, mask):
    """Half a round of the network for n numbers at once, a and b their halves."""
    for q in range(n):
        a[q] = _u32(a[q] ^ (scramble(b[q], key) & mask))


@njit(nogil=True, cache=True)
def permute(v, n, keys, bits, left, right):
    """The network's value for each of v's first n numbers, in their place."""
    low = _u32(bits // 2)
    low_mask, high_mask = _u32((1 << (bits // 2)) - 1), _u32((1 << (bits - bits // 2)) - 1)
    for q in range(n):
        left[q], right[q] = _u32(v[q] >> low), _u32(v[q] & low_mask)
    for k in range(0, 12, 2):
        _mix(left, right, n, _u32(keys[k]), high_mask)
        _mix(right, left, n, _u32(keys[k + 1]), low_mask)
    for q in range(n):
        v[q] = _u32((left[q] << low) | right[q])


@njit(nogil=True, cache=True)
def minibatch(seed, client, round, step, m, start, n, out, room):
    """Values start .. start+n-1 of the keyed permutation of 0..m-1: see problems.sampling, which is the judge.

    ``room`` is for twelve keys and four times n numbers. All n take each step of the network together, so that it is
    vectorised; those that land beyond m walk on.
    """
    keys, v, left, right, at = room
    for block in range(3):
        philox4x32(block, step, round, client, seed, keys[4 * block : 4 * block + 4])
    bits = SMALLEST_BITS
    while (1 << bits) < m:
        bits += 1
    for q in range(n):
        out[q] = _u32(start + q)
    permute(out, n, keys, bits, left, right)
    beyond = 0
    for q in range(n):
        v[beyond], at[beyond] = out[q], _u32(q)
        beyond += out[q] >= m
    while beyond > 0:
        n, beyond = beyond, 0
        permute(v, n, keys, bits, left, right)
        for q in range(n):
            out[at[q]] = v[q]
            v[beyond], at[beyond] = v[q], at[q]
            beyond += v[q] >= m


@njit(nogil=True, cache=True)
def philox4x32(a, b, c, d, seed, out):
    """Philox4x32-10 words for counter (a, b, c, d)."""
    c0, c1 = np.uint64(a) & _MASK, np.uint64(b) & _MASK
    c2, c3 = np.uint64(c) & _MASK, np.uint64(d) & _MASK
    k0, k1 = np.uint64(seed) & _MASK, (np.uint64(seed) >> _32) & _MASK
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _MASK, (p0 >> _32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    out[0], out[1], out[2], out[3] = c0, c1, c2, c3
