"""Poisson regression with the log link, for counts."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from proxskip.problems.frames import numbers_per_row, separated
from proxskip.problems.linear_model import LinearModel
from proxskip.types import AnyArray, Array, Indices, InputError, Matrix

LARGEST = 300.0
"""The margin up to which the mean is exp(margin); beyond, it is continued by a line.

A Newton step from afar may lead to margins of thousands, where exp overflows. No mean count is above exp(300), so the
minimizer stays what it is, and every value is finite.
"""


class Poisson(LinearModel):
    """l2-regularized Poisson regression,  mean_j [ exp(z_j) - y_j z_j ] + lambda/2 |x|^2.

    The margins are  z_j = a_j' x + offset_j.

    It has no smoothness constant L, since the curvature of exp is unbounded. ``Newton`` needs none; a gradient method
    runs with a gamma that is given.

    Args:
        A: the data, one row per sample: a dense array, a scipy sparse matrix, or a data frame.
        y: the counts, one per row; with a data frame also the name of a column.
        offset: added to the margins, such as the logarithms of the exposures; or the name of a column.
        l2: the coefficient lambda of  lambda/2 |x|^2.
        intercept: append a column of ones, whose coefficient (the last of x) is not penalized.
        dtype: float32 stores the data, and computes gradients, in single precision.
        row_weights: nonnegative, scaled to sum to one; equal if not given.

    >>> f = Poisson(np.ones((2, 1)), [1, 3])
    >>> round(f.value(np.zeros(1)), 12), f.gradient(np.log([2.0])).round(12).tolist()
    (1.0, [0.0])
    """

    loss = "poisson"
    outcome = "count"
    curvature = math.inf
    L_known: ClassVar[bool] = False
    also_per_row = ("offset",)
    has_kernels = False

    def __init__(
        self,
        A: Matrix,
        y: npt.ArrayLike | str,
        offset: npt.ArrayLike | str | None = None,
        l2: float = 0.0,
        *,
        intercept: bool = False,
        dtype: npt.DTypeLike = np.float64,
        row_weights: npt.ArrayLike | str | None = None,
    ) -> None:
        A, names, given = separated(A, {"y": y, "offset": offset, "row_weights": row_weights})
        super().__init__(A, given["y"], l2, intercept=intercept, dtype=dtype, row_weights=given["row_weights"])
        self._need_rows()
        self.names = names
        shift = given["offset"]
        self.offset = np.zeros(self.N) if shift is None else numbers_per_row("offset", shift, self.N)

    @classmethod
    def over(cls, A: Matrix, b: npt.ArrayLike, l2: float, classes: npt.ArrayLike | None) -> Self:
        model = super().over(A, b, l2, classes)
        model.offset = np.zeros(model.N)
        return model

    def _encode(self, labels: AnyArray, classes: npt.ArrayLike | None) -> Array:
        counts = super()._encode(labels, classes)
        if counts.min() < 0:
            j = int(np.argmin(counts))
            raise InputError(f"y of row {j} is {counts[j]:g}; counts cannot be negative.")
        return counts

    @property
    def L0(self) -> float:
        """Refused: there is no L."""
        raise InputError(
            "Poisson regression has no smoothness constant L: use newton, which needs none, or give gamma."
        )

    L = L_rows = L0

    @property
    def constants_are_costly(self) -> bool:
        return False

    def largest_curvature(self, x: Array) -> float:
        return float(np.max(self.curvatures(self.margins(x))))

    def margins(self, x: Array, A: Matrix = None) -> Array:
        """A x with the offset; of rows that are given, without it."""
        z = super().margins(x, A)
        return z + self.offset if A is None else z

    def losses(self, z: Array) -> Array:
        beyond = np.maximum(z - LARGEST, 0.0)
        return _means(z) * (1.0 + beyond + 0.5 * beyond**2) - self.b * z

    def slopes(self, z: Array, b: Array) -> Array:
        return _means(z) * (1.0 + np.maximum(z - LARGEST, 0.0)) - b

    def curvatures(self, z: Array) -> Array:
        return _means(z)

    def minibatch_gradient(self, x: Array, rows: Indices) -> Array:
        """The mean gradient of the given rows' functions; rows may repeat."""
        return self.ordered(rows).reweighted(self.N * self.s[rows] / len(rows)).gradient(x)


def _means(z: Array) -> Array:
    """exp(z), but no more than at ``LARGEST``."""
    return np.exp(np.minimum(z, LARGEST))
