"""The extreme eigenvalues of  c A' diag(s) A + diag(reg):  exact at moderate sizes, otherwise a bound.

Those of many packed clients come from stacks of small Gram matrices, and are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.support.compiling import compiling
from proxskip.support.cores import available_cores
from proxskip.support.randomness import generator
from proxskip.types import Array, Indices, InputError, Matrix, is_sparse

EPS = float(np.finfo(np.float64).eps)
NOT_FINITE = "the data are so large that A'A is not finite; divide them by their largest entry."
EXACT_UP_TO = 4096
"""Up to this many features (or rows, if there are fewer), eigenvalues are computed exactly."""
MAX_SPARSE_PRODUCT = 1 << 24
"""Stored entries up to which Gram matrices are products of sparse matrices."""
GRAM_PARTS = 8
"""Beyond that, parts of the rows whose Gram matrices are added up."""
LANCZOS_SLACK = 0.01
LANCZOS_FAILURE = 1e-10
"""Beyond that, Lanczos from a random start bounds the largest eigenvalue from above. The bound is at most 1 % too
large, and it fails with probability below 1e-10 (Kuczynski and Wozniakowski, 1992, Theorem 3.2)."""
NUMBERS_AT_ONCE = 1 << 22
COLUMNS_AT_ONCE = 1 << 24
"""Limits of the stacks: their numbers, and the columns of a block of sparse clients, each with its own."""
MAX_DENSE_WORK = 1e11
"""Clients times features cubed, up to which an uneven regularizer is treated exactly; beyond, L is a bound."""
WORTH_THREADS = 1e7
"""Matrices times their size cubed, from which they are spread over threads."""


class WeightedRows(Protocol):
    """The rows of all clients, their weights, and the regularizer; such as a linear model."""

    @property
    def A(self) -> Matrix: ...
    @property
    def s(self) -> Array: ...
    @property
    def reg(self) -> Array: ...
    @property
    def curvature(self) -> float: ...


def norm(v: Array) -> float:
    """The norm, without overflow or underflow of the squares."""
    top = float(np.max(np.abs(v), initial=0.0))
    if not 0.0 < top < np.inf:
        return top
    return top * float(np.linalg.norm(v.ravel() / top))


def is_matrix(A: object) -> bool:
    """Whether A is a dense or sparse matrix, whose entries can be read, and not just an operator."""
    return isinstance(A, np.ndarray) or is_sparse(A)


def gram(A: Matrix, s: Array) -> Array:
    """A' diag(s) A as a dense matrix."""
    if scipy.sparse.issparse(A) and A.nnz > MAX_SPARSE_PRODUCT and A.shape[1] <= EXACT_UP_TO:
        return _gram_of_rows(A, s)
    B = scaled_rows(A, s)
    return _dense(B.T @ B)


def _gram_of_rows(A: Matrix, s: Array) -> Array:
    """The same without a product of sparse matrices, which would hold A several times."""
    from proxskip.problems.small_client_kernels import add_gram

    parts = np.zeros((GRAM_PARTS, A.shape[1], A.shape[1]))
    ends = [A.shape[0] * k // GRAM_PARTS for k in range(GRAM_PARTS + 1)]

    def add(k: int) -> None:
        add_gram(ends[k], ends[k + 1], A.indptr, A.indices, A.data, s, parts[k])

    with compiling(add_gram):
        add_gram(0, 0, A.indptr, A.indices, A.data, s, parts[0])
    # always the same parts in the same order, so that the bytes do not depend on the number of threads
    with ThreadPoolExecutor(min(GRAM_PARTS, available_cores())) as pool:
        list(pool.map(add, range(GRAM_PARTS)))
    lower = np.tril(parts.sum(axis=0))
    return np.asarray(lower + np.tril(lower, -1).T)


def scaled_rows(A: Matrix, s: Array) -> Matrix:
    """diag(sqrt(s)) A in float64, dense or sparse as A is."""
    root = np.sqrt(s)
    if is_sparse(A):
        return scipy.sparse.diags_array(root) @ A.astype(np.float64)
    return np.asarray(A, dtype=np.float64) * root[:, None]


def _dense(M: Matrix) -> Array:
    return np.asarray(M.toarray() if is_sparse(M) else M, dtype=np.float64)


def largest(A: Matrix, s: Array, c: float, reg: Array) -> float:
    """The largest eigenvalue of  c A' diag(s) A + diag(reg)."""
    N, d = A.shape
    even = np.ptp(reg) == 0  # then reg only shifts the spectrum
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused with a sentence
        if is_matrix(A):
            if d <= EXACT_UP_TO and not (d > N and even):
                return top_eigenvalue(c * gram(A, s) + np.diag(reg))
            if N <= EXACT_UP_TO and even:
                B = scaled_rows(A, s)  # B B' has the positive eigenvalues of B' B, and is smaller
                return c * top_eigenvalue(_dense(B @ B.T)) + float(reg[0])
        return lanczos_bound(lambda v: c * (A.T @ (s * (A @ v))) + reg * v, d)


def smallest(A: Matrix, s: Array, c: float, reg: Array) -> float:
    """The smallest eigenvalue of  c A' diag(s) A + diag(reg);  the lower bound min(reg) if A is large or wide."""
    N, d = A.shape
    if d > EXACT_UP_TO or (d > N and np.ptp(reg) == 0) or not is_matrix(A):
        return float(reg.min())
    with np.errstate(over="ignore", invalid="ignore"):
        return _smallest(c * gram(A, s), reg)


def _smallest(G: Array, reg: Array) -> float:
    return max(smallest_eigenvalue(G + np.diag(reg)), float(reg.min()), 0.0)


def both_ends(A: Matrix, s: Array, reg: Array) -> tuple[float, float]:
    """``largest`` without reg and ``smallest`` with it, to the bit; the Gram matrix of a tall A is computed once."""
    zero = np.zeros(len(reg))
    if not is_matrix(A) or A.shape[1] > min(EXACT_UP_TO, A.shape[0]):
        return largest(A, s, 1.0, zero), smallest(A, s, 1.0, reg)
    with np.errstate(over="ignore", invalid="ignore"):
        G = gram(A, s)
        return top_eigenvalue(G + np.diag(zero)), _smallest(G, reg)


def smallest_eigenvalue(S: Array) -> float:
    """The smallest eigenvalue of a dense symmetric matrix; zero if it is within the rounding of the largest."""
    w = _eigenvalue(S, 0)
    return w if abs(w) > len(S) * EPS * float(np.abs(S).sum(axis=1).max()) else 0.0


def top_eigenvalue(S: Array) -> float:
    """The largest eigenvalue of a dense symmetric matrix."""
    return _eigenvalue(S, S.shape[0] - 1)


def _eigenvalue(S: Array, k: int) -> float:
    """The k-th eigenvalue of a dense symmetric matrix, in increasing order."""
    if not np.isfinite(S).all():
        raise InputError(NOT_FINITE)
    try:
        return float(scipy.linalg.eigh(S, eigvals_only=True, subset_by_index=(k, k))[0])
    except np.linalg.LinAlgError:
        # LAPACK's solver for single eigenvalues gives up on some matrices of low rank; the one for all does not
        return float(scipy.linalg.eigh(S, eigvals_only=True, driver="ev")[k])


def lanczos_bound(matvec: Callable[[Array], Array], d: int) -> float:
    """An upper bound on the largest eigenvalue of a PSD operator; it fails with probability ``LANCZOS_FAILURE``."""
    # P[(lmax - estimate) / lmax > slack] <= 1.648 sqrt(d) exp(-sqrt(slack) (2 k - 1))
    need = np.log(1.648 * np.sqrt(d) / LANCZOS_FAILURE) / np.sqrt(LANCZOS_SLACK)
    return lanczos(matvec, d, min(d, int(np.ceil((need + 1) / 2)))) / (1.0 - LANCZOS_SLACK)


def lanczos(matvec: Callable[[Array], Array], d: int, k: int) -> float:
    """The largest eigenvalue of a PSD operator as k products with it show it, from below."""
    v = generator(0).standard_normal(d)
    Q = np.empty((k + 1, d))
    Q[0] = v / np.linalg.norm(v)
    alpha: list[float] = []
    beta: list[float] = []
    size = 0.0
    for m in range(k):
        w = np.asarray(matvec(Q[m]), dtype=np.float64)
        alpha.append(float(w @ Q[m]))
        B = Q[: m + 1]
        for _again in range(2):  # full reorthogonalisation; twice is enough
            w = w - B.T @ (B @ w)
        norm = float(np.linalg.norm(w))
        if not np.isfinite(norm):
            raise InputError(NOT_FINITE)
        # what is left is rounding when it is tiny beside the matrix, whose size the entries so far show
        size = max(size, abs(alpha[-1]), norm)
        if norm <= 1e-14 * size:
            break
        beta.append(norm)
        Q[m + 1] = w / norm
    last = len(alpha) - 1
    top = scipy.linalg.eigh_tridiagonal(alpha, beta[:last], eigvals_only=True, select="i", select_range=(last, last))
    return float(top[0])


# -- many clients, whose rows are in one store ------------------------------------------------------------------------
def by_size(row0: Indices) -> Iterator[tuple[int, Indices]]:
    """Each number of rows that occurs, and the clients that have it."""
    sizes = np.diff(row0)
    order = np.argsort(sizes, kind="stable")
    values, starts = np.unique(sizes[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, starts[1:]), strict=True)


def rows_of(row0: Indices, who: Indices, m: int) -> Indices:
    """The rows of these clients, which have m each."""
    return np.asarray((row0[who][:, None] + np.arange(m)).ravel())


def largest_each(store: WeightedRows, row0: Indices) -> Array:
    """L of each client; for many clients with an intercept and few rows, a bound that is at most lambda too large."""
    F = int(store.A.shape[1])
    c = store.curvature
    reg = store.reg[: store.A.shape[1]]
    even = np.ptp(reg) == 0  # then reg only shifts the spectrum
    by_rows = even or (len(row0) - 1) * float(F) ** 3 > MAX_DENSE_WORK
    own, shift = (np.zeros(F), float(reg[0])) if even else (reg, 0.0)
    values = np.empty(len(row0) - 1)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused with a sentence
        for m, who, A, s in _blocks(store, row0):
            if by_rows and m < F and m <= EXACT_UP_TO:
                values[who] = c * eigenvalue_each(_grams(A, s, m, of_rows=True), m - 1) + float(reg.max())
            elif F <= EXACT_UP_TO and len(who) > 1:
                values[who] = eigenvalue_each(c * _grams(A, s, m, of_rows=False) + np.diag(own), F - 1) + shift
            else:  # few and large
                cuts = [slice(k * m, k * m + m) for k in range(len(who))]
                values[who] = [largest(A[cut], s[cut], c, own) + shift for cut in cuts]
    return values


def smallest_each(store: WeightedRows, row0: Indices) -> Array:
    """mu of each client of a least squares problem."""
    F, least = int(store.A.shape[1]), float(store.reg.min())
    even = np.ptp(store.reg) == 0
    costly = not even and (len(row0) - 1) * float(F) ** 3 > MAX_DENSE_WORK
    values = np.full(len(row0) - 1, least)
    if F > EXACT_UP_TO:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        for m, who, A, s in _blocks(store, row0, tall=costly or even):
            if len(who) == 1:
                values[who] = smallest(A, s, 1.0, store.reg)
                continue
            S = _grams(A, s, m, of_rows=False) + np.diag(store.reg)
            w = eigenvalue_each(S, 0)
            w[np.abs(w) <= F * EPS * np.abs(S).sum(axis=2).max(axis=1)] = 0.0  # within rounding
            values[who] = np.maximum(np.maximum(w, least), 0.0)
    return values


def eigenvalue_each(S: Array, k: int) -> Array:
    """The k-th eigenvalue, in increasing order, of each matrix of an ``(n, m, m)`` stack."""
    if not np.isfinite(S).all():
        raise InputError(NOT_FINITE)
    n, m = S.shape[:2]
    threads = min(n, available_cores()) if n * float(m) ** 3 > WORTH_THREADS else 1
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(np.linalg.eigvalsh, np.array_split(S, threads))))[:, k]


def _blocks(store: WeightedRows, row0: Indices, tall: bool = False) -> Iterator[tuple[int, Indices, Matrix, Array]]:
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


def apart(A: Matrix, row0: Indices) -> Matrix:
    """The CSR matrix A with columns of its own for every client."""
    F, clients = A.shape[1], len(row0) - 1
    wide: npt.DTypeLike = np.int64 if clients * F > np.iinfo(np.int32).max else np.int32
    first = F * np.arange(clients, dtype=wide)
    indices = A.indices + np.repeat(first, np.diff(A.indptr[row0]))
    return scipy.sparse.csr_matrix((A.data, indices, A.indptr), shape=(A.shape[0], clients * F))


def _grams(A: Matrix, s: Array, m: int, of_rows: bool) -> Array:
    """B B' (of rows) or B'B of each client, with B = diag(sqrt(s)) A in float64."""
    B = scaled_rows(A, s)
    if not scipy.sparse.issparse(A):
        B = B.reshape(len(s) // m, m, A.shape[1])
        T = B.transpose(0, 2, 1)
        return np.asarray(B @ T if of_rows else T @ B)
    # the product above orders the entries of a row in its own way, in which the sums of a Gram matrix are taken
    B = apart(B, np.arange(0, len(s) + 1, m))
    return _diagonal_blocks(B @ B.T, m) if of_rows else _diagonal_blocks(B.T @ B, A.shape[1])


def _diagonal_blocks(M: Matrix, side: int) -> Array:
    """The blocks of a block-diagonal sparse matrix, dense."""
    M = scipy.sparse.csr_matrix(M)
    blocks = np.zeros((M.shape[0] // side, side, side))
    row = np.repeat(np.arange(M.shape[0]), np.diff(M.indptr))
    blocks[row // side, row % side, M.indices % side] = M.data
    return blocks
