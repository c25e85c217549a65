"""Generalized linear models:  f(x) = sum_j s_j loss(a_j' x, b_j) + 1/2 sum_k reg_k x_k^2,  with known L and mu.

The row weights s_j are 1/N unless given. A shard keeps the regularizer and the classes of the whole data set, so that
the weighted sum of the functions of the shards is the function of the whole again.
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems import spectrum
from proxskip.problems.frames import names_of, separated
from proxskip.problems.operators import check_adjoint, is_complex, is_operator
from proxskip.types import AnyArray, Array, Indices, InputError, Label, Matrix, is_sparse

CHEAP_UP_TO = 200
"""Features (or rows, if there are fewer) up to which the exact L takes no longer than a few gradients."""


class LinearModel:
    """The base of Logistic, LeastSquares and Softmax."""

    loss: ClassVar[str]
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
        self.A = _matrix(A, intercept, self.dtype)
        self.intercept = intercept
        N = self.A.shape[0]
        self.b = self._encode(_labels(b, N), classes)
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
        model.dtype = np.dtype(np.float64)
        model.intercept = False
        model.l2 = float(l2)
        model.A, model.s = A, np.full(N, 1.0 / N)
        model.b = model._encode(_labels(b, N), classes)
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
        return not {"L", "L0"} & vars(self).keys() and self.is_large

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
        shard.s = np.full(len(rows), 1.0 / len(rows)) if even else shard.s / shard.s.sum()
        return shard

    def ordered(self, rows: Indices) -> Self:
        """These rows in this order, with the weights that they have; all rows in their order share the memory."""
        self._need_rows()
        other = self.reweighted(self.s)
        if not (len(rows) == self.N and np.array_equal(rows, np.arange(self.N))):
            other.A = self.A[rows]
            other.b = self.b[rows]
            other.s = self.s[rows]
            for name in self.also_per_row:
                setattr(other, name, getattr(self, name)[rows])
        return other

    def between(self, lo: int, hi: int) -> Self:
        """Rows lo to hi - 1 with the weights that they have; a view, but for small pieces that scipy copies."""
        other = self.reweighted(self.s[lo:hi])
        other.A, other.b = _rows_between(self.A, lo, hi), self.b[lo:hi]
        for name in self.also_per_row:
            setattr(other, name, getattr(self, name)[lo:hi])
        return other

    def double(self) -> Self:
        """The same model with its data in double precision."""
        other = self.reweighted(self.s)
        other.A, other.dtype = self.A.astype(np.float64), np.dtype(np.float64)
        return other

    def reweighted(self, s: Array) -> Self:
        """The same rows with other row weights."""
        other = object.__new__(type(self))
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k not in _CACHED})
        other.s = s
        return other

    def design(self, A: Matrix) -> Matrix:
        """Held-out rows as this model stores its own, with the intercept column and the dtype."""
        return _matrix(A, self.intercept, self.dtype)


def times(weights: Array, c: Array) -> Array:
    """Each row of c, one number or one per class, times its weight."""
    return np.asarray(weights * c if c.ndim == 1 else weights[:, None] * c)


_CACHED = ("L", "L0", "mu", "L_rows", "reg")
"""Cached properties, which a copy with other rows or weights must compute again."""


class Logistic(LinearModel):
    """l2-regularized logistic regression,  mean_j log(1 + exp(-b_j a_j' x)) + lambda/2 |x|^2  (paper, Section 6).

    Any two label values will do; the smaller becomes -1 and the larger +1, see ``classes``.

    Args:
        A: the data, one row per sample: a dense array, a scipy sparse matrix, or a real linear operator.
        b: the labels, two different numbers or texts, one per row.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        l2_relative: lambda as a share of the smoothness of the loss alone; in place of l2.
        intercept: append a column of ones, whose coefficient (the last of x) is not penalized.
        dtype: float32 stores the data, and computes gradients, in single precision.
        row_weights: nonnegative, scaled to sum to one; equal if not given.
        classes: both labels, if one may be missing in these rows.

    >>> import numpy as np
    >>> f = Logistic(np.eye(2), [0, 1], l2=0.1)
    >>> f.classes, round(f.value(np.zeros(2)), 6)
    ((0, 1), 0.693147)
    """

    loss = "logistic"
    curvature = 0.25
    classes: tuple[Label, Label]

    def _encode(self, labels: AnyArray, classes: npt.ArrayLike | None) -> Array:
        values = label_values(labels, classes)
        if len(values) != 2:
            refuse_targets(labels, classes)
            raise InputError(f"logistic regression needs two classes of labels but found {len(values)}; use Softmax.")
        self.classes = (values[0].item(), values[1].item())
        return np.where(labels == values[1], 1.0, -1.0)

    def losses(self, z: Array) -> Array:
        """log(1 + exp(-b z)), without overflow at any margin."""
        return np.logaddexp(0.0, -self.b * z)

    def slopes(self, z: Array, b: Array) -> Array:
        """-b / (1 + exp(b z))."""
        return np.asarray(-b * scipy.special.expit(-b * z))

    def curvatures(self, z: Array) -> Array:
        """sigma(z) (1 - sigma(z))."""
        # 1 - sigma(z) = sigma(-z) keeps its digits where sigma(z) is close to one
        return np.asarray(scipy.special.expit(z) * scipy.special.expit(-z))

    def accuracy(self, x: Array, A: Matrix, labels: npt.ArrayLike) -> float:
        """The share of held-out rows that are classified correctly."""
        z = self.margins(x, self.design(A))
        return float(np.mean((z > 0) == (np.asarray(labels) == self.classes[1])))


class LeastSquares(LinearModel):
    """Ridge regression,  1/2 mean_j (a_j' x - b_j)^2 + lambda/2 |x|^2.

    Args:
        A: the data, one row per sample: a dense array, a scipy sparse matrix, or a real linear operator.
        b: the targets, one per row.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        l2_relative: lambda as a share of the smoothness of the loss alone; in place of l2.
        intercept: append a column of ones, whose coefficient (the last of x) is not penalized.
        dtype: float32 stores the data, and computes gradients, in single precision.
        row_weights: nonnegative, scaled to sum to one; equal if not given.
        classes: not used.

    >>> import numpy as np
    >>> f = LeastSquares(np.array([[1.0], [2.0]]), [1, 2])
    >>> round(f.L, 12), round(f.mu, 12), f.value(np.ones(1))
    (2.5, 2.5, 0.0)
    """

    loss = "squared"
    curvature = 1.0

    @cached_property
    def mu(self) -> float:
        """Strong convexity: the smallest eigenvalue of the Hessian."""
        return spectrum.smallest(self.A, self.s, 1.0, self.reg)

    def find_constants(self) -> None:
        """L and mu together, where neither is known yet: the matrix of which they are eigenvalues is made once."""
        if not {"L", "L0", "mu"} & vars(self).keys() and np.ptp(self.reg) == 0:
            self.L0, self.mu = spectrum.both_ends(self.A, self.s, self.reg)

    def losses(self, z: Array) -> Array:
        return 0.5 * (z - self.b) ** 2

    def slopes(self, z: Array, b: Array) -> Array:
        return z - b

    def curvatures(self, z: Array) -> Array:
        return np.ones_like(z)


class Softmax(LinearModel):
    """Multinomial regression,  mean_j [ logsumexp_c(a_j' x_c) - a_j' x_{b_j} ] + lambda/2 |x|^2  over C classes.

    x holds the coefficients of the first class, then those of the second, and so on.

    The Hessian in the margins is at most I/2 (Bohning, 1992), so L = lmax(A'A)/(2N) + lambda is an upper bound.

    Args:
        A: the data, one row per sample: a dense array, a scipy sparse matrix, or a real linear operator.
        b: the labels, numbers or texts, one per row.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        l2_relative: lambda as a share of the smoothness of the loss alone; in place of l2.
        intercept: append a column of ones, whose coefficient (the last of x) is not penalized.
        dtype: float32 stores the data, and computes gradients, in single precision.
        row_weights: nonnegative, scaled to sum to one; equal if not given.
        classes: all labels, if some may be missing in these rows.
    """

    loss = "softmax"
    curvature = 0.5
    margins_cancel = True
    classes: tuple[Label, ...]

    def _encode(self, labels: AnyArray, classes: npt.ArrayLike | None) -> Array:
        values = label_values(labels, classes)
        if len(values) > 2:
            refuse_targets(labels, classes)
        self.classes = tuple(values.tolist())
        return np.asarray(np.searchsorted(values, labels), dtype=np.float64)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.C} classes)"

    @property
    def C(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def d(self) -> int:
        """The number of unknowns: classes times features."""
        return int(self.A.shape[1]) * self.C

    def margins(self, x: Array, A: Matrix = None) -> Array:
        """The margins a_j' x_c, one row per sample and one column per class."""
        return super().margins(x.reshape(self.C, -1).T, A)

    def _back(self, A: Matrix, c: Array, dtype: npt.DTypeLike | None = None) -> Array:
        """A'c, flattened class by class as x is."""
        return np.ascontiguousarray(super()._back(A, c, dtype).T).ravel()

    def slopes(self, Z: Array, b: Array) -> Array:
        """The derivative of the loss of each row in its margins: probabilities less the indicator of the label."""
        P: Array = scipy.special.softmax(Z, axis=1)
        # b holds the index of the class
        P[np.arange(len(P)), b.astype(np.int64)] -= 1.0
        return P

    def losses(self, z: Array) -> Array:
        return np.asarray(scipy.special.logsumexp(z, axis=1) - z[np.arange(self.N), self.b.astype(np.int64)])

    def hessp(self, x: Array, v: Array) -> Array:
        P: Array = scipy.special.softmax(self.margins(x), axis=1)
        V = self.margins(v)
        # The Hessian of logsumexp at Z is diag(p) - p p', row by row.
        R = P * (V - np.sum(P * V, axis=1, keepdims=True))
        return self._back(self.A, times(self.s, R)) + self.reg * v

    def hessian(self, x: Array) -> Array:
        """The dense Hessian at x, block by block: classes a and b share  sum_j s_j p_ja (1[a = b] - p_jb) a_j a_j'."""
        P: Array = scipy.special.softmax(self.margins(x), axis=1)
        width = self.A.shape[1]
        H = np.diag(self.reg)
        for a in range(self.C):
            rows = slice(a * width, (a + 1) * width)
            H[rows, rows] += spectrum.gram(self.A, self.s * P[:, a] * (1.0 - P[:, a]))
            for b in range(a):
                columns = slice(b * width, (b + 1) * width)
                H[rows, columns] = -spectrum.gram(self.A, self.s * P[:, a] * P[:, b])
                H[columns, rows] = H[rows, columns].T
        return H

    def accuracy(self, x: Array, A: Matrix, labels: npt.ArrayLike) -> float:
        """The share of held-out rows that are classified correctly."""
        guess = np.asarray(self.classes)[np.argmax(self.margins(x, self.design(A)), axis=1)]
        return float(np.mean(guess == np.asarray(labels)))


def _matrix(A: Matrix, intercept: bool, dtype: np.dtype[Any]) -> Matrix:
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


def _rows_between(A: Matrix, lo: int, hi: int) -> Matrix:
    """Rows lo to hi - 1, sharing the memory of A."""
    if not is_sparse(A):
        return A[lo:hi]
    # CSR rows are contiguous, so slices of the three arrays suffice, which is faster than scipy's A[lo:hi].
    start, stop = A.indptr[lo], A.indptr[hi]
    parts = (A.data[start:stop], A.indices[start:stop], A.indptr[lo : hi + 1] - start)
    return scipy.sparse.csr_matrix(parts, shape=(hi - lo, A.shape[1]))


def check_l2(l2: float, l2_relative: float | None = None) -> None:
    """Refuse a coefficient of the regularizer that is negative, no number, or given twice."""
    for name, value in (("l2", l2), ("l2_relative", 0.0 if l2_relative is None else l2_relative)):
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not (number and 0 <= value <= sys.float_info.max):
            raise InputError(f"{name} = {value!r:.80} must be a nonnegative number.")
    if l2_relative is not None and l2 != 0:
        raise InputError("l2 is lambda, and l2_relative makes it a share of the smoothness; give one of the two.")


def _labels(b: npt.ArrayLike, N: int) -> AnyArray:
    """One label per row: finite numbers, or strings."""
    labels = np.atleast_1d(np.asarray(b)).ravel()
    if labels.dtype.kind == "O":  # of a data frame: texts, or else numbers
        # by their texts, since pandas' NA cannot be compared
        if any(not isinstance(v, str) and str(v) in ("None", "nan", "NaN", "NaT", "<NA>") for v in labels):
            raise InputError("some labels are missing (None or nan); remove or repair those rows.")
        labels = np.array(labels.tolist())
    if labels.shape[0] != N:
        raise InputError(f"A has {N} rows but b has {labels.shape[0]} entries; they must match.")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        j = int(np.argmin(np.isfinite(labels)))
        raise InputError(f"label {labels[j]} of row {j} is not finite; remove or repair it.")
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
