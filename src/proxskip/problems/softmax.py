"""Multinomial (softmax) regression: x holds the coefficients of the first class, then of the second, and so on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from proxskip.problems.glm import LinearModel, area_under_curve, label_values
from proxskip.types import Array, Indices, InputError


class Softmax(LinearModel):
    """mean_j [ logsumexp_c(a_j' x_c) - a_j' x_{b_j} ] + lambda/2 |x|^2  over C classes.

    The Hessian in the margins is at most I/2 (Bohning, 1992), so L = lmax(A'A)/(2N) + lambda is an upper bound.
    """

    loss = "softmax"
    curvature = 0.5
    classes: tuple[Any, ...]

    def _encode(self, labels: npt.NDArray[Any], classes: npt.ArrayLike | None) -> Array:
        values = label_values(labels, classes)
        if len(values) < 2:
            raise InputError(f"every label is {values[0]}; there is nothing to tell apart with one class.")
        self.classes = tuple(values.tolist())
        return np.asarray(np.searchsorted(values, labels), dtype=np.float64)

    @property
    def C(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def d(self) -> int:
        """The number of unknowns: classes times features."""
        return int(self.A.shape[1]) * self.C

    def _scores(self, A: Any, x: Array) -> Array:
        """The margins a_j' x_c, one row per sample and one column per class."""
        X = x.reshape(self.C, -1).T.astype(self.dtype, copy=False)
        return np.asarray(A @ X, dtype=np.float64)

    def _fold(self, A: Any, G: Array) -> Array:
        """A' G, flattened class by class as x is."""
        return np.ascontiguousarray(np.asarray(A.T @ G.astype(self.dtype, copy=False), dtype=np.float64).T).ravel()

    def _slopes(self, Z: Array, b: Array) -> Array:
        """The derivative of the loss of each row in its margins: probabilities less the indicator of the label."""
        P: Array = scipy.special.softmax(Z, axis=1)
        # b holds the index of the class
        P[np.arange(len(P)), b.astype(np.int64)] -= 1.0
        return P

    def row_slopes(self, x: Array) -> Array:
        """The derivatives of each row's loss in its margins at x, one column per class."""
        return self._slopes(self._scores(self.A, x), self.b)

    def value(self, x: Array) -> float:
        """f(x)."""
        Z = self._scores(self.A, x)
        losses = scipy.special.logsumexp(Z, axis=1) - Z[np.arange(self.N), self.b.astype(np.int64)]
        return float(np.sum(self.s * losses) + 0.5 * np.sum(self.reg * x * x))

    def gradient(self, x: Array) -> Array:
        """The gradient of f at x."""
        return self._fold(self.A, self.s[:, None] * self.row_slopes(x)) + self.reg * x

    def minibatch_gradient(self, x: Array, rows: Indices) -> Array:
        """The mean gradient of the given rows' functions (see ``row_factors``); rows may repeat."""
        self._need_rows()
        B = self.A[rows]
        slopes = self._in_batch(self._slopes(self._scores(B, x), self.b[rows]), rows)
        return self._fold(B, slopes) + self.reg * x

    def hessp(self, x: Array, v: Array) -> Array:
        """Hessian times vector."""
        P: Array = scipy.special.softmax(self._scores(self.A, x), axis=1)
        V = self._scores(self.A, v)
        # The Hessian of logsumexp at Z is diag(p) - p p', row by row.
        R = P * (V - np.sum(P * V, axis=1, keepdims=True))
        return self._fold(self.A, self.s[:, None] * R) + self.reg * v

    def hessian(self, x: Array) -> Array:
        """The dense Hessian at x, column by column."""
        # symmetric, so that its columns are its rows
        return np.stack([self.hessp(x, e) for e in np.eye(self.d)])

    def gradient_variance(self, x: Array, less: Array | None = None) -> float:
        """mean_j |grad f_j(x) - grad f(x)|^2  over the rows j; with ``less``, of the gradients' change from there."""
        factors = self.row_factors
        G = self.row_slopes(x) if less is None else self.row_slopes(x) - self.row_slopes(less)
        G = G if isinstance(factors, float) else factors[:, None] * G
        mean = self._fold(self.A, G / self.N)
        # The gradient of row j is the outer product of its slopes and a_j (the regularizer cancels).
        return max(self._mean_square(G) - float(mean @ mean), 0.0)

    def accuracy(self, x: Array, A: Any, labels: npt.ArrayLike) -> float:
        """The share of held-out rows that are classified correctly."""
        guess = np.asarray(self.classes)[np.argmax(self._scores(self.design(A), x), axis=1)]
        return float(np.mean(guess == np.asarray(labels)))

    def auc(self, x: Array, A: Any, labels: npt.ArrayLike) -> float:
        """The area under the ROC curve on held-out rows, one class against the rest, averaged over the classes."""
        scores, true = self._scores(self.design(A), x), np.asarray(labels)
        shares = scipy.special.softmax(scores, axis=1)
        return float(np.mean([area_under_curve(shares[:, c], true == k) for c, k in enumerate(self.classes)]))
