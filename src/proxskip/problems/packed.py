"""Linear models of one kind as rows of one store: a client is a view that is made when it is used.

What concerns all clients takes no loop over them. Blocks of clients are computed at once, in the arithmetic of a single
client: their data are one matrix in which every client has columns of its own. Gradients and fingerprints are those of
the same clients one by one; L and mu agree up to rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from proxskip.problems import oracles
from proxskip.problems.clients import Clients, Listed
from proxskip.problems.glm import LeastSquares, Softmax
from proxskip.problems.linear_model import LinearModel, times
from proxskip.problems.spectrum import NUMBERS_AT_ONCE, apart, by_size, largest_each, rows_of, smallest_each
from proxskip.types import Array, Digest, Flags, Indices, Oracle, is_sparse

VIEWS_KEPT = 4096
"""Clients kept after their first use."""


class Packed(Clients):
    """Linear models of one kind; client i has rows row0[i] to row0[i + 1] - 1 of the store.

    ``store.s`` holds the weights of the rows within their clients: they sum to one for each client.
    """

    mapped = False
    """Whether the rows are on disk, and must not be copied into memory."""

    def __init__(self, store: LinearModel, row0: Indices) -> None:
        self.store, self.row0 = store, row0
        self._views: dict[int, LinearModel] = {}
        self._L: Array | None = None
        self._fingerprints: dict[str, str] = {}

    @staticmethod
    def of(model: LinearModel, order: Indices, row0: Indices) -> Packed:
        """Client i has rows order[row0[i]] to order[row0[i + 1] - 1] of the model."""
        store, sizes = model.ordered(order), np.diff(row0)
        # Equal row weights stay exactly equal in a shard; others are rescaled to sum to one.
        even = np.ptp(model.s) == 0
        s = np.repeat(1.0 / sizes, sizes) if even else store.s / np.repeat(sums(store.s, row0), sizes)
        return Packed(store.reweighted(s), row0)

    @staticmethod
    def joined(models: Sequence[LinearModel]) -> Packed:
        """Client i is models[i]; the rows of several are copied into one store."""
        row0 = np.concatenate([[0], np.cumsum([f.N for f in models])])
        store = models[0]
        if len(models) == 1:
            return Packed(store, row0)
        matrices = [f.A for f in models]
        A = scipy.sparse.vstack(matrices, format="csr") if is_sparse(store.A) else np.concatenate(matrices)
        per_row = {name: np.concatenate([getattr(f, name) for f in models]) for name in ("b", "s", *store.also_per_row)}
        return Packed(store.holding(A=A, **per_row), row0)

    def __getstate__(self) -> dict[str, Any]:
        """Without the views, which would be copies of the rows."""
        return vars(self) | {"_views": {}}

    # -- a sequence ----------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.row0) - 1

    def __getitem__(self, i: Any) -> Any:
        """Client i, or with a slice some of them."""
        if isinstance(i, slice):
            lo, hi, step = i.indices(len(self))
            if step != 1:
                return Listed(self[k] for k in range(lo, hi, step))
            row0 = self.row0[lo : max(lo, hi) + 1]
            return Packed(self.store.between(int(row0[0]), int(row0[-1])), row0 - row0[0])
        k = int(i) + (len(self) if i < 0 else 0)
        if not 0 <= k < len(self):
            raise IndexError(f"there is no client {i} among {len(self)}.")
        if len(self) == 1:
            return self.store
        if k not in self._views:
            if len(self._views) >= VIEWS_KEPT:
                self._views.clear()
            self._views[k] = self.store.between(int(self.row0[k]), int(self.row0[k + 1]))
        return self._views[k]

    # -- what they are -------------------------------------------------------------------------------------------------
    def distinct(self) -> Sequence[Oracle]:
        """The store stands for all."""
        return (self.store,)

    def sizes(self) -> Indices:
        return np.diff(self.row0)

    rows = sizes

    def entries(self) -> Array:
        A = self.store.A
        entries = np.diff(A.indptr[self.row0]) if is_sparse(A) else self.sizes() * A.shape[1]
        return np.asarray(entries, dtype=np.float64)

    def has_even_rows(self) -> bool:
        """Whether the rows of every client have equal weights."""
        return bool(_are_even(self.store.s, self.row0).all())

    def whole(self, weights: Array) -> Any:
        """All rows, with the weights of their clients."""
        return self.store.reweighted(np.repeat(weights, self.sizes()) * self.store.s)

    def in_double(self) -> Clients:
        store = oracles.in_double(self.store)
        return self if store is self.store else Packed(store, self.row0)

    def fingerprint(self, weights: Array) -> str:
        """The digest of the weights and the data; kept, since the data do not change and many clients take long."""
        key = hashlib.sha256(weights.tobytes())
        known = key.hexdigest()
        if known not in self._fingerprints:
            self.add_to(key)
            self._fingerprints[known] = key.hexdigest()
        return self._fingerprints[known]

    def add_to(self, digest: Digest) -> None:
        """Add the data of all clients to a digest, client by client as ``sharded.add_client`` does."""
        store = self.store
        A = self.store.A
        matrix = []
        name, sparse = type(store).__name__.encode(), scipy.sparse.issparse(A)
        also = [getattr(store, of_rows) for of_rows in store.also_per_row]
        for lo, hi in pairwise(self.row0.tolist()):
            if sparse:
                entries = slice(A.indptr[lo], A.indptr[hi])
                indptr, indices = A.indptr[lo : hi + 1] - A.indptr[lo], A.indices[entries]
                matrix = [indptr.astype(np.int64), indices.astype(np.int64), A.data[entries]]
            for part in (name, store.b[lo:hi], store.reg, store.s[lo:hi], *(matrix if sparse else [A[lo:hi]])):
                digest.update(part)
            for v in also:
                digest.update(v[lo:hi])

    # -- constants -----------------------------------------------------------------------------------------------------
    def L_i(self) -> Array:
        if self._L is None:
            self._L = np.array([self.store.L]) if len(self) == 1 else largest_each(self.store, self.row0)
        return self._L.copy()

    def mu_i(self) -> Array:
        if len(self) == 1:
            return np.array([self.store.mu])
        if isinstance(self.store, LeastSquares):
            return smallest_each(self.store, self.row0)
        return np.full(len(self), float(self.store.reg.min()))

    def L_rows(self) -> Array:
        factors = ((sub, row0, _row_factors(sub, row0)) for sub, row0 in self._parts(0, len(self)))
        return np.concatenate(
            [sub.curvature * np.maximum.reduceat(c * sub.row_squares, row0[:-1]) + sub.l2 for sub, row0, c in factors]
        )

    def spreads(self, x: Array) -> Array:
        spreads = []
        for sub, row0 in self._parts(0, len(self)):
            sizes = np.diff(row0)
            c = sub.row_slopes(x).reshape(sub.N, -1) * _row_factors(sub, row0)[:, None]
            means = _products(sub, row0, c / np.repeat(sizes, sizes)[:, None])
            squares = np.add.reduceat(np.sum(c * c, axis=1) * sub.row_squares, row0[:-1]) / sizes
            spreads.append(np.maximum(squares - np.sum(means * means, axis=1), 0.0))
        return np.concatenate(spreads)

    # -- gradients -----------------------------------------------------------------------------------------------------
    def gradients(self, x: Array, lo: int, hi: int) -> Array:
        rows = np.empty((hi - lo, len(x)))
        at = 0
        for part, row0 in self._parts(lo, hi):
            sub = oracles.in_double(part)
            c = times(sub.s, sub.row_slopes(x))
            rows[at : at + len(row0) - 1] = _products(sub, row0, c) + sub.reg * x
            at += len(row0) - 1
        return rows

    def _parts(self, first: int, last: int) -> Iterator[tuple[LinearModel, Indices]]:
        """The rows of clients first to last - 1, some clients at a time, and where each of them begins."""
        each = max(self.store.d, oracles.stored_numbers(self.store) // len(self))
        step = max(1, NUMBERS_AT_ONCE // each)
        for lo in range(first, last, step):
            row0 = self.row0[lo : min(lo + step, last) + 1]
            yield self.store.between(int(row0[0]), int(row0[-1])), row0 - row0[0]


def as_clients(given: Iterable[Oracle]) -> Clients:
    """The clients as one object, which answers for all of them; linear models of one kind are packed."""
    if isinstance(given, Clients):
        return given
    listed = Listed(given)
    return Packed.joined(listed) if _are_one_kind(listed) else listed  # type: ignore[arg-type]


def _are_one_kind(clients: Sequence[Oracle]) -> bool:
    """Whether these are linear models whose rows may be mixed: the same columns, classes, regularizer and type."""
    first = clients[0] if clients else None
    if not isinstance(first, LinearModel) or type(first).gradient is not LinearModel.gradient:
        return False
    return first.has_rows and all(_is_alike(f, first) for f in clients)


def _is_alike(f: object, first: LinearModel) -> bool:
    if type(f) is not type(first) or not f.has_rows or is_sparse(f.A) != is_sparse(first.A):
        return False
    return _kind_of(f) == _kind_of(first)


def _kind_of(f: LinearModel) -> tuple[object, ...]:
    return f.names, f.A.shape[1], f.intercept, f.l2, f.dtype, oracles.attribute(f, "classes")


def sums(v: Array, row0: Indices) -> Array:
    """The sum of each client's entries, in the order in which numpy adds them up for one client."""
    totals = np.empty(len(row0) - 1)
    for m, who in by_size(row0):
        totals[who] = v[rows_of(row0, who, m)].reshape(len(who), m).sum(axis=1)
    return totals


def _row_factors(sub: LinearModel, row0: Indices) -> Array:
    """``LinearModel.row_factors`` of each client, row by row."""
    sizes = np.diff(row0)
    return np.where(np.repeat(_are_even(sub.s, row0), sizes), 1.0, np.repeat(sizes, sizes) * sub.s)


def _are_even(s: Array, row0: Indices) -> Flags:
    """Whether the rows of a client have equal weights, for each client."""
    return np.asarray(np.minimum.reduceat(s, row0[:-1]) == np.maximum.reduceat(s, row0[:-1]))


def _products(sub: LinearModel, row0: Indices, c: Array) -> Array:
    """A_i' c_i of each client, in the order of its unknowns."""
    A = sub.A
    clients = len(row0) - 1
    F = sub.A.shape[1]
    if scipy.sparse.issparse(A):
        products = np.asarray(apart(A, row0).T @ c, dtype=np.float64).reshape(clients, F, -1)
    else:
        products = np.empty((clients, F, 1 if c.ndim == 1 else c.shape[1]))
        for m, who in by_size(row0):
            rows = rows_of(row0, who, m)
            stack = A[rows].reshape(len(who), m, F).transpose(0, 2, 1)
            products[who] = stack @ c[rows].reshape(len(who), m, -1)
    return products.transpose(0, 2, 1).reshape(clients, -1) if isinstance(sub, Softmax) else products[:, :, 0]
