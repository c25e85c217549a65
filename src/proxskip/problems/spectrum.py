"""Largest and smallest eigenvalues of  c * A' diag(s) A + diag(reg):  exact when affordable, otherwise a bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
import scipy.sparse

from proxskip.randomness import generator
from proxskip.types import Array, InputError

EPS = float(np.finfo(np.float64).eps)
EXACT_UP_TO = 4096
"""Features (or rows, if there are fewer) up to which an eigenvalue is computed exactly."""
LANCZOS_SLACK = 0.01
LANCZOS_FAILURE = 1e-10
"""Beyond that, Lanczos from a random start bounds the largest eigenvalue from above; the bound is at most 1 % too
large, and it fails to be a bound with probability below 1e-10 (Kuczynski and Wozniakowski, 1992, Theorem 3.2)."""


def gram(A: Any, s: Array) -> Array:
    """A' diag(s) A as a dense matrix."""
    root = np.sqrt(s)
    if scipy.sparse.issparse(A):
        B = scipy.sparse.diags_array(root) @ A.astype(np.float64)
        return np.asarray((B.T @ B).toarray(), dtype=np.float64)
    B = np.asarray(A, dtype=np.float64) * root[:, None]
    return np.asarray(B.T @ B, dtype=np.float64)


def largest(A: Any, s: Array, c: float, reg: Array) -> float:
    """The largest eigenvalue of  c A' diag(s) A + diag(reg)."""
    N, d = A.shape
    if hasattr(A, "matvec"):  # an operator
        return lanczos_bound(lambda v: c * (A.T @ (s * (A @ v))) + reg * v, d)
    even = np.ptp(reg) == 0
    if d <= EXACT_UP_TO and not (d > N and even):
        return top_eigenvalue(c * gram(A, s) + np.diag(reg))
    if N <= EXACT_UP_TO and even:
        root = np.sqrt(s)
        if scipy.sparse.issparse(A):
            B = scipy.sparse.diags_array(root) @ A.astype(np.float64)
            G = np.asarray((B @ B.T).toarray())
        else:
            B = np.asarray(A, dtype=np.float64) * root[:, None]
            G = B @ B.T
        return c * top_eigenvalue(G) + float(reg[0])
    return lanczos_bound(lambda v: c * (A.T @ (s * (A @ v))) + reg * v, d)


def smallest(A: Any, s: Array, c: float, reg: Array) -> float:
    """The smallest eigenvalue of  c A' diag(s) A + diag(reg);  its lower bound min(reg) where that is too large."""
    N, d = A.shape
    if d > EXACT_UP_TO or (d > N and np.ptp(reg) == 0) or hasattr(A, "matvec"):
        return float(reg.min())
    return max(smallest_eigenvalue(c * gram(A, s) + np.diag(reg)), float(reg.min()), 0.0)


def smallest_eigenvalue(S: Array) -> float:
    """Of a dense symmetric matrix; zero where it cannot be told from the rounding of the largest."""
    w = float(scipy.linalg.eigh(S, eigvals_only=True, subset_by_index=(0, 0))[0])
    return w if abs(w) > len(S) * EPS * float(np.abs(S).sum(axis=1).max()) else 0.0


def top_eigenvalue(S: Array) -> float:
    """Largest eigenvalue of a dense symmetric matrix."""
    n = S.shape[0]
    return float(scipy.linalg.eigh(S, eigvals_only=True, subset_by_index=(n - 1, n - 1))[0])


def check_adjoint(name: str, D: Any) -> None:
    """Refuse an operator whose transpose is missing, or is not its transpose:  <D v, u> = <v, D'u>."""
    rng = generator(2)
    v, u = rng.standard_normal(D.shape[1]), rng.standard_normal(D.shape[0])
    try:
        there, back = np.asarray(D @ v), np.asarray(D.T @ u)
    except (NotImplementedError, AttributeError, TypeError):
        raise InputError(f"{name} has no transpose; give the operator an rmatvec.") from None
    if there.shape != u.shape or back.shape != v.shape:
        raise InputError(f"{name} of shape {tuple(D.shape)} gives vectors of shapes {there.shape} and {back.shape}.")
    one, other = float(there @ u), float(v @ back)
    if not abs(one - other) <= 1e-4 * (
        np.linalg.norm(there) * np.linalg.norm(u) + np.linalg.norm(v) * np.linalg.norm(back)
    ):
        raise InputError(
            f"the transpose of {name} is not its transpose: <{name} v, u> = {one:.6g}, but <v, {name}'u> = {other:.6g}."
        )


def lanczos_bound(matvec: Any, d: int, seed: int = 0) -> float:
    """An upper bound on the largest eigenvalue of a PSD operator; see LANCZOS_FAILURE for its failure probability."""
    # P[(lmax - estimate) / lmax > slack] <= 1.648 sqrt(d) exp(-sqrt(slack) (2 k - 1))
    need = np.log(1.648 * np.sqrt(d) / LANCZOS_FAILURE) / np.sqrt(LANCZOS_SLACK)
    k = min(d, int(np.ceil((need + 1) / 2)))
    rng = generator(seed)
    v = rng.standard_normal(d)
    Q = [v / np.linalg.norm(v)]
    alpha: list[float] = []
    beta: list[float] = []
    for _ in range(k):
        w = np.asarray(matvec(Q[-1]), dtype=np.float64)
        alpha.append(float(w @ Q[-1]))
        for _again in range(2):  # full reorthogonalisation, twice is enough
            B = np.asarray(Q)
            w = w - B.T @ (B @ w)
        norm = float(np.linalg.norm(w))
        if norm <= 1e-14 * max(1.0, abs(alpha[0])):
            break
        beta.append(norm)
        Q.append(w / norm)
    m = len(alpha)
    top = scipy.linalg.eigh_tridiagonal(
        alpha, beta[: m - 1], eigvals_only=True, select="i", select_range=(m - 1, m - 1)
    )
    return float(top[0]) / (1.0 - LANCZOS_SLACK)
