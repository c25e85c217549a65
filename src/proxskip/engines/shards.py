"""The clients' data in the layout the kernels read: rows of all clients end to end, columns client by client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.engines import kernels
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.softmax import Softmax
from proxskip.seam import Array, Indices


class Shards:
    """Linear models of one kind, packed; ``descend`` gives a function that works on a range of the cohort."""

    def __init__(self, problem: Problem) -> None:
        models: list[Any] = list(problem.clients)
        first = models[0]
        self.dtype, self.batch = first.dtype, problem.batch or 0
        self.loss = kernels.LOGISTIC if first.loss == "logistic" else kernels.SQUARED
        self.C = first.C if isinstance(first, Softmax) else 0
        self.sizes = np.array([f.N for f in models])
        self.row0 = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)
        self.b = np.concatenate([f.b for f in models]).astype(self.dtype)
        self.reg = first.reg.astype(self.dtype)
        self.sparse = scipy.sparse.issparse(first.A)
        if self.sparse or self.C:
            self._pack_rows([scipy.sparse.csr_matrix(f.A) for f in models])
            if not (self.C or self.batch):
                self._pack_columns([f.A for f in models])
        else:
            self.A = np.concatenate([f.A for f in models])
        self.work = self.sizes.astype(np.float64) if not self.sparse else np.diff(self.indptr[self.row0]) + 1.0

    @staticmethod
    def fit(problem: Problem) -> bool:
        """Whether every client is a linear model of the same kind, so that one kernel serves all."""
        first = problem.clients[0]
        return isinstance(first, LinearModel) and all(
            isinstance(f, LinearModel)
            and type(f) is type(first)
            and f.dtype == first.dtype
            and np.array_equal(f.reg, first.reg)
            and np.ptp(f.s) == 0
            and scipy.sparse.issparse(f.A) == scipy.sparse.issparse(first.A)
            for f in problem.clients
        )

    def _pack_rows(self, matrices: list[Any]) -> None:
        offsets = np.concatenate([[0], np.cumsum([M.nnz for M in matrices])]).astype(np.int64)
        self.indptr = np.concatenate(
            [[0], *(M.indptr[1:].astype(np.int64) + o for M, o in zip(matrices, offsets, strict=False))]
        ).astype(np.int64)
        narrow = np.uint16 if matrices[0].shape[1] <= 2**16 else np.int32
        self.indices = np.concatenate([M.indices for M in matrices]).astype(narrow)
        values = np.concatenate([M.data for M in matrices]).astype(self.dtype)
        self.unit = not self.C and bool(np.all(values == 1.0))
        self.values = values[:0] if self.unit else values
        self.offsets = offsets

    def _pack_columns(self, matrices: list[Any]) -> None:
        columns = [scipy.sparse.csc_matrix(M) for M in matrices]
        self.colptr = np.stack([M.indptr.astype(np.int64) + o for M, o in zip(columns, self.offsets, strict=False)])
        narrow = np.uint16 if self.sizes.max() <= 2**16 else np.int32
        self.rows = np.concatenate([M.indices for M in columns]).astype(narrow)
        by_column = np.concatenate([M.data for M in columns]).astype(self.dtype)
        self.by_column = by_column[:0] if self.unit else by_column

    def descend(
        self, cohort: Indices, X: Array, H: Array, gamma: Array, K: Indices, seed: int, round: int
    ) -> Callable[[int, int], None]:
        """``f(lo, hi)`` does all the steps of cohort members lo to hi-1, in place in X."""
        d, common = X.shape[1], (cohort, X, H, gamma.astype(self.dtype), K, self.row0)

        def buffers() -> tuple[Array, Array]:
            return np.empty(int(self.sizes.max()), self.dtype), np.empty(d, self.dtype)

        def picks() -> Indices:
            return np.empty(max(self.batch, 1), np.int64)

        if self.C:
            rows = (self.indptr, self.indices, self.values, self.b, self.reg, self.C, self.batch, seed, round)
            return lambda lo, hi: kernels.descend_softmax(
                lo, hi, *common, *rows, buffers()[1], picks(), np.empty(self.C, np.float64)
            )
        tail = (self.b, self.reg, self.loss)
        if self.batch:
            data = (self.indptr, self.indices, self.values) if self.sparse else (self.A,)
            kernel = kernels.descend_rows_sparse if self.sparse else kernels.descend_rows_dense
            return lambda lo, hi: kernel(lo, hi, *common, *data, *tail, self.batch, seed, round, buffers()[1], picks())
        if self.sparse:
            both = (self.indptr, self.indices, self.values, self.colptr, self.rows, self.by_column)
            return lambda lo, hi: kernels.descend_sparse(lo, hi, *common, *both, *tail, *buffers())
        return lambda lo, hi: kernels.descend_dense(lo, hi, *common, self.A, *tail, *buffers())
