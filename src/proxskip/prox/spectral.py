"""Functions of the singular values or eigenvalues of x as a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from proxskip.prox.parts import Operator, at_least_zero, matrix_shape, sized, soft, start
from proxskip.seam import Array


@dataclass(frozen=True, slots=True)
class NuclearNorm(Operator):
    """``lam`` times the sum of the singular values of x as a matrix of this shape; soft thresholds them."""

    lam: float
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        at_least_zero(self, "lam")
        matrix_shape(self)

    def __call__(self, x: Array) -> float:
        sized(self, x, math.prod(self.shape))
        return float(self.lam * np.linalg.svd(np.reshape(x, self.shape), compute_uv=False).sum())

    def prox(self, x: Array, t: float) -> Array:
        x = start(x, t)
        sized(self, x, math.prod(self.shape))
        U, s, V = np.linalg.svd(x.reshape(self.shape), full_matrices=False)
        return np.reshape((U * soft(s, t * self.lam)) @ V, x.shape)
