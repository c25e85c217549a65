"""What the operators share: their base class, checks of their arguments, thresholds and norms."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from proxskip.types import Array, InputError, Prox

INSIDE = 1e-9
"""A point counts as inside a set up to this distance, relative to the size of the set or of the point."""
POSITIVE = ("radius", "alpha")
"""Numbers of operators that may not be zero."""


class Operator:
    """The base of all operators of this package, which ``as_prox`` leaves as they are."""

    __slots__ = ()
    _exact: ClassVar[bool] = True
    """False if nothing is known about the error of the prox."""
    psis: tuple[Prox, ...] = ()
    """The operators that this one is made of."""

    def __post_init__(self) -> None:
        """Check the fields of an operator that is a dataclass: weights may be zero, sizes may not."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        check_sizes(self, **{k: v for k, v in values.items() if k in ("lam", "l1", "l2", *POSITIVE)})

    def __call__(self, x: Array) -> float:
        """psi(x)."""
        raise NotImplementedError

    def prox(self, x: Array, t: float) -> Array:
        """``argmin_y psi(y) + |y - x|^2 / (2 t)``."""
        raise NotImplementedError


def conjugate_prox(psi: Prox, y: Array, t: float) -> Array:
    """``prox_{t psi*}(y) = y - t prox_{psi/t}(y/t)``, Moreau's identity."""
    y = as_point(y, t)
    return y - t * psi.prox(y / t, 1 / t)


def name_of(psi: Prox) -> str:
    """The name of an operator in messages: its class, or the class of what was adapted."""
    return type(getattr(psi, "operator", psi)).__name__


def is_ours(psi: object) -> bool:
    """Whether an operator, and all that it is made of, is this library's own."""
    parts = psi.psis if isinstance(psi, Operator) else ()
    adapted = hasattr(psi, "operator")
    return type(psi).__module__.startswith("proxskip.") and not adapted and all(map(is_ours, parts))


def as_point(x: npt.ArrayLike, t: float) -> Array:
    """x in float64, after a check of the step t."""
    if not 0 < t < math.inf:
        raise InputError(f"the step of a prox must be positive and finite, not t = {t}.")
    return as_floats(x)


def as_floats(x: npt.ArrayLike) -> Array:
    """x in float64, so that squares of small integers do not overflow."""
    return np.asarray(x, dtype=np.float64)


def soft_threshold(x: Array, by: float) -> Array:
    """Every entry moved towards zero by ``by``, and set to zero if it would pass it."""
    return x - np.clip(x, -by, by)


def shrink_factors(norms: Array, by: float) -> Array:
    """The factors ``(1 - by/norm)_+`` that shorten vectors of these norms by ``by``."""
    return 1 - np.divide(by, norms, out=np.ones_like(norms), where=norms > by)


def norm(x: Array) -> float:
    """The Euclidean norm of x as one vector."""
    with np.errstate(over="ignore"):
        size = float(np.linalg.norm(np.ravel(x)))
    if math.isinf(size) and (most := max_abs(x)) < math.inf:  # the squares overflow, the norm does not
        return most * float(np.linalg.norm(np.ravel(x) / most))
    return size


def max_abs(x: Array) -> float:
    """The largest absolute value; 0 for an empty array."""
    return float(np.max(np.abs(x), initial=0.0))


def indicator(excess: float, scale: float) -> float:
    """0 for a point that is outside a set by at most ``INSIDE`` of the scale, otherwise infinity."""
    return 0.0 if excess <= INSIDE * scale else math.inf


def check_sizes(psi: Operator, **values: float) -> None:
    """Refuse numbers that are negative or not finite, and those named in POSITIVE also if they are zero."""
    for name, value in values.items():
        sign = ">" if name in POSITIVE else ">="
        is_number = np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf"
        if not is_number or not 0 <= value < math.inf or (value == 0 and sign == ">"):
            raise InputError(f"{type(psi).__name__} needs a finite {name} {sign} 0, not {name} = {value}.")


def sized(psi: Operator, x: Array, d: int) -> None:
    """Refuse an x with another number of entries than d."""
    if np.size(x) != d:
        raise InputError(f"{type(psi).__name__} is made for {d} numbers, not for {np.size(x)}.")


def shaped(psi: Operator, x: Array, shape: tuple[int, int]) -> None:
    """Refuse an x that is neither a matrix of this shape nor its entries in a row."""
    sized(psi, x, math.prod(shape))
    if np.ndim(x) > 1 and np.shape(x) != shape:
        raise InputError(f"{type(psi).__name__} is made for shape {shape}, not for {np.shape(x)}.")


def matrix_shape(psi: Operator, sides: npt.ArrayLike) -> tuple[int, int]:
    """The shape of a matrix as two whole numbers, or refused."""
    shape = tuple(int(side) for side in np.atleast_1d(sides))
    if len(shape) != 2 or min(shape) < 1:
        raise InputError(f"{type(psi).__name__} needs the shape of a matrix, not {shape}.")
    return shape[0], shape[1]
