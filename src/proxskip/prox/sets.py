"""Indicators of sets, whose prox is the projection; all are closed forms, exact up to rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxskip.prox.parts import Operator, as_point, indicator, max_abs, norm, sized
from proxskip.types import Array, InputError


@dataclass(frozen=True, slots=True)
class Box(Operator):
    """``lo <= x <= hi``; a bound is one number, perhaps infinite, or one per coordinate."""

    lo: float | tuple[float, ...]
    hi: float | tuple[float, ...]

    def __post_init__(self) -> None:
        for name, value in (("lo", self.lo), ("hi", self.hi)):
            try:
                bound = np.asarray(value, dtype=np.float64)
            except (TypeError, ValueError):
                raise InputError(f"Box needs numbers, not {name} = {value!r:.80}.") from None
            object.__setattr__(self, name, tuple(bound.ravel().tolist()) if bound.ndim else float(bound))
        lo, hi = np.asarray(self.lo), np.asarray(self.hi)
        if lo.ndim and hi.ndim and lo.shape != hi.shape:
            raise InputError(f"Box has {lo.size} lower bounds but {hi.size} upper ones.")
        # negated, so that nan counts as wrong
        wrong = np.atleast_1d(~((lo <= hi) & (lo < np.inf) & (hi > -np.inf)))
        if wrong.any():
            i = int(wrong.argmax())
            a, b = (np.broadcast_to(bound, wrong.shape)[i] for bound in (lo, hi))
            raise InputError(f"Box needs lo <= hi, with numbers between them, not lo = {a} and hi = {b} (at {i}).")

    def __call__(self, x: Array) -> float:
        return indicator(np.max(np.abs(x - self._clip(x)), initial=0.0), max_abs(x))

    def prox(self, x: Array, t: float) -> Array:
        return self._clip(as_point(x, t))

    def _clip(self, x: Array) -> Array:
        for bound in (self.lo, self.hi):
            if isinstance(bound, tuple):
                sized(self, x, len(bound))
        lo, hi = (b if isinstance(b, float) else np.reshape(b, x.shape) for b in (self.lo, self.hi))
        return np.clip(x, lo, hi)


@dataclass(frozen=True, slots=True)
class NonNegative(Operator):
    """``x >= 0``."""

    def __call__(self, x: Array) -> float:
        return indicator(-np.min(x, initial=0.0), max_abs(x))

    def prox(self, x: Array, t: float) -> Array:
        return np.maximum(as_point(x, t), 0.0)


@dataclass(frozen=True, slots=True)
class Simplex(Operator):
    """``x >= 0`` and ``sum_i x_i = radius``; exact by sorting (Held, Wolfe and Crowder, 1974)."""

    radius: float = 1.0

    def __call__(self, x: Array) -> float:
        # The larger of two distances: to the right sum and to non-negative entries.
        outside = max(abs(float(np.sum(x)) - self.radius), -float(np.min(x, initial=0.0)))
        return indicator(outside, max(self.radius, max_abs(x)))

    def prox(self, x: Array, t: float) -> Array:
        return _onto_simplex(as_point(x, t), self.radius)


@dataclass(frozen=True, slots=True)
class L1Ball(Operator):
    """``sum_i |x_i| <= radius``; outside, the absolute values are projected onto the simplex (Duchi et al., 2008)."""

    radius: float = 1.0

    def __call__(self, x: Array) -> float:
        return indicator(float(np.abs(x).sum()) - self.radius, self.radius)

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        if np.abs(x).sum() <= self.radius:
            return x.copy()
        # the projection keeps every sign
        return np.copysign(_onto_simplex(np.abs(x), self.radius), x)


@dataclass(frozen=True, slots=True)
class L2Ball(Operator):
    """``|x| <= radius``."""

    radius: float = 1.0

    def __call__(self, x: Array) -> float:
        return indicator(norm(x) - self.radius, self.radius)

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        size = norm(x)
        return x.copy() if size <= self.radius else x * (self.radius / size)


@dataclass(frozen=True, slots=True)
class Singleton(Operator):
    """``x = 0`` (up to 1e-9): the psi of decentralized training, with ``D = (I - W)^(1/2)``."""

    def __call__(self, x: Array) -> float:
        return indicator(max_abs(x), 1.0)

    def prox(self, x: Array, t: float) -> Array:
        return np.zeros_like(as_point(x, t))


@dataclass(frozen=True, slots=True)
class Consensus(Operator):
    """``x_1 = ... = x_n`` for n vectors in one array: the psi of federated learning, whose prox is the mean."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"Consensus needs n >= 1 vectors, not n = {self.n}.")

    def __call__(self, x: Array) -> float:
        return indicator(np.max(np.abs(x - self._mean(x)), initial=0.0), max_abs(x))

    def prox(self, x: Array, t: float) -> Array:
        return self._mean(as_point(x, t))

    def _mean(self, x: Array) -> Array:
        if x.size % self.n:
            raise InputError(f"Consensus({self.n}) cannot cut {x.size} numbers into {self.n} equal vectors.")
        return np.tile(x.reshape(self.n, -1).mean(axis=0), self.n).reshape(x.shape)


def _onto_simplex(x: Array, radius: float) -> Array:
    """``(x - theta)_+`` with ``theta = max_k (sum of the k largest - radius) / k``.

    The largest entry is subtracted first, so that the error of the sum is relative to the radius and not to x.
    """
    x = x - np.max(x, initial=-np.inf)
    largest_first = np.sort(x, axis=None)[::-1]
    theta = np.max((np.cumsum(largest_first) - radius) / np.arange(1, x.size + 1), initial=-np.inf)
    return np.maximum(x - theta, 0.0)
