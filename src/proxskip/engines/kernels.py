"""Compiled local steps of linear models: all K steps of a client in one call, the GIL released.

Every kernel does, for each client j in [lo, hi) of the cohort,

    K[j] times:  x_j <- x_j - gamma_j * (g(x_j) - h_j),     g(x) = A_j' c / m_j + reg * x,   c = slope(A_j x, b_j)

Full gradients of sparse data read the rows for the margins and the columns for the gather, so nothing is scattered;
minibatches read rows only. A client's arithmetic does not depend on the other clients or on the number of threads.
"""

import math

import numpy as np
from numba import njit

LOGISTIC, SQUARED = 0, 1
_FLAGS = {
    "nogil": True,
    "cache": True,
    "fastmath": {"reassoc", "contract", "nsz", "arcp", "afn"},
    "error_model": "numpy",
}


@njit(inline="always")
def slope(loss, z, b):
    """The derivative of the loss in its margin, without overflow at any margin."""
    if loss == LOGISTIC:
        return -b / (1.0 + math.exp(min(b * z, 700.0)))
    return z - b


@njit(**_FLAGS)
def descend_sparse(
    lo,
    hi,
    clients,
    X,
    H,
    gamma,
    K,
    row0,
    indptr,
    indices,
    values,
    colptr,
    rows,
    by_column,
    b,
    reg,
    loss,
    z,
    g,
):
    """Full gradients, sparse shards; ``values`` is empty where every stored value is one."""
    d = X.shape[1]
    unit = values.shape[0] == 0
    for j in range(lo, hi):
        i = clients[j]
        first, last = row0[i], row0[i + 1]
        inverse = 1.0 / (last - first)
        x, h = X[j], H[j]
        for _ in range(K[j]):
            for r in range(first, last):
                s = z.dtype.type(0.0)
                if unit:
                    for e in range(indptr[r], indptr[r + 1]):
                        s += x[indices[e]]
                else:
                    for e in range(indptr[r], indptr[r + 1]):
                        s += values[e] * x[indices[e]]
                z[r - first] = slope(loss, s, b[r]) * inverse
            for c in range(d):
                s = z.dtype.type(0.0)
                if unit:
                    for e in range(colptr[i, c], colptr[i, c + 1]):
                        s += z[rows[e]]
                else:
                    for e in range(colptr[i, c], colptr[i, c + 1]):
                        s += by_column[e] * z[rows[e]]
                g[c] = s
            for c in range(d):
                x[c] -= gamma[j] * (g[c] + reg[c] * x[c] - h[c])


@njit(**_FLAGS)
def descend_dense(lo, hi, clients, X, H, gamma, K, row0, A, b, reg, loss, z, g):
    """Full gradients, dense shards: one pass over the rows a step."""
    d = X.shape[1]
    for j in range(lo, hi):
        i = clients[j]
        first, last = row0[i], row0[i + 1]
        inverse = 1.0 / (last - first)
        x, h = X[j], H[j]
        for _ in range(K[j]):
            for c in range(d):
                g[c] = 0.0
            for r in range(first, last):
                s = z.dtype.type(0.0)
                for c in range(d):
                    s += A[r, c] * x[c]
                s = z.dtype.type(slope(loss, s, b[r]) * inverse)
                for c in range(d):
                    g[c] += s * A[r, c]
            for c in range(d):
                x[c] -= gamma[j] * (g[c] + reg[c] * x[c] - h[c])


@njit(**_FLAGS)
def descend_rows_sparse(
    lo, hi, clients, X, H, gamma, K, row0, indptr, indices, values, b, reg, loss, batch, seed, round, g, picks
):
    """Minibatch gradients, sparse shards."""
    d = X.shape[1]
    unit = values.shape[0] == 0
    for j in range(lo, hi):
        i = clients[j]
        first, m = row0[i], row0[i + 1] - row0[i]
        x, h = X[j], H[j]
        for k in range(K[j]):
            minibatch(seed, i, round, k, m, batch, picks)
            for c in range(d):
                g[c] = 0.0
            for q in range(batch):
                r = first + picks[q]
                s = g.dtype.type(0.0)
                for e in range(indptr[r], indptr[r + 1]):
                    s += x[indices[e]] if unit else values[e] * x[indices[e]]
                s = g.dtype.type(slope(loss, s, b[r]) / batch)
                for e in range(indptr[r], indptr[r + 1]):
                    g[indices[e]] += s if unit else s * values[e]
            for c in range(d):
                x[c] -= gamma[j] * (g[c] + reg[c] * x[c] - h[c])


@njit(**_FLAGS)
def descend_rows_dense(lo, hi, clients, X, H, gamma, K, row0, A, b, reg, loss, batch, seed, round, g, picks):
    """Minibatch gradients, dense shards."""
    d = X.shape[1]
    for j in range(lo, hi):
        i = clients[j]
        first, m = row0[i], row0[i + 1] - row0[i]
        x, h = X[j], H[j]
        for k in range(K[j]):
            minibatch(seed, i, round, k, m, batch, picks)
            for c in range(d):
                g[c] = 0.0
            for q in range(batch):
                r = first + picks[q]
                s = g.dtype.type(0.0)
                for c in range(d):
                    s += A[r, c] * x[c]
                s = g.dtype.type(slope(loss, s, b[r]) / batch)
                for c in range(d):
                    g[c] += s * A[r, c]
            for c in range(d):
                x[c] -= gamma[j] * (g[c] + reg[c] * x[c] - h[c])


@njit(**_FLAGS)
def descend_softmax(
    lo, hi, clients, X, H, gamma, K, row0, indptr, indices, values, b, reg, C, batch, seed, round, g, picks, p
):
    """Softmax loss on sparse rows (dense data come as rows without gaps); batch = 0 takes every row."""
    d = X.shape[1]
    F = d // C
    for j in range(lo, hi):
        i = clients[j]
        first, m = row0[i], row0[i + 1] - row0[i]
        x, h = X[j], H[j]
        taken = batch if batch > 0 else m
        for k in range(K[j]):
            if batch > 0:
                minibatch(seed, i, round, k, m, batch, picks)
            for c in range(d):
                g[c] = 0.0
            for q in range(taken):
                r = first + (picks[q] if batch > 0 else q)
                softmax_row(r, x, C, F, indptr, indices, values, p)
                p[int(b[r])] -= 1.0
                for c in range(C):
                    s = g.dtype.type(p[c] / taken)
                    for e in range(indptr[r], indptr[r + 1]):
                        g[c * F + indices[e]] += s * values[e]
            for c in range(d):
                x[c] -= gamma[j] * (g[c] + reg[c] * x[c] - h[c])


@njit(**_FLAGS)
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


@njit(nogil=True, cache=True)
def minibatch(seed, client, round, step, m, b, out):
    """The first b values of the keyed permutation of 0..m-1: see problems.sampling, which is the judge."""
    keys = np.empty(12, dtype=np.uint64)
    for block in range(3):
        philox4x32(block, step, round, client, seed, keys[4 * block : 4 * block + 4])
    bits = SMALLEST_BITS
    while (1 << bits) < m:
        bits += 1
    low = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    for q in range(b):
        v = np.uint64(q)
        while True:
            left, right = v >> low, v & low_mask
            for k in range(0, 12, 2):
                left = left ^ (scramble(right, keys[k]) & high_mask)
                right = right ^ (scramble(left, keys[k + 1]) & low_mask)
            v = (left << low) | right
            if v < np.uint64(m):
                break
        out[q] = np.int64(v)


SMALLEST_BITS = 6
_MASK = np.uint64(0xFFFFFFFF)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_S0, _S1 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77)
_13, _15, _32 = np.uint64(13), np.uint64(15), np.uint64(32)


@njit(inline="always")
def scramble(v, key):
    """The Feistel network's round function, 32 bits."""
    v = ((v ^ key) * _S0) & _MASK
    v = v ^ (v >> _15)
    v = (v * _S1) & _MASK
    return v ^ (v >> _13)


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
