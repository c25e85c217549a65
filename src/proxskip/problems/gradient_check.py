"""Whether the gradient of a user's function belongs to its value, by a directional difference to either side.

A convex f with the gradient g at x has, in every direction v and for every h > 0,

    (f(x) - f(x - h v)) / h  <=  <g, v>  <=  (f(x + h v) - f(x)) / h.

If f is L-smooth but not convex, either end may be off by L h |v|^2 / 2. A slope <g, v> that lies outside by more than
this, and by more than the rounding of the values explains, proves that g is the gradient of another function.
What the library has itself is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from proxskip.problems import oracles
from proxskip.problems.clients import Clients, checked_gradient, checked_value
from proxskip.support.randomness import generator
from proxskip.types import Array, Oracle

DOUBLE, SINGLE = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
VALUE_ULPS = 100.0
"""Units of rounding by which a value may be off, relative to |f|, |grad f|^2/L and L |x|^2."""
SAME_CURVATURE = 0.1
"""By how much (relative) the curvatures of two steps may differ if both are to count as exact."""


class Difference(NamedTuple):
    """What the values around x say about the slope there in one direction."""

    low: float
    high: float
    slack: float
    curvature: float

    def allows(self, slope: float) -> bool:
        """Whether a gradient may have this slope; also where a value is not finite, which proves nothing."""
        return not (slope < self.low - self.slack or slope > self.high + self.slack)


def is_trusted(f: object) -> bool:
    """Whether f is the library's own, or draws numbers, so that its values cannot be compared."""
    return type(f).__module__.startswith("proxskip.") or oracles.is_random(f)


def of_clients(clients: Sequence[Oracle], x: Array) -> str | None:
    """The first contradiction of a client's gradient and value near x; None if there is none."""
    # one function stands for all packed clients, which are the library's own
    distinct = clients.distinct() if isinstance(clients, Clients) else clients
    for i, f in enumerate(distinct):
        # a client on another machine was compared there
        fault = oracles.attribute(f, "contradiction") if is_trusted(f) else of_client(f, x, i)
        if fault is not None:
            name = oracles.attribute(f, "name")
            return f"client {i}: {fault}" if name is None else f"client {i} ({name}): {fault}"
    return None


def of_client(f: Oracle, x: Array, i: int) -> str | None:
    """How the gradient and the value of client i contradict each other near x; None if they do not."""
    if is_trusted(f):
        return None
    value, gradient = partial(checked_value, f, i=i), partial(checked_gradient, f, i=i)
    return contradiction(value, gradient, x, gradient(x), float(f.L) if oracles.knows_L(f) else None)


def contradiction(
    value: Callable[[Array], float], gradient: Callable[[Array], Array], x: Array, g: Array, L: float | None
) -> str | None:
    """A sentence on how value and gradient contradict each other near x; None if they do not.

    It takes one gradient (two without L), and three values, or five where they disagree.

    Args:
        g: the gradient at x.
        L: the smoothness, where it is known.
    """
    with np.errstate(all="ignore"):
        L = L or _steepness(gradient, x, g)
        if not (np.isfinite(g).all() and 0 < L < math.inf):
            return None
        try:
            return _contradiction_at(_generic_point(value, x, g, L), value, gradient, L)
        except (ArithmeticError, ValueError):  # outside of where f is defined, which proves nothing
            return None


def _steepness(gradient: Callable[[Array], Array], x: Array, g: Array) -> float:
    """A lower bound on L, from the change of the gradient over a short step downhill."""
    length = float(np.linalg.norm(g))
    if length == 0:
        return 1.0
    step = 1e-4 * (float(np.linalg.norm(x)) or 1.0)
    change = float(np.linalg.norm(gradient(x - (step / length) * g) - g))
    return change / step or 1.0


def _generic_point(value: Callable[[Array], float], x: Array, g: Array, L: float) -> Array:
    """A random point near x, as far as a gradient step goes: at x = 0 a wrong factor of |x|^2 would not show."""
    radius = float(np.linalg.norm(g)) / L or float(np.linalg.norm(x)) or math.sqrt(abs(float(value(x))) / L) or 1.0
    return x + radius * _unit(generator(0).standard_normal(len(x)))


def _contradiction_at(
    x: Array, value: Callable[[Array], float], gradient: Callable[[Array], Array], L: float
) -> str | None:
    g, at = gradient(x), float(value(x))
    # a wrong sign or scale shows along g, a wrong term in |x|^2 along x, a forgotten coordinate in a random direction
    v = _unit(_unit(generator(1).standard_normal(len(x))) + _unit(g) + _unit(x))
    slope = float(g @ v)
    size = abs(at) + float(g @ g) / L + L * float(x @ x)
    if not 0 < size < math.inf:
        return None

    def difference(eps: float) -> Difference:
        h = math.cbrt(eps) * math.sqrt(size / L)
        back, ahead = (at - float(value(x - h * v))) / h, (float(value(x + h * v)) - at) / h
        slack = abs(ahead - back) + L * h / 2 + VALUE_ULPS * eps * size / h
        return Difference(min(back, ahead), max(back, ahead), slack, (ahead - back) / h)

    fine = difference(DOUBLE)
    if fine.allows(slope):
        return None
    # f may be computed in single precision without saying so; then the curvature of a fine step is mere rounding
    coarse = difference(SINGLE)
    is_exact = abs(fine.curvature - coarse.curvature) <= SAME_CURVATURE * abs(fine.curvature)
    if coarse.allows(slope) and not is_exact:
        return None
    seen = fine if is_exact else coarse
    middle = (seen.low + seen.high) / 2
    sign = ", as if its sign were wrong" if abs(slope + middle) < 0.1 * abs(slope) else ""
    return (
        f"the gradient of f does not belong to its value: in one direction the slope is {middle:.6g} by the values "
        f"and {slope:.6g} by the gradient{sign}."
    )


def _unit(v: Array) -> Array:
    length = float(np.linalg.norm(v))
    return v / length if length else v
