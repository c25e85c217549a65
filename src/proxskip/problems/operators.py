"""The operator D of psi(D x), whatever it comes as: a matrix, a sparse matrix, an operator of scipy or pylops."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from proxskip.problems import spectrum
from proxskip.types import Array

DENSE_UP_TO = 3000
"""Columns up to which an operator is compared with the identity."""


def as_matrix(D: Any) -> Array | None:
    """D as a dense matrix, or None where it has none to give."""
    if isinstance(D, np.ndarray):
        return D
    return np.asarray(D.toarray()) if hasattr(D, "toarray") else None


def is_identity(D: Any) -> bool:
    """Whether D is the identity, as far as that can be seen."""
    if D.shape[0] != D.shape[1] or D.shape[0] > DENSE_UP_TO:
        return False
    M = as_matrix(D)
    return M is not None and np.array_equal(M, np.eye(D.shape[0]))


def operator_norm2(D: Any) -> float:
    """|D D'|: as D knows it, exactly for a matrix of moderate size, by a Lanczos bound otherwise."""
    if getattr(D, "norm2", None) is not None:
        return float(D.norm2)
    M = as_matrix(D) if min(D.shape) <= spectrum.EXACT_UP_TO else None
    if M is not None:
        return spectrum.top_eigenvalue(M @ M.T if M.shape[0] <= M.shape[1] else M.T @ M)
    return spectrum.lanczos_bound(lambda v: D.T @ (D @ v), D.shape[1])


def full_row_rank(D: Any) -> bool:
    """Whether D reaches every vector, so that any subgradient lies in its range."""
    M = as_matrix(D) if D.shape[0] <= min(D.shape[1], spectrum.EXACT_UP_TO) else None
    if M is None:
        return False
    w = scipy.linalg.eigvalsh(M @ M.T)
    return bool(w[0] > 1e-10 * w[-1])


def smallest_positive(D: Any) -> float | None:
    """The smallest positive eigenvalue of D D'; None where D is too large to know it."""
    M = as_matrix(D) if min(D.shape) <= spectrum.EXACT_UP_TO else None
    if M is None:
        return None
    w = scipy.linalg.eigvalsh(M @ M.T if M.shape[0] <= M.shape[1] else M.T @ M)
    return float(w[w > 1e-10 * w[-1]][0])
