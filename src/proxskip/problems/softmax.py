"""Multinomial (softmax) regression: x holds the coefficients of the first class, then of the second, and so on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems.glm import LinearModel, label_values, refuse_targets, times
from proxskip.types import Array, InputError


class Softmax(LinearModel):
    """mean_j [ logsumexp_c(a_j' x_c) - a_j' x_{b_j} ] + lambda/2 |x|^2  over C classes.

    The Hessian in the margins is at most I/2 (Bohning, 1992), so L = lmax(A'A)/(2N) + lambda is an upper bound.

    Args:
        A: the data, one row per sample: a dense array, a scipy sparse matrix, or a real linear operator.
        b: the labels, numbers or texts, one per row.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        l2_relative: take lambda = l2 L0, with L0 the smoothness of the loss alone.
        intercept: append a column of ones, whose coefficient (the last of x) is not penalized.
        dtype: float32 stores the data, and computes gradients, in single precision.
        row_weights: nonnegative, scaled to sum to one; equal if not given.
        classes: all labels, if some may be missing in these rows.
    """

    loss = "softmax"
    curvature = 0.5
    classes: tuple[Any, ...]

    def _encode(self, labels: npt.NDArray[Any], classes: npt.ArrayLike | None) -> Array:
        values = label_values(labels, classes)
        if len(values) < 2:
            raise InputError(f"every label is {values[0]}; there is nothing to tell apart with one class.")
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

    def margins(self, x: Array, A: Any = None) -> Array:
        """The margins a_j' x_c, one row per sample and one column per class."""
        return super().margins(x.reshape(self.C, -1).T, A)

    def _back(self, A: Any, c: Array, dtype: Any = None) -> Array:
        """A'c, flattened class by class as x is."""
        return np.ascontiguousarray(super()._back(A, c, dtype).T).ravel()

    def slopes(self, Z: Array, b: Array) -> Array:
        """The derivative of the loss of each row in its margins: probabilities less the indicator of the label."""
        P: Array = scipy.special.softmax(Z, axis=1)
        # b holds the index of the class
        P[np.arange(len(P)), b.astype(np.int64)] -= 1.0
        return P

    def losses(self, z: Array) -> Array:
        """The loss of each row at margins z."""
        return np.asarray(scipy.special.logsumexp(z, axis=1) - z[np.arange(self.N), self.b.astype(np.int64)])

    def hessp(self, x: Array, v: Array) -> Array:
        """Hessian times vector."""
        P: Array = scipy.special.softmax(self.margins(x), axis=1)
        V = self.margins(v)
        # The Hessian of logsumexp at Z is diag(p) - p p', row by row.
        R = P * (V - np.sum(P * V, axis=1, keepdims=True))
        return self._back(self.A, times(self.s, R)) + self.reg * v

    def hessian(self, x: Array) -> Array:
        """The dense Hessian at x, column by column."""
        # symmetric, so that its columns are its rows
        return np.stack([self.hessp(x, e) for e in np.eye(self.d)])

    def accuracy(self, x: Array, A: Any, labels: npt.ArrayLike) -> float:
        """The share of held-out rows that are classified correctly."""
        guess = np.asarray(self.classes)[np.argmax(self.margins(x, self.design(A)), axis=1)]
        return float(np.mean(guess == np.asarray(labels)))
