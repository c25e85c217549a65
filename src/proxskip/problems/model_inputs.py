"""What a model is given: features, labels, lambda and weights, checked."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems.operators import check_adjoint, is_complex, is_operator
from proxskip.types import AnyArray, Array, InputError, Matrix, is_sparse


def matrix_of(A: Matrix, intercept: bool, dtype: np.dtype[Any]) -> Matrix:
    """A as a C-ordered array or CSR matrix of the dtype, with the intercept column; an operator as it is."""
    if is_operator(A):
        if intercept or dtype != np.float64 or is_complex(A):
            raise InputError("an operator A must be real, in float64, and without intercept.")
        check_adjoint("A", A)
        return A
    if np.iscomplexobj(A):
        raise InputError("A is complex; give real features.")
    if is_sparse(A):
        M = scipy.sparse.csr_matrix(A, dtype=dtype, copy=True)
        M.sum_duplicates()  # a canonical form, so that equal data give equal bytes
        M.sort_indices()
        finite = np.isfinite(M.data).all()
    else:
        try:
            M = np.ascontiguousarray(A, dtype=dtype)
        except ValueError as error:
            raise InputError(f"features must be numbers, in rows of equal length ({error}).") from None
        if M.ndim != 2:
            raise InputError(f"A has {M.ndim} dimensions; give a matrix with one row per sample.")
        finite = np.isfinite(M).all()
    if M.shape[0] == 0 or M.shape[1] == 0:
        raise InputError(f"A is empty ({M.shape[0]} rows, {M.shape[1]} columns); there is nothing to fit.")
    if not finite:
        raise InputError("A holds NaN or infinite values; remove or repair those rows.")
    return with_ones(M) if intercept else M


def with_ones(M: Matrix) -> Matrix:
    """A dense or sparse matrix with a column of ones behind its own."""
    ones = np.ones((M.shape[0], 1), dtype=M.dtype)
    return scipy.sparse.hstack([M, ones], format="csr") if is_sparse(M) else np.hstack([M, ones])


def check_l2(l2: float, l2_relative: float | None = None) -> None:
    """Refuse a coefficient of the regularizer that is negative, no number, or given twice."""
    for name, value in (("l2", l2), ("l2_relative", 0.0 if l2_relative is None else l2_relative)):
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not (number and 0 <= value <= sys.float_info.max):
            raise InputError(f"{name} = {value!r:.80} must be a nonnegative number.")
    if l2_relative is not None and l2 != 0:
        raise InputError("l2 is lambda, and l2_relative makes it a share of the smoothness; give one of the two.")


def labels_of(b: npt.ArrayLike, N: int, word: str = "label") -> AnyArray:
    """One label per row: finite numbers, or strings."""
    labels = np.atleast_1d(np.asarray(b)).ravel()
    if labels.dtype.kind == "O":  # of a data frame: texts, or else numbers
        # by their texts, since pandas' NA cannot be compared
        if any(not isinstance(v, str) and str(v) in ("None", "nan", "NaN", "NaT", "<NA>") for v in labels):
            raise InputError(f"some {word}s are missing (None or nan); remove or repair those rows.")
        labels = np.array(labels.tolist())
    if labels.shape[0] != N:
        raise InputError(f"A has {N} rows but b has {labels.shape[0]} entries; they must match.")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        j = int(np.argmin(np.isfinite(labels)))
        raise InputError(f"{word} {labels[j]} of row {j} is not finite; remove or repair it.")
    return labels


def refuse_targets(labels: AnyArray, classes: npt.ArrayLike | None) -> None:
    """Refuse numbers that are no classes, unless the classes are given."""
    if classes is None and labels.dtype.kind == "f" and np.any(labels != np.round(labels)):
        raise InputError(
            f"the labels are numbers such as {labels[labels != np.round(labels)][0]:g}, not classes; use LeastSquares."
        )


def label_values(labels: AnyArray, classes: npt.ArrayLike | None) -> AnyArray:
    """The different labels in increasing order: the given classes, or else the labels that occur."""
    values = np.unique(labels if classes is None else np.asarray(classes))
    if len(values) == 1:
        raise InputError(f"every label is {values[0]}; a classifier needs rows of two classes or more.")
    strange = labels[~np.isin(labels, values)]
    if len(strange):
        raise InputError(f"the label {strange[0]} is none of the classes {', '.join(map(str, values[:5]))}.")
    return values


def shares(name: str, weights: npt.ArrayLike | None, n: int, zeros: bool) -> Array:
    """Weights scaled to sum to one, equal if not given; some of them may be zero only where ``zeros`` are allowed."""
    given = np.ones(n) if weights is None else np.array(weights)
    if given.dtype.kind not in "biuf":
        raise InputError(f"{name} must be {n} real numbers, not {weights!r:.40}.")
    w = given.astype(np.float64)
    if w.shape != (n,) or not np.isfinite(w).all() or w.min() < 0 or w.sum() <= 0 or not (zeros or w.all()):
        kind = "nonnegative finite numbers with a positive sum" if zeros else "positive finite numbers, one per client"
        raise InputError(f"{name} must be {n} {kind}.")
    # Shares are not scaled again: a second division would change their last bits, and so the identity of the problem.
    if abs(w.sum() - 1.0) <= n * np.finfo(np.float64).eps:
        return w
    return np.asarray(w / w.sum())
