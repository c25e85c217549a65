"""The smoothness and strong convexity of each of many packed clients, from stacks of small Gram matrices.

The branches are those of ``spectrum.largest`` and ``spectrum.smallest``, and so is the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy

from proxskip.cores import available_cores
from proxskip.problems import spectrum
from proxskip.problems.glm import LinearModel
from proxskip.types import Array, Indices, InputError

NUMBERS_AT_ONCE = 1 << 22
COLUMNS_AT_ONCE = 1 << 24
"""Limits of the stacks: their numbers, and the columns of a block of sparse clients, each with its own."""
MAX_DENSE_WORK = 1e11
"""Clients times features cubed, up to which an uneven regularizer is treated in all features; beyond, by low rank."""
WORTH_THREADS = 1e7
"""Matrices times their size cubed, from which they are spread over threads."""


def by_size(row0: Indices) -> Iterator[tuple[int, Indices]]:
    """Each number of rows that occurs, and the clients that have it."""
    sizes = np.diff(row0)
    order = np.argsort(sizes, kind="stable")
    values, starts = np.unique(sizes[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, starts[1:]), strict=True)


def rows_of(row0: Indices, who: Indices, m: int) -> Indices:
    """The rows of these clients, which have m each."""
    return np.asarray((row0[who][:, None] + np.arange(m)).ravel())


def largest_each(store: LinearModel, row0: Indices) -> Array:
    """L of each client."""
    F, c = int(store.A.shape[1]), store.curvature
    even = np.ptp(store.reg) == 0
    reg = np.zeros(F) if even else store.reg[:F]
    low_rank = not even and (len(row0) - 1) * float(F) ** 3 > MAX_DENSE_WORK
    out = np.empty(len(row0) - 1)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused with a sentence
        for m, who, A, s in _blocks(store, row0):
            if low_rank and m + 1 < F <= spectrum.EXACT_UP_TO:
                out[who] = _with_intercept(_outer(A, s, m), A, s, c, reg)
            elif F <= spectrum.EXACT_UP_TO and not (m < F and even):
                out[who] = eigenvalue_each(c * _inner(A, s, m) + np.diag(reg), F - 1)
            elif even and m <= spectrum.EXACT_UP_TO:
                out[who] = c * eigenvalue_each(_outer(A, s, m), m - 1)
            else:  # few and large
                cuts = [slice(k * m, k * m + m) for k in range(len(who))]
                out[who] = [spectrum.largest(A[cut], s[cut], c, reg) for cut in cuts]
    return out + float(store.reg[0]) if even else out


def smallest_each(store: LinearModel, row0: Indices) -> Array:
    """mu of each client of a least squares problem."""
    F, least = int(store.A.shape[1]), float(store.reg.min())
    even = np.ptp(store.reg) == 0
    costly = not even and (len(row0) - 1) * float(F) ** 3 > MAX_DENSE_WORK
    out = np.full(len(row0) - 1, least)
    if F > spectrum.EXACT_UP_TO:
        return out
    with np.errstate(over="ignore", invalid="ignore"):
        for m, who, A, s in _blocks(store, row0, 1 if costly or even else 0):
            S = _inner(A, s, m) + np.diag(store.reg)
            w = eigenvalue_each(S, 0)
            w[np.abs(w) <= F * spectrum.EPS * np.abs(S).sum(axis=2).max(axis=1)] = 0.0  # within rounding
            out[who] = np.maximum(np.maximum(w, least), 0.0)
    return out


def eigenvalue_each(S: Array, k: int) -> Array:
    """The k-th eigenvalue, in increasing order, of each matrix of an ``(n, m, m)`` stack."""
    from numba.extending import get_cython_function_address  # not before: a program may never need numba

    from proxskip.problems import kernels

    if not np.isfinite(S).all():
        raise InputError(spectrum.NOT_FINITE)
    n, m = S.shape[:2]
    sizes = scipy.linalg.lapack.dsyevr_lwork(m, lower=1)[:2]
    dsyevr = get_cython_function_address("scipy.linalg.cython_lapack", "dsyevr")
    out, info = np.empty(n), np.empty(n, np.int64)

    def part(lo: int, hi: int) -> None:
        room = np.empty(int(sizes[0])), np.empty(int(sizes[1]), np.int32)
        kernels.eigenvalues(lo, hi, S, k + 1, dsyevr, *room, out, info)

    threads = min(n, available_cores()) if n * float(m) ** 3 > WORTH_THREADS else 1
    ends = [n * t // threads for t in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, ends[:-1], ends[1:]))
    for q in np.flatnonzero(info):  # as in ``spectrum``: the solver for all eigenvalues does not give up
        out[q] = scipy.linalg.eigh(S[q], eigvals_only=True, driver="ev")[k]
    return out


def _blocks(store: LinearModel, row0: Indices, tall: int = 0) -> Iterator[tuple[int, Indices, Any, Array]]:
    """(m, clients with m rows, their rows, the weights of these); with ``tall``, only clients without a null space."""
    A, F = store.A, int(store.A.shape[1])
    each = A.nnz / A.shape[0] if scipy.sparse.issparse(A) else F
    for m, everyone in by_size(row0):
        if tall and m < F:
            continue
        side = min(m, F) if np.ptp(store.reg) == 0 else F
        step = int(min(NUMBERS_AT_ONCE // max(side * side, m * each), COLUMNS_AT_ONCE // F))
        for lo in range(0, len(everyone), max(1, step)):
            who = everyone[lo : lo + max(1, step)]
            rows = rows_of(row0, who, m)
            yield m, who, A[rows], store.s[rows]


def _scaled(A: Any, s: Array, m: int) -> Any:
    """diag(sqrt(s)) A in float64: a stack of dense clients, or a sparse matrix in which each has columns of its own."""
    B = spectrum.scaled_rows(A, s)
    if not scipy.sparse.issparse(A):
        return B.reshape(len(s) // m, m, A.shape[1])
    # the product above orders the entries of a row in its own way, in which the sums of a Gram matrix are taken
    return apart(B, np.arange(0, len(s) + 1, m))


def apart(A: Any, row0: Indices) -> Any:
    """The CSR matrix A with columns of its own for every client."""
    F, clients = A.shape[1], len(row0) - 1
    wide: Any = np.int64 if clients * F > np.iinfo(np.int32).max else np.int32
    first = F * np.arange(clients, dtype=wide)
    indices = A.indices + np.repeat(first, np.diff(A.indptr[row0]))
    return scipy.sparse.csr_matrix((A.data, indices, A.indptr), shape=(A.shape[0], clients * F))


def _outer(A: Any, s: Array, m: int) -> Array:
    """B B' of each client."""
    B = _scaled(A, s, m)
    return B @ B.transpose(0, 2, 1) if isinstance(B, np.ndarray) else _diagonal_blocks(B @ B.T, m)


def _inner(A: Any, s: Array, m: int) -> Array:
    """B'B of each client."""
    B = _scaled(A, s, m)
    return B.transpose(0, 2, 1) @ B if isinstance(B, np.ndarray) else _diagonal_blocks(B.T @ B, A.shape[1])


def _diagonal_blocks(M: Any, side: int) -> Array:
    """The blocks of a block-diagonal sparse matrix, dense."""
    M = scipy.sparse.csr_matrix(M)
    out = np.zeros((M.shape[0] // side, side, side))
    row = np.repeat(np.arange(M.shape[0]), np.diff(M.indptr))
    out[row // side, row % side, M.indices % side] = M.data
    return out


def _with_intercept(outer: Array, A: Any, s: Array, c: float, reg: Array) -> Array:
    """lmax(c B'B + diag(reg)) where reg is lambda but for the last entry, 0: lambda + lmax(c B'B - lambda e e').

    The nonzero eigenvalues of U' D U, with rows U = (sqrt(c) B; e') and D = diag(1, ..., 1, -lambda), are those of
    G^(1/2) D G^(1/2) with G = U U', which is as small as the client.
    """
    k, m = outer.shape[:2]
    last = A[:, [A.shape[1] - 1]]
    last = np.asarray(last.toarray() if scipy.sparse.issparse(last) else last, dtype=np.float64)
    G = np.ones((k, m + 1, m + 1))
    G[:, :m, :m] = c * outer
    G[:, :m, m] = G[:, m, :m] = (np.sqrt(c * s) * last[:, 0]).reshape(k, m)
    D = np.ones(m + 1)
    D[m] = -reg[0]
    w, V = np.linalg.eigh(G)
    R = (V * np.sqrt(np.maximum(w, 0.0))[:, None, :]) @ V.transpose(0, 2, 1)
    top = np.linalg.eigvalsh((R * D) @ R)[:, -1]
    return np.asarray(reg[0] + np.maximum(top, 0.0))
