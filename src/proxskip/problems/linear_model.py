"""What all generalized linear models share: rows, weights, constants, sums over rows and shards."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems import spectrum
from proxskip.problems.frames import names_of, separated
from proxskip.problems.model_inputs import check_l2, labels_of, matrix_of, shares
from proxskip.types import AnyArray, Array, Indices, InputError, Matrix, is_sparse

CHEAP_UP_TO = 200
"""Features (or rows, if there are fewer) up to which the exact L takes no longer than a few gradients."""


class LinearModel:
    """The base of Logistic, LeastSquares and Softmax."""

    loss: ClassVar[str]
    outcome: ClassVar[str] = "label"
    """What b is, in a sentence."""
    curvature: ClassVar[float]
    """An upper bound on the second derivative of the loss in its margin (tight for logistic and squared loss)."""
    margins_cancel: ClassVar[bool] = False
    """Whether the loss of a row is a difference of its margins, rather than as small as its slope says."""
    also_per_row: ClassVar[tuple[str, ...]] = ()
    """What a model holds for each row besides A, b and s."""
    has_kernels: ClassVar[bool] = True
    """Whether the engines have kernels for this loss."""
    names: tuple[str, ...] | None = None
    """The names of the features, where a data frame gave them."""

    def __init__(
        self,
        A: Matrix,
        b: npt.ArrayLike,
        l2: float = 0.0,
        *,
        l2_relative: float | None = None,
        intercept: bool = False,
        dtype: npt.DTypeLike = np.float64,
        row_weights: npt.ArrayLike | None = None,
        classes: npt.ArrayLike | None = None,
    ) -> None:
        """Check the data and store them.

        Args:
            A: the data, one row per sample: a dense array, a scipy sparse matrix, or a real linear operator of scipy or
                pylops. An operator gives only products with A and A', so it allows no minibatches and no splits. Of a
                data frame the columns have names.
            b: the labels (or targets), one per row; with a data frame also the name of a column.
            l2: the coefficient lambda of  lambda/2 |x|^2.
            l2_relative: lambda as a share of L0, the smoothness of the loss without the regularizer; in place of l2.
            intercept: append a column of ones, whose coefficient (the last of x) is not penalized.
            dtype: float32 stores the data, and computes gradients, in single precision.
            row_weights: nonnegative, scaled to sum to one.
            classes: all label values, if some of them may be missing in these rows.
        """
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
            raise InputError(f"dtype {self.dtype} is not supported; use float64 or float32.")
        check_l2(l2, l2_relative)
        A, self.names, given = separated(A, {"b": b, "row_weights": row_weights})
        b, row_weights = given["b"], given["row_weights"]
        self.A = matrix_of(A, intercept, self.dtype)
        self.intercept = intercept
        N = self.A.shape[0]
        self.b = self._encode(labels_of(b, N, self.outcome), classes)
        self.s = shares("row_weights", row_weights, N, zeros=True)
        self.l2 = float(l2)
        if l2_relative is not None:  # last, since L0 needs the data
            self.l2 = float(l2_relative) * self.L0

    @classmethod
    def over(cls, A: Matrix, b: npt.ArrayLike, l2: float, classes: npt.ArrayLike | None) -> Self:
        """The model of rows in double precision that were checked before, and are not copied."""
        check_l2(l2)
        N = A.shape[0]
        model = cls.__new__(cls)
        model._hold(dtype=np.dtype(np.float64), intercept=False, l2=float(l2), A=A, s=np.full(N, 1.0 / N))
        model._hold(b=model._encode(labels_of(b, N, cls.outcome), classes))
        return model

    def __repr__(self) -> str:
        features = f"{self.A.shape[1] - self.intercept:,} features{' and an intercept' if self.intercept else ''}"
        return f"{type(self).__name__}({self.N:,} rows, {features}, l2={self.l2:g})"

    def _encode(self, labels: AnyArray, classes: npt.ArrayLike | None) -> Array:
        """The labels as the numbers b_j that the loss uses."""
        if labels.dtype.kind not in "fiub":
            raise InputError(f"targets of type {labels.dtype} are not numbers; least squares needs numbers.")
        return np.asarray(labels, dtype=np.float64)

    @property
    def N(self) -> int:
        """The number of samples."""
        return int(self.A.shape[0])

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of A, with that of the intercept."""
        return names_of(self.names, self.A.shape[1] - self.intercept, self.intercept)

    @property
    def has_rows(self) -> bool:
        """Whether A is a matrix; the rows of an operator cannot be taken."""
        return spectrum.is_matrix(self.A)

    def _need_rows(self) -> None:
        if not self.has_rows:
            raise InputError("A is an operator without rows; minibatches and splits need a matrix.")

    @property
    def d(self) -> int:
        """The number of unknowns."""
        return int(self.A.shape[1])

    @cached_property
    def reg(self) -> Array:
        """The coefficient of the regularizer for each unknown; zero for an intercept."""
        reg = np.full(self.d, self.l2)
        if self.intercept:
            reg[self.A.shape[1] - 1 :: self.A.shape[1]] = 0.0  # one intercept per class for softmax
        return reg

    @cached_property
    def L0(self) -> float:
        """Smoothness of the loss without the regularizer."""
        return spectrum.largest(self.A, self.s, self.curvature, np.zeros(self.A.shape[1]))

    @cached_property
    def L(self) -> float:
        """Smoothness, including the regularizer; exact up to a few thousand features (see ``spectrum``)."""
        if np.ptp(self.reg) == 0:  # a constant regularizer only shifts the spectrum
            return self.L0 + float(self.reg[0])
        return spectrum.largest(self.A, self.s, self.curvature, self.reg[: self.A.shape[1]])

    @property
    def constants_are_costly(self) -> bool:
        """Whether L is not known yet, and takes as long to compute as many gradients."""
        return not self.knows("L", "L0") and self.is_large

    def knows(self, *constants: str) -> bool:
        """Whether any of these constants was computed before."""
        return any(name in vars(self) for name in constants)

    @property
    def is_large(self) -> bool:
        """Whether an eigenvalue takes as long to compute as many gradients."""
        return bool(min(self.A.shape) > CHEAP_UP_TO)

    @cached_property
    def mu(self) -> float:
        """Strong convexity, from the regularizer alone."""
        return float(self.reg.min())

    @cached_property
    def L_rows(self) -> float:
        """The largest smoothness of the function of one row,  max_j N s_j c |a_j|^2 + l2."""
        return self.curvature * float(np.max(self.row_factors * self.row_squares)) + self.l2

    def largest_curvature(self, x: Array) -> float:
        """An upper bound on the second derivatives of the losses of the rows at x."""
        return self.curvature

    @property
    def row_factors(self) -> Array | float:
        """N s_j: f is the plain mean of the functions  N s_j loss(a_j' x, b_j) + regularizer.  1 for equal weights."""
        return 1.0 if np.ptp(self.s) == 0 else self.N * self.s

    @property
    def row_squares(self) -> Array:
        """|a_j|^2 of each row."""
        self._need_rows()
        if is_sparse(self.A):
            return np.asarray(self.A.multiply(self.A).sum(axis=1), dtype=np.float64).ravel()
        return np.asarray(np.einsum("ij,ij->i", self.A, self.A, dtype=np.float64))

    def margins(self, x: Array, A: Matrix = None) -> Array:
        """A x, in float64; of the rows of this model if A is not given."""
        A = self.A if A is None else A
        return np.asarray(A @ x.astype(self.dtype, copy=False), dtype=np.float64)

    def _back(self, A: Matrix, c: Array, dtype: npt.DTypeLike | None = None) -> Array:
        """A'c in the order of the unknowns, computed in the precision of the data if no other is given."""
        return np.asarray(A.T @ c.astype(dtype or self.dtype, copy=False), dtype=np.float64)

    def losses(self, z: Array) -> Array:
        """The loss of each row at margins z."""
        raise NotImplementedError

    def slopes(self, z: Array, b: Array) -> Array:
        """The derivative of each row's loss in its margin."""
        raise NotImplementedError

    def curvatures(self, z: Array) -> Array:
        """The second derivative of each row's loss in its margin."""
        raise NotImplementedError

    def row_slopes(self, x: Array) -> Array:
        """The derivative of each row's loss in its margin at x."""
        return self.slopes(self.margins(x), self.b)

    def value(self, x: Array) -> float:
        """f(x)."""
        return self._value(x, self.margins(x))

    def gradient(self, x: Array) -> Array:
        """The gradient of f at x."""
        return self._gradient(x, self.margins(x))

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Both, from one product with A."""
        z = self.margins(x)
        return self._value(x, z), self._gradient(x, z)

    def _value(self, x: Array, z: Array) -> float:
        return float(np.sum(self.s * self.losses(z)) + 0.5 * np.sum(self.reg * x * x))

    def _gradient(self, x: Array, z: Array) -> Array:
        return self._back(self.A, times(self.s, self.slopes(z, self.b))) + self.reg * x

    def minibatch_gradient(self, x: Array, rows: Indices) -> Array:
        """The mean gradient of the given rows' functions (see ``row_factors``); rows may repeat."""
        self._need_rows()
        B = self.A[rows]
        c = self.slopes(self.margins(x, B), self.b[rows])
        factors = self.row_factors
        c = c if isinstance(factors, float) else times(factors[rows], c)
        return self._back(B, c / len(rows)) + self.reg * x

    def hessian(self, x: Array) -> Array:
        """The dense Hessian at x."""
        return spectrum.gram(self.A, self.s * self.curvatures(self.margins(x))) + np.diag(self.reg)

    def hessp(self, x: Array, v: Array) -> Array:
        """Hessian times vector."""
        return self._back(self.A, self.s * self.curvatures(self.margins(x)) * self.margins(v, self.A)) + self.reg * v

    def gradient_variance(self, x: Array, less: Array | None = None) -> float:
        """mean_j |grad f_j(x) - grad f(x)|^2  over the rows j; with ``less``, of the gradients' change from there.

        f = mean_j f_j, see ``row_factors``.
        """
        factors = self.row_factors
        c = self.row_slopes(x) if less is None else self.row_slopes(x) - self.row_slopes(less)
        c = c if isinstance(factors, float) else times(factors, c)
        mean = self._back(self.A, c / self.N, np.float64)
        # the gradient of row j is the (outer) product of c_j and a_j: the regularizer cancels
        squares = c * c if c.ndim == 1 else np.sum(c * c, axis=1)
        return max(float(np.mean(squares * self.row_squares)) - float(mean @ mean), 0.0)

    def sizes_of_terms(self, x: Array) -> tuple[float, float]:
        """How large the terms of the value and of the gradient are, see ``oracles.Terms``: those of the mean row."""
        row = np.sqrt(self._mean_square_of_rows())
        slope = self._mean_slope(x)
        length = spectrum.norm(x)
        of_gradient = row * (self.largest_curvature(x) * row * length + slope) + spectrum.norm(self.reg * x)
        of_value = row * length * (1.0 if self.margins_cancel else slope)
        return float(of_value), float(of_gradient)

    def _mean_slope(self, x: Array) -> float:
        """The root mean square of the derivatives of the rows' losses in their margins."""
        squares = self.row_slopes(x) ** 2
        return float(np.sqrt(np.sum(self.s * squares.reshape(self.N, -1).sum(axis=1))))

    def _mean_square_of_rows(self) -> float:
        """sum_j s_j |a_j|^2, or a bound on it where rows cannot be read."""
        if not self.has_rows:
            return self.L0 / self.curvature
        if np.ptp(self.s) > 0:
            return float(np.sum(self.s * self.row_squares))
        # without a copy of data that may be large
        entries = self.A.data if is_sparse(self.A) else np.ravel(self.A)
        return float(self.s[0]) * float(entries @ entries)

    def take(self, rows: Indices) -> Self:
        """The shard with these rows: the same unknowns, regularizer and classes, with the row weights in proportion."""
        if not len(rows):
            raise InputError("a shard needs at least one row; this one has none.")
        shard = self.ordered(rows)
        # Equal row weights stay exactly equal in a shard; others are rescaled to sum to one.
        even = np.ptp(self.s) == 0
        return shard.reweighted(np.full(len(rows), 1.0 / len(rows)) if even else shard.s / shard.s.sum())

    def ordered(self, rows: Indices) -> Self:
        """These rows in this order, with the weights that they have; all rows in their order share the memory."""
        self._need_rows()
        if len(rows) == self.N and np.array_equal(rows, np.arange(self.N)):
            return self.holding()
        return self.holding(A=self.A[rows], s=self.s[rows], **self._per_row(rows))

    def between(self, lo: int, hi: int) -> Self:
        """Rows lo to hi - 1 with the weights that they have; a view, but for small pieces that scipy copies."""
        return self.holding(A=_rows_between(self.A, lo, hi), s=self.s[lo:hi], **self._per_row(slice(lo, hi)))

    def _per_row(self, rows: Indices | slice) -> dict[str, Array]:
        """The labels of these rows, and whatever else there is for each row."""
        return {name: getattr(self, name)[rows] for name in ("b", *self.also_per_row)}

    def double(self) -> Self:
        """The same model with its data in double precision."""
        return self.holding(A=self.A.astype(np.float64), dtype=np.dtype(np.float64))

    def reweighted(self, s: Array) -> Self:
        """The same rows with other row weights."""
        return self.holding(s=s)

    def holding(self, **data: object) -> Self:
        """The same model with other data, by the names of the attributes; its constants are computed again."""
        other = object.__new__(type(self))
        other._hold(**{name: v for name, v in vars(self).items() if name not in _CACHED} | data)
        return other

    def _hold(self, **data: object) -> None:
        vars(self).update(data)

    def design(self, A: Matrix) -> Matrix:
        """Held-out rows as this model stores its own, with the intercept column and the dtype."""
        return matrix_of(A, self.intercept, self.dtype)


def times(weights: Array, c: Array) -> Array:
    """Each row of c, one number or one per class, times its weight."""
    return np.asarray(weights * c if c.ndim == 1 else weights[:, None] * c)


_CACHED = ("L", "L0", "mu", "L_rows", "reg")
"""Cached properties, which a copy with other rows or weights must compute again."""


def _rows_between(A: Matrix, lo: int, hi: int) -> Matrix:
    """Rows lo to hi - 1, sharing the memory of A."""
    if not is_sparse(A):
        return A[lo:hi]
    # CSR rows are contiguous, so slices of the three arrays suffice, which is faster than scipy's A[lo:hi].
    start, stop = A.indptr[lo], A.indptr[hi]
    parts = (A.data[start:stop], A.indices[start:stop], A.indptr[lo : hi + 1] - start)
    return scipy.sparse.csr_matrix(parts, shape=(hi - lo, A.shape[1]))
