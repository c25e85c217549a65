"""Convex functions with an exact proximity operator.

    psi.prox(x, t) = argmin_y  psi(y) + |y - x|^2 / (2 t)             psi(x) is inf outside the domain

Every formula is a closed form, exact to rounding: an approximate prox would put a floor under the linear
convergence of the methods. They are those of Parikh and Boyd, "Proximal algorithms" (2014), chapter 6, unless
a docstring says otherwise. A point counts as inside a set up to 1e-9 of the set's size or its own.

Operators of pyproximal, and anyone's with the same two verbs, come in through ``as_prox``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.seam import Array, InputError, Prox

INSIDE = 1e-9
"""How far outside a set, relative to its size or the point's, still counts as inside."""


@dataclass(frozen=True, slots=True)
class Zero:
    """psi = 0."""

    def __call__(self, x: Array) -> float:
        return 0.0

    def prox(self, x: Array, t: float) -> Array:
        return _start(x, t).copy()


@dataclass(frozen=True, slots=True)
class L1:
    """``lam * sum_i |x_i|``; its prox is soft thresholding."""

    lam: float

    def __post_init__(self) -> None:
        _at_least_zero(self, "lam")

    def __call__(self, x: Array) -> float:
        return float(self.lam * np.abs(x).sum())

    def prox(self, x: Array, t: float) -> Array:
        return _soft(_start(x, t), t * self.lam)


@dataclass(frozen=True, slots=True)
class L2:
    """``lam * |x|``, the norm and not its square; its prox shortens x by t * lam."""

    lam: float

    def __post_init__(self) -> None:
        _at_least_zero(self, "lam")

    def __call__(self, x: Array) -> float:
        return self.lam * _norm(x)

    def prox(self, x: Array, t: float) -> Array:
        x = _start(x, t)
        return x * _shortened(np.array(_norm(x)), t * self.lam)


@dataclass(frozen=True, slots=True)
class SquaredL2:
    """``lam/2 * |x|^2``."""

    lam: float

    def __post_init__(self) -> None:
        _at_least_zero(self, "lam")

    def __call__(self, x: Array) -> float:
        return 0.5 * self.lam * _norm(x) ** 2

    def prox(self, x: Array, t: float) -> Array:
        return _start(x, t) / (1 + t * self.lam)


@dataclass(frozen=True, slots=True)
class ElasticNet:
    """``l1 * sum_i |x_i| + l2/2 * |x|^2``: soft thresholding, then shrinking."""

    l1: float
    l2: float

    def __post_init__(self) -> None:
        _at_least_zero(self, "l1")
        _at_least_zero(self, "l2")

    def __call__(self, x: Array) -> float:
        return L1(self.l1)(x) + SquaredL2(self.l2)(x)

    def prox(self, x: Array, t: float) -> Array:
        return _soft(_start(x, t), t * self.l1) / (1 + t * self.l2)


@dataclass(frozen=True, slots=True)
class GroupL1:
    """``lam * sum_g |x_g|`` over consecutive groups of the given sizes: the group lasso, without weights."""

    lam: float
    groups: tuple[int, ...]

    def __post_init__(self) -> None:
        _at_least_zero(self, "lam")
        object.__setattr__(self, "groups", tuple(int(size) for size in self.groups))
        if not self.groups or min(self.groups) < 1:
            raise InputError(f"GroupL1 needs group sizes of one or more, not {self.groups}.")

    def __call__(self, x: Array) -> float:
        return float(self.lam * self._norms(x).sum())

    def prox(self, x: Array, t: float) -> Array:
        x = _start(x, t)
        factors = np.repeat(_shortened(self._norms(x), t * self.lam), self.groups)
        return x * factors.reshape(x.shape)

    def _norms(self, x: Array) -> Array:
        _sized(self, x, sum(self.groups))
        starts = np.cumsum((0, *self.groups[:-1]))
        return np.sqrt(np.add.reduceat(np.square(x).ravel(), starts))


@dataclass(frozen=True, slots=True)
class Box:
    """``lo <= x <= hi``; a bound is one number, perhaps infinite, or one per coordinate."""

    lo: float | tuple[float, ...]
    hi: float | tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("lo", "hi"):
            bound = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, tuple(bound.ravel().tolist()) if bound.ndim else float(bound))
        lo, hi = np.asarray(self.lo), np.asarray(self.hi)
        if lo.ndim and hi.ndim and lo.shape != hi.shape:
            raise InputError(f"Box has {lo.size} lower bounds but {hi.size} upper ones.")
        wrong = np.atleast_1d(~((lo <= hi) & (lo < np.inf) & (hi > -np.inf)))
        if wrong.any():
            i = int(wrong.argmax())
            a, b = (np.broadcast_to(bound, wrong.shape)[i] for bound in (lo, hi))
            raise InputError(f"Box needs lo <= hi, with numbers between them, not lo = {a} and hi = {b} (at {i}).")

    def __call__(self, x: Array) -> float:
        return _inside(np.max(np.abs(x - self._clip(x)), initial=0.0), _largest(x))

    def prox(self, x: Array, t: float) -> Array:
        return self._clip(_start(x, t))

    def _clip(self, x: Array) -> Array:
        for bound in (self.lo, self.hi):
            if isinstance(bound, tuple):
                _sized(self, x, len(bound))
        lo, hi = (b if isinstance(b, float) else np.reshape(b, x.shape) for b in (self.lo, self.hi))
        return np.clip(x, lo, hi)


@dataclass(frozen=True, slots=True)
class NonNegative:
    """``x >= 0``."""

    def __call__(self, x: Array) -> float:
        return _inside(-np.min(x, initial=0.0), _largest(x))

    def prox(self, x: Array, t: float) -> Array:
        return np.maximum(_start(x, t), 0.0)


@dataclass(frozen=True, slots=True)
class Simplex:
    """``x >= 0`` and ``sum_i x_i = radius``; exact by sorting (Held, Wolfe and Crowder, 1974)."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        _positive_radius(self)

    def __call__(self, x: Array) -> float:
        outside = max(abs(float(np.sum(x)) - self.radius), -float(np.min(x, initial=0.0)))
        return _inside(outside, max(self.radius, _largest(x)))

    def prox(self, x: Array, t: float) -> Array:
        return _onto_simplex(_start(x, t), self.radius)


@dataclass(frozen=True, slots=True)
class L1Ball:
    """``sum_i |x_i| <= radius``; outside, the absolute values go to the simplex (Duchi et al., 2008)."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        _positive_radius(self)

    def __call__(self, x: Array) -> float:
        return _inside(float(np.abs(x).sum()) - self.radius, self.radius)

    def prox(self, x: Array, t: float) -> Array:
        x = _start(x, t)
        if np.abs(x).sum() <= self.radius:
            return x.copy()
        return np.copysign(_onto_simplex(np.abs(x), self.radius), x)


@dataclass(frozen=True, slots=True)
class L2Ball:
    """``|x| <= radius``."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        _positive_radius(self)

    def __call__(self, x: Array) -> float:
        return _inside(_norm(x) - self.radius, self.radius)

    def prox(self, x: Array, t: float) -> Array:
        x = _start(x, t)
        norm = _norm(x)
        return x.copy() if norm <= self.radius else x * (self.radius / norm)


@dataclass(frozen=True, slots=True)
class NuclearNorm:
    """``lam`` times the sum of the singular values of x as a matrix of this shape; soft thresholds them."""

    lam: float
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        _at_least_zero(self, "lam")
        object.__setattr__(self, "shape", tuple(int(side) for side in self.shape))
        if len(self.shape) != 2 or min(self.shape) < 1:
            raise InputError(f"NuclearNorm needs the shape of a matrix, not {self.shape}.")

    def __call__(self, x: Array) -> float:
        _sized(self, x, math.prod(self.shape))
        return float(self.lam * np.linalg.svd(np.reshape(x, self.shape), compute_uv=False).sum())

    def prox(self, x: Array, t: float) -> Array:
        x = _start(x, t)
        _sized(self, x, math.prod(self.shape))
        U, s, V = np.linalg.svd(x.reshape(self.shape), full_matrices=False)
        return np.reshape((U * _soft(s, t * self.lam)) @ V, x.shape)


@dataclass(frozen=True, slots=True)
class Singleton:
    """``x = 0`` (up to 1e-9): what decentralized training puts behind ``D = (I - W)^(1/2)``."""

    def __call__(self, x: Array) -> float:
        return _inside(_largest(x), 1.0)

    def prox(self, x: Array, t: float) -> Array:
        return np.zeros_like(_start(x, t))


@dataclass(frozen=True, slots=True)
class Consensus:
    """``x_1 = ... = x_n`` for n vectors end to end: the psi of federated learning, whose prox is the mean."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"Consensus needs n >= 1 vectors, not n = {self.n}.")

    def __call__(self, x: Array) -> float:
        return _inside(np.max(np.abs(x - self._mean(x)), initial=0.0), _largest(x))

    def prox(self, x: Array, t: float) -> Array:
        return self._mean(_start(x, t))

    def _mean(self, x: Array) -> Array:
        if x.size % self.n:
            raise InputError(f"Consensus({self.n}) cannot cut {x.size} numbers into {self.n} equal vectors.")
        return np.tile(x.reshape(self.n, -1).mean(axis=0), self.n).reshape(x.shape)


@dataclass(frozen=True, slots=True)
class Adapted:
    """Someone else's operator: it sees flat copies, a bool says inside or not, and its prox is checked."""

    operator: Any

    def __call__(self, x: Array) -> float:
        value = self.operator(np.array(x, dtype=np.float64).ravel())
        if isinstance(value, (bool, np.bool_)):
            return 0.0 if value else math.inf
        return float(value)

    def prox(self, x: Array, t: float) -> Array:
        flat = _start(x, t).flatten()
        result = np.asarray(self.operator.prox(flat, t))
        if result.shape != flat.shape or np.iscomplexobj(result):
            raise InputError(
                f"the prox of {type(self.operator).__name__} gave {result.dtype} values of shape "
                f"{result.shape} where it must give {flat.size} real ones."
            )
        return result.astype(np.float64).reshape(np.shape(x))


OURS = (
    Zero, L1, L2, SquaredL2, ElasticNet, GroupL1, Box, NonNegative, Simplex, L1Ball, L2Ball, NuclearNorm,
    Singleton, Consensus, Adapted,
)  # fmt: skip


def as_prox(obj: Any) -> Prox | None:
    """Ours as it is, anyone's with ``psi(x)`` and ``psi.prox(x, t)`` as ``Adapted``, None as None.

    >>> as_prox(L1(0.5)).prox(np.array([2.0, -0.1]), 1.0)
    array([1.5, 0. ])
    """
    if obj is None or isinstance(obj, OURS):
        return obj
    if isinstance(obj, type):
        raise InputError(f"psi is the class {obj.__name__} and not an operator; write {obj.__name__}(...).")
    if not callable(getattr(obj, "prox", None)):
        raise InputError(f"psi needs a method prox(x, t), which {type(obj).__name__} does not have.")
    if not callable(obj):
        raise InputError(f"psi must give its value as psi(x), but {type(obj).__name__} cannot be called.")
    return Adapted(obj)


def conjugate_prox(psi: Prox, y: Array, t: float) -> Array:
    """``prox_{t psi*}(y) = y - t prox_{psi/t}(y/t)``, Moreau's identity."""
    y = _start(y, t)
    return y - t * psi.prox(y / t, 1 / t)


def _start(x: npt.ArrayLike, t: float) -> Array:
    """x as floats, once t is known to be a step."""
    if not 0 < t < math.inf:
        raise InputError(f"the step of a prox must be positive and finite, not t = {t}.")
    return np.asarray(x, dtype=np.float64)


def _soft(x: Array, by: float) -> Array:
    return x - np.clip(x, -by, by)


def _shortened(norms: Array, by: float) -> Array:
    """The factors ``(1 - by/norm)_+``."""
    return 1 - np.divide(by, norms, out=np.ones_like(norms), where=norms > by)


def _onto_simplex(x: Array, radius: float) -> Array:
    """``(x - theta)_+`` with ``theta = max_k (sum of the k largest - radius) / k``.

    The largest entry is taken off first, so that the sum is right to the size of the radius and not of x.
    """
    x = x - np.max(x, initial=-np.inf)
    largest_first = np.sort(x, axis=None)[::-1]
    theta = np.max((np.cumsum(largest_first) - radius) / np.arange(1, x.size + 1), initial=-np.inf)
    return np.maximum(x - theta, 0.0)


def _norm(x: Array) -> float:
    return float(np.linalg.norm(np.ravel(x)))


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _inside(excess: float, scale: float) -> float:
    return 0.0 if excess <= INSIDE * scale else math.inf


def _at_least_zero(psi: Any, name: str) -> None:
    value = getattr(psi, name)
    if not 0 <= value < math.inf:
        raise InputError(f"{type(psi).__name__} needs a finite {name} >= 0, not {name} = {value}.")


def _positive_radius(psi: Any) -> None:
    if not 0 < psi.radius < math.inf:
        raise InputError(f"{type(psi).__name__} needs a finite radius > 0, not radius = {psi.radius}.")


def _sized(psi: Any, x: Array, d: int) -> None:
    if np.size(x) != d:
        raise InputError(f"{type(psi).__name__} is made for {d} numbers, not for {np.size(x)}.")
