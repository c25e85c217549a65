"""What the operators share: steps, thresholds, sizes, and the sentences about wrong ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.types import Array, InputError, Prox

INSIDE = 1e-9
"""How far outside a set, relative to its size or the point's, still counts as inside."""


class Operator:
    """What every operator of this package is, and nothing more: by it ``as_prox`` knows what needs no adapting."""

    __slots__ = ()

    def __call__(self, x: Array) -> float:
        """psi(x)."""
        raise NotImplementedError

    def prox(self, x: Array, t: float) -> Array:
        """``argmin_y psi(y) + |y - x|^2 / (2 t)``."""
        raise NotImplementedError


def conjugate_prox(psi: Prox, y: Array, t: float) -> Array:
    """``prox_{t psi*}(y) = y - t prox_{psi/t}(y/t)``, Moreau's identity."""
    y = start(y, t)
    return y - t * psi.prox(y / t, 1 / t)


def name_of(psi: Any) -> str:
    """What to call an operator in a sentence: its class, for one of others theirs."""
    return type(getattr(psi, "operator", psi)).__name__


def start(x: npt.ArrayLike, t: float) -> Array:
    """x as floats, once t is known to be a step."""
    if not 0 < t < math.inf:
        raise InputError(f"the step of a prox must be positive and finite, not t = {t}.")
    return floats(x)


def floats(x: npt.ArrayLike) -> Array:
    """x in float64, so that no square of small integers overflows."""
    return np.asarray(x, dtype=np.float64)


def soft(x: Array, by: float) -> Array:
    """Every entry moved towards zero by ``by`` and stopped there."""
    return x - np.clip(x, -by, by)


def shortened(norms: Array, by: float) -> Array:
    """The factors ``(1 - by/norm)_+``."""
    return 1 - np.divide(by, norms, out=np.ones_like(norms), where=norms > by)


def norm(x: Array) -> float:
    """The Euclidean norm of x as one vector."""
    with np.errstate(over="ignore"):
        size = float(np.linalg.norm(np.ravel(x)))
    if math.isinf(size) and (most := largest(x)) < math.inf:  # the squares overflow, the norm does not
        return most * float(np.linalg.norm(np.ravel(x) / most))
    return size


def largest(x: Array) -> float:
    """The largest absolute value; 0 where there is none."""
    return float(np.max(np.abs(x), initial=0.0))


def inside(excess: float, scale: float) -> float:
    """0 where a point is outside by ``INSIDE`` of the scale at most, else infinite."""
    return 0.0 if excess <= INSIDE * scale else math.inf


def at_least_zero(psi: Any, name: str) -> None:
    """Refuse a weight that is negative or not finite."""
    value = getattr(psi, name)
    if np.ndim(value) or not 0 <= value < math.inf:
        raise InputError(f"{type(psi).__name__} needs a finite {name} >= 0, not {name} = {value}.")


def positive(psi: Any, name: str) -> None:
    """Refuse a size that is zero, negative or not finite."""
    value = getattr(psi, name)
    if np.ndim(value) or not 0 < value < math.inf:
        raise InputError(f"{type(psi).__name__} needs a finite {name} > 0, not {name} = {value}.")


def sized(psi: Any, x: Array, d: int) -> None:
    """Refuse a vector of another length than the operator was made for."""
    if np.size(x) != d:
        raise InputError(f"{type(psi).__name__} is made for {d} numbers, not for {np.size(x)}.")
    shape = getattr(psi, "shape", None)
    if shape is not None and np.ndim(x) > 1 and np.shape(x) != tuple(shape):
        raise InputError(f"{type(psi).__name__} is made for shape {tuple(shape)}, not for {np.shape(x)}.")


def matrix_shape(psi: Any) -> None:
    """Make ``psi.shape`` two whole numbers, or refuse it."""
    shape = tuple(int(side) for side in np.atleast_1d(psi.shape))
    object.__setattr__(psi, "shape", shape)
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(f"{type(psi).__name__} needs the shape of a matrix, not {shape}.")
