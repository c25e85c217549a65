"""Norms and similar functions; every prox is a closed form, exact up to rounding."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

import numpy as np

from proxskip.prox.parts import Operator, as_floats, as_point, norm, shrink_factors, sized, soft_threshold
from proxskip.types import Array, InputError


@dataclass(frozen=True, slots=True)
class Zero(Operator):
    """psi = 0."""

    def __call__(self, x: Array) -> float:
        return 0.0

    def prox(self, x: Array, t: float) -> Array:
        return as_point(x, t).copy()


@dataclass(frozen=True, slots=True)
class L1(Operator):
    """``lam * sum_i |x_i|``; its prox is soft thresholding."""

    lam: float

    def __call__(self, x: Array) -> float:
        return float(self.lam * np.abs(as_floats(x)).sum())

    def prox(self, x: Array, t: float) -> Array:
        return soft_threshold(as_point(x, t), t * self.lam)


@dataclass(frozen=True, slots=True)
class L2(Operator):
    """``lam * |x|``, the norm and not its square; its prox shortens x by t * lam, at most to zero."""

    lam: float

    def __call__(self, x: Array) -> float:
        return self.lam * norm(x)

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        return x * shrink_factors(np.array(norm(x)), t * self.lam)


@dataclass(frozen=True, slots=True)
class SquaredL2(Operator):
    """``lam/2 * |x|^2``."""

    lam: float

    def __call__(self, x: Array) -> float:
        return 0.5 * self.lam * norm(x) ** 2

    def prox(self, x: Array, t: float) -> Array:
        return as_point(x, t) / (1 + t * self.lam)


@dataclass(frozen=True, slots=True)
class ElasticNet(Operator):
    """``l1 * sum_i |x_i| + l2/2 * |x|^2``: soft thresholding, then shrinking."""

    l1: float
    l2: float

    def __call__(self, x: Array) -> float:
        return L1(self.l1)(x) + SquaredL2(self.l2)(x)

    def prox(self, x: Array, t: float) -> Array:
        return soft_threshold(as_point(x, t), t * self.l1) / (1 + t * self.l2)


@dataclass(frozen=True, slots=True)
class GroupL1(Operator):
    """``lam * sum_g |x_g|`` over consecutive groups of the given sizes: the group lasso, without weights."""

    lam: float
    groups: tuple[int, ...]

    def __post_init__(self) -> None:
        Operator.__post_init__(self)
        try:
            sizes = tuple(index(size) for size in self.groups)
        except TypeError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            raise InputError(f"GroupL1 needs group sizes, whole numbers of one or more, not {self.groups!r}.")
        object.__setattr__(self, "groups", sizes)

    def __call__(self, x: Array) -> float:
        return float(self.lam * self._norms(x).sum())

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        factors = np.repeat(shrink_factors(self._norms(x), t * self.lam), self.groups)
        return x * factors.reshape(x.shape)

    def _norms(self, x: Array) -> Array:
        sized(self, x, sum(self.groups))
        # The squares of each group summed by one call.
        starts = np.cumsum((0, *self.groups[:-1]))
        return np.sqrt(np.add.reduceat(np.square(as_floats(x)).ravel(), starts))


@dataclass(frozen=True, slots=True)
class Huber(Operator):
    """``lam sum_i H(x_i)`` with ``H(r) = r^2/(2 alpha)`` up to alpha and ``|r| - alpha/2`` beyond."""

    lam: float
    alpha: float

    def __call__(self, x: Array) -> float:
        r = np.abs(as_floats(x))
        return float(self.lam * np.where(r <= self.alpha, r * r / (2 * self.alpha), r - self.alpha / 2).sum())

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        # Two cases in one: x alpha/(alpha + by) in the quadratic part, x - by sign(x) in the linear one.
        by = t * self.lam
        return x - x * (by / np.maximum(np.abs(x), by + self.alpha))
