"""Linear operators of users, such as D in psi(D x): dense and sparse matrices, operators of scipy and pylops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems import spectrum
from proxskip.support.randomness import generator
from proxskip.types import Array, InputError, Matrix

EXACT_NORM_UP_TO = 1024
"""Up to this many rows or columns, whichever are fewer, the norm is exact; beyond, that would take many seconds."""
MAX_IDENTITY_SIZE = 3000
"""Up to this many columns, an operator is compared with the identity."""


def is_operator(A: object) -> bool:
    """Whether A is a linear operator but no matrix: it has a shape, products and products with its transpose."""
    if spectrum.is_matrix(A) or isinstance(A, (list, tuple)):
        return False
    return all(hasattr(A, name) for name in ("matvec", "rmatvec", "shape"))


def is_complex(A: object) -> bool:
    """Whether A says that it holds complex numbers."""
    return bool(np.issubdtype(getattr(A, "dtype", None) or np.float64, np.complexfloating))


def as_operator(D: Matrix, d: int, dtype: npt.DTypeLike | None = np.float64) -> Matrix:
    """D with d columns as something with a shape, products and a transpose; nested lists become arrays of the dtype."""
    if not hasattr(D, "shape"):
        D = np.asarray(D, dtype=dtype)
    if len(D.shape) != 2 or D.shape[1] != d:
        raise InputError(f"D has shape {tuple(D.shape)} but there are {d} unknowns; it must have {d} columns.")
    return D


def check_adjoint(name: str, D: Matrix) -> None:
    """Refuse an operator whose transpose is missing, or is not its transpose:  <D v, u> = <v, D'u>."""
    # If D.T is not the transpose, the two products differ for almost all v and u.
    rng = generator(2)
    v, u = rng.standard_normal(D.shape[1]), rng.standard_normal(D.shape[0])
    try:
        Dv, DTu = np.asarray(D @ v), np.asarray(D.T @ u)
    except (NotImplementedError, AttributeError, TypeError):
        raise InputError(f"{name} has no transpose; give the operator an rmatvec.") from None
    if Dv.shape != u.shape or DTu.shape != v.shape:
        raise InputError(f"{name} of shape {tuple(D.shape)} gives vectors of shapes {Dv.shape} and {DTu.shape}.")
    with np.errstate(over="ignore"):
        one, two = float(Dv @ u), float(v @ DTu)
        size = np.linalg.norm(Dv) * np.linalg.norm(u) + np.linalg.norm(v) * np.linalg.norm(DTu)
    if not abs(one - two) <= 1e-4 * size:
        raise InputError(f"{name}.T is not the transpose of {name}: <{name} v, u> = {one:.6g}, not {two:.6g}.")


def as_matrix(D: Matrix) -> Array | None:
    """D as a dense matrix; None for an operator that cannot be converted."""
    if isinstance(D, np.ndarray):
        return D
    return np.asarray(D.toarray()) if hasattr(D, "toarray") else None


def is_identity(D: Matrix) -> bool:
    """Whether D is known to be the identity."""
    if D.shape[0] != D.shape[1] or D.shape[0] > MAX_IDENTITY_SIZE:
        return False
    M = as_matrix(D)
    return M is not None and np.array_equal(M, np.eye(D.shape[0]))


def operator_norm2(D: Matrix) -> float:
    """||D D'||: what D says, or else exact for a matrix of moderate size and a Lanczos bound for others."""
    if getattr(D, "norm2", None) is not None:
        return float(D.norm2)
    product = _smaller_product(D, EXACT_NORM_UP_TO)
    if product is not None:
        return spectrum.top_eigenvalue(product)
    return spectrum.lanczos_bound(lambda v: D.T @ (D @ v), D.shape[1])


def _smaller_product(D: Matrix, largest: int) -> Array | None:
    """D D' or D'D, whichever is smaller: both have the same positive eigenvalues. None if it has more rows than that.

    It is None for an operator that cannot be converted to a matrix, too.
    """
    M = as_matrix(D) if min(D.shape) <= largest else None
    if M is None:
        return None
    return M @ M.T if M.shape[0] <= M.shape[1] else M.T @ M


def _eigenvalues(D: Matrix) -> Array | None:
    """Those of the smaller product in increasing order; None if D is too large to compute them."""
    product = _smaller_product(D, spectrum.EXACT_UP_TO)
    return None if product is None else scipy.linalg.eigvalsh(product)


def full_row_rank(D: Matrix) -> bool:
    """Whether D is known to have full row rank, so that its range holds every subgradient (Theorem D.1)."""
    # more rows than columns cannot be independent
    w = _eigenvalues(D) if D.shape[0] <= D.shape[1] else None
    return w is not None and bool(w[0] > 1e-10 * w[-1])


def smallest_positive(D: Matrix) -> float | None:
    """The smallest positive eigenvalue of D D'; None if D is too large to compute it."""
    w = _eigenvalues(D)  # both products have the same positive ones
    return None if w is None else float(w[w > 1e-10 * w[-1]][0])
