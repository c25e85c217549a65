"""The extreme eigenvalues of  c A' diag(s) A + diag(reg):  exact at moderate sizes, otherwise a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy

from proxskip.cores import available_cores
from proxskip.problems import small_client_kernels
from proxskip.randomness import generator
from proxskip.types import Array, InputError, is_sparse

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


def is_matrix(A: Any) -> bool:
    """Whether A is a dense or sparse matrix, whose entries can be read, and not just an operator."""
    return isinstance(A, np.ndarray) or is_sparse(A)


def gram(A: Any, s: Array) -> Array:
    """A' diag(s) A as a dense matrix."""
    if scipy.sparse.issparse(A) and A.nnz > MAX_SPARSE_PRODUCT and A.shape[1] <= EXACT_UP_TO:
        return _gram_of_rows(A, s)
    B = scaled_rows(A, s)
    return _dense(B.T @ B)


def _gram_of_rows(A: Any, s: Array) -> Array:
    """The same without a product of sparse matrices, which would hold A several times."""
    parts = np.zeros((GRAM_PARTS, A.shape[1], A.shape[1]))
    ends = [A.shape[0] * k // GRAM_PARTS for k in range(GRAM_PARTS + 1)]

    def add(k: int) -> None:
        small_client_kernels.add_gram(ends[k], ends[k + 1], A.indptr, A.indices, A.data, s, parts[k])

    # always the same parts in the same order, so that the bytes do not depend on the number of threads
    with ThreadPoolExecutor(min(GRAM_PARTS, available_cores())) as pool:
        list(pool.map(add, range(GRAM_PARTS)))
    lower = np.tril(parts.sum(axis=0))
    return np.asarray(lower + np.tril(lower, -1).T)


def scaled_rows(A: Any, s: Array) -> Any:
    """diag(sqrt(s)) A in float64, dense or sparse as A is."""
    root = np.sqrt(s)
    if is_sparse(A):
        return scipy.sparse.diags_array(root) @ A.astype(np.float64)
    return np.asarray(A, dtype=np.float64) * root[:, None]


def _dense(M: Any) -> Array:
    return np.asarray(M.toarray() if is_sparse(M) else M, dtype=np.float64)


def largest(A: Any, s: Array, c: float, reg: Array) -> float:
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


def largest_of_sum(parts: Sequence[tuple[Any, Array]], c: float, reg: Array) -> float:
    """The largest eigenvalue of  c sum_i A_i' diag(s_i) A_i + diag(reg)  for parts (A_i, s_i)."""
    d = len(reg)
    with np.errstate(over="ignore", invalid="ignore"):
        if d <= EXACT_UP_TO and all(is_matrix(A) for A, _ in parts):
            return top_eigenvalue(c * sum(gram(A, s) for A, s in parts) + np.diag(reg))
        return lanczos_bound(lambda v: c * sum(A.T @ (s * (A @ v)) for A, s in parts) + reg * v, d)


def smallest(A: Any, s: Array, c: float, reg: Array) -> float:
    """The smallest eigenvalue of  c A' diag(s) A + diag(reg);  the lower bound min(reg) if A is large or wide."""
    N, d = A.shape
    if d > EXACT_UP_TO or (d > N and np.ptp(reg) == 0) or not is_matrix(A):
        return float(reg.min())
    with np.errstate(over="ignore", invalid="ignore"):
        return _smallest(c * gram(A, s), reg)


def _smallest(G: Array, reg: Array) -> float:
    return max(smallest_eigenvalue(G + np.diag(reg)), float(reg.min()), 0.0)


def both_ends(A: Any, s: Array, reg: Array) -> tuple[float, float]:
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


def lanczos_bound(matvec: Callable[[Array], Any], d: int, seed: int = 0) -> float:
    """An upper bound on the largest eigenvalue of a PSD operator; it fails with probability ``LANCZOS_FAILURE``."""
    # P[(lmax - estimate) / lmax > slack] <= 1.648 sqrt(d) exp(-sqrt(slack) (2 k - 1))
    need = np.log(1.648 * np.sqrt(d) / LANCZOS_FAILURE) / np.sqrt(LANCZOS_SLACK)
    return lanczos(matvec, d, min(d, int(np.ceil((need + 1) / 2))), seed) / (1.0 - LANCZOS_SLACK)


def lanczos(matvec: Callable[[Array], Any], d: int, k: int, seed: int = 0) -> float:
    """The largest eigenvalue of a PSD operator as k products with it show it, from below."""
    rng = generator(seed)
    v = rng.standard_normal(d)
    Q = [v / np.linalg.norm(v)]
    alpha: list[float] = []
    beta: list[float] = []
    size = 0.0
    for _ in range(k):
        w = np.asarray(matvec(Q[-1]), dtype=np.float64)
        alpha.append(float(w @ Q[-1]))
        for _again in range(2):  # full reorthogonalisation; twice is enough
            B = np.asarray(Q)
            w = w - B.T @ (B @ w)
        norm = float(np.linalg.norm(w))
        if not np.isfinite(norm):
            raise InputError(NOT_FINITE)
        # what is left is rounding when it is tiny beside the matrix, whose size the entries so far show
        size = max(size, abs(alpha[-1]), norm)
        if norm <= 1e-14 * size:
            break
        beta.append(norm)
        Q.append(w / norm)
    m = len(alpha)
    top = scipy.linalg.eigh_tridiagonal(
        alpha, beta[: m - 1], eigvals_only=True, select="i", select_range=(m - 1, m - 1)
    )
    return float(top[0])
