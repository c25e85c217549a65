"""Bundles of eight rows, which minibatches with ``draw="bundles"`` consist of: the functions of f = mean_j F_j.

Client i's m rows are sorted by their number of stored entries, in a fixed random order among equals, and cut into
B = ceil(m/8) bundles; the last one may be shorter. With

    F_j(x) = (B/m) sum_{r in bundle j} N s_r loss(a_r' x, b_r) + lambda/2 |x|^2

f is the mean of the F_j, and a minibatch of b rows the mean of b/8 of them: all that is known of minibatches of single
functions holds for it, with B, b/8, the largest smoothness of an F_j and the spread of their gradients.

Rows of equal length lie next to each other in memory, so that a kernel reads them together. Which rows have equal
lengths is a matter of the data, so that the noise is not that of single rows: ``Problem.es_C`` knows it. Were all rows
equally long, it would be, in the mean over the random orders.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from proxskip.randomness import DRAWS, ROWS_PER_BUNDLE, bundle_count, shuffled
from proxskip.types import Array, Indices, InputError, is_sparse

Draw = Literal["rows", "bundles"]


def draw_version(draw: str) -> int:
    """The version of the draws (``Problem.sampling``) of minibatches that are made of rows, or of bundles of rows.

    "rows" draws them one by one, so that every subset is equally likely. "bundles" draws eight at a time, always the
    same eight: on a processor a step takes about half the time, on sparse data with somewhat more noise for as many
    rows.
    """
    if draw not in DRAWS:
        raise InputError(f'draw = "{draw}" is not known; use "rows" or "bundles".')
    return DRAWS[draw]


def lengths(A: Any) -> Indices:
    """Stored entries of each row; those of a dense matrix are all alike."""
    return np.diff(A.indptr).astype(np.int64) if is_sparse(A) else np.zeros(A.shape[0], np.int64)


def order(length: Indices, row0: Indices) -> Indices:
    """The rows of all clients, those of each in the order in which bundles are cut; client i's begin at row0[i]."""
    sizes = np.diff(row0)
    chance = np.empty(len(length), np.int64)
    for m in np.unique(sizes):
        first = row0[:-1][sizes == m]
        chance[(first[:, None] + np.arange(m)).ravel()] = np.tile(shuffled(int(m)), len(first))
    return np.lexsort((chance, length, np.repeat(np.arange(len(sizes)), sizes)))


def table(A: Any, row0: Indices) -> tuple[Indices, Indices]:
    """The rows of each bundle, one bundle to a line, with -1 where there is none; and each client's first line."""
    sizes = np.diff(row0)
    first = np.append(0, np.cumsum(bundle_count(sizes)))
    rows = np.full(int(first[-1]) * ROWS_PER_BUNDLE, -1)
    at = np.arange(A.shape[0]) - np.repeat(row0[:-1], sizes)
    rows[np.repeat(first[:-1], sizes) * ROWS_PER_BUNDLE + at] = order(lengths(A), row0)
    return rows.reshape(-1, ROWS_PER_BUNDLE), first


def grams(A: Any, rows: Indices) -> Array:
    """K[j]: the inner products of the rows of bundle j with each other, zero where there is no row."""
    K = np.zeros((len(rows), ROWS_PER_BUNDLE, ROWS_PER_BUNDLE))
    for k in range(ROWS_PER_BUNDLE):
        there = np.flatnonzero(rows[:, k] >= 0)  # a bundle is filled from the front
        for q in range(k + 1):
            u, v = A[rows[there, q]], A[rows[there, k]]
            if is_sparse(A):
                found = np.asarray(u.multiply(v).sum(axis=1, dtype=np.float64)).ravel()
            else:
                found = np.einsum("ij,ij->i", u, v, dtype=np.float64)
            K[there, q, k] = K[there, k, q] = found
    return K


def _in_lines(v: Array, rows: Indices) -> Array:
    """A number (or a line of them) for each row, brought to the rows' places in bundles; zero where there is none."""
    return np.where((rows >= 0).reshape(*rows.shape, *[1] * (v.ndim - 1)), v[rows], 0.0)


def largest_squares(A: Any, row0: Indices, factors: Array) -> Array:
    """The largest eigenvalue of  (B/m) sum_{r in bundle} factors_r a_r a_r'  among each client's bundles."""
    rows, first = table(A, row0)
    root = np.sqrt(_in_lines(factors, rows))
    top = np.linalg.eigvalsh(grams(A, rows) * root[:, :, None] * root[:, None, :])[:, -1]
    sizes = np.diff(row0)
    return np.asarray(np.maximum.reduceat(top, first[:-1]) * bundle_count(sizes) / sizes)


def mean_squares(A: Any, row0: Indices, c: Array) -> Array:
    """mean_j |(B/m) sum_{r in bundle j} c_r a_r|^2  over each client's bundles; c has a column for each class."""
    rows, first = table(A, row0)
    C = _in_lines(c.reshape(len(c), -1), rows)
    squares = np.einsum("jqc,jqk,jkc->j", C, grams(A, rows), C, optimize=True)
    sizes = np.diff(row0)
    return np.asarray(np.add.reduceat(squares, first[:-1]) * bundle_count(sizes) / sizes**2)
