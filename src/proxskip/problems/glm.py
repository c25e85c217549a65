"""Generalized linear models:  f(x) = sum_j s_j loss(a_j' x, b_j) + 1/2 sum_k reg_k x_k^2,  with known L and mu.

The row weights s_j are 1/N unless given. A shard keeps the regularizer and the classes of the whole data set, so that
the weighted sum of the functions of the shards is the function of the whole again.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems import spectrum
from proxskip.problems.linear_model import LinearModel, times
from proxskip.problems.model_inputs import label_values, refuse_targets
from proxskip.types import AnyArray, Array, InputError, Label, Matrix


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
    outcome = "target"
    curvature = 1.0

    @cached_property
    def mu(self) -> float:
        """Strong convexity: the smallest eigenvalue of the Hessian."""
        return spectrum.smallest(self.A, self.s, 1.0, self.reg)

    def find_constants(self) -> None:
        """L and mu together, where neither is known yet: the matrix of which they are eigenvalues is made once."""
        if not self.knows("L", "L0", "mu") and np.ptp(self.reg) == 0:
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

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the coefficients, class by class."""
        features = super().columns
        return tuple(f"{feature} of class {label}" for label in self.classes for feature in features)

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


MODELS: dict[str, Any] = {kind.loss: kind for kind in (Logistic, LeastSquares, Softmax)}
"""The linear models of tables by the names of their losses."""
