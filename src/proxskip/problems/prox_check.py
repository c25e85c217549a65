"""Whether a user's prox belongs to its value, and how exact it is: psi at a prox, and at a few points around it.

For u = prox_{t psi}(w), s = (w - u)/t is a subgradient of psi at u. In every direction v and for every h > 0 then

    <s, v>  <=  (psi(u + h v) - psi(u)) / h.

Four directions are tried: along u and against it, where a norm is linear and zeros stay zero; along what pushes the
entries that the prox holds in their place (at zero, or at a bound), and along the strongest of these pushes alone.
What the library has itself is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from proxskip.prox.parts import is_ours, name_of
from proxskip.types import Array, Prox

Step: TypeAlias = Callable[[Array, float], Array]
DOUBLE, SINGLE = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
FUNCTION_ULPS = 16.0
"""Units of rounding by which a prox in closed form may be off."""
PROX_STEP = 0.01
"""h, relative to |u|."""
PROX_SLACK = 0.05
"""By how much (relative) a slope of psi may differ: a prox may be inexact and not say so."""
SMALL_SLOPE = 1e-4
"""A slope this small beside the whole subgradient proves nothing, since an inexact prox could explain it."""
EDGE = 1e-6
"""How far inside (relative to x) a set is tried where x is outside."""


class Call(NamedTuple):
    """u = prox_{t psi}(w), for flat vectors."""

    w: Array
    u: Array
    t: float


class Probed:
    """The prox of an operator of unknown accuracy, with a second one for its error.

    Args:
        prox: what computes it, for flat vectors.
    """

    def __init__(self, psi: Prox, prox: Step) -> None:
        self.psi = psi
        self.prox = prox
        self.call: Call | None = None
        """The last call."""
        self.error = 0.0
        """How far its u was off, as far as that is known."""

    def __call__(self, w: Array, t: float) -> Array:
        self.call = Call(w, self.prox(w, t), t)
        self.error = error_of(self.prox, self.call)
        return self.call.u

    @property
    def spoils(self) -> float:
        """How much of a residual, which is divided by t, the error may hide."""
        return 0.0 if self.call is None else self.error / self.call.t

    @property
    def inexact(self) -> str:
        """How far the prox was off, as the end of a sentence."""
        return (
            f"the prox of {name_of(self.psi)} is inexact, by about {self.error:.2g} at this x: where prox(w, t) is u, "
            "prox((u + w)/2, t/2) must be u as well, and differs from it"
        )

    def doubt(self, room: float, tol: float) -> str | None:
        """Why a residual that it gave proves nothing; None if it does.

        Args:
            room: what its error may hide.
            tol: an error of the subgradient that does not matter.
        """
        if self.call is None:
            return None
        if self.spoils > room:
            return f"{self.inexact}."
        with np.errstate(all="ignore"):
            return contradiction(self.psi, partial(value, self.psi), self.call, off=self.error, allowed=tol)


def of_operator(psi: Prox | None) -> Probed | None:
    """The prox of psi with its error; None if it is the library's own."""
    return None if psi is None or is_ours(psi) else Probed(psi, psi.prox)


def error_of(prox: Step, call: Call) -> float:
    """How far u is from prox_{t psi}(w), as far as another prox tells; 0 if rounding explains it.

    z -> prox_{t/2 psi}((z + w)/2)  is a prox-gradient step on  psi(z) + |z - w|^2/(2 t)  and halves the distance to
    its minimum: a point that it moves by e is at most 2 e away.
    """
    w, u, t = call
    moved = float(np.linalg.norm(u - prox((u + w) / 2, t / 2)))
    rounding = 2 * FUNCTION_ULPS * DOUBLE * float(np.linalg.norm(u) + np.linalg.norm(w))
    return max(2 * moved - rounding, 0.0)


def value(psi: Prox, x: Array) -> float:
    """psi(x); NaN, which proves nothing, where it cannot be computed."""
    try:
        return float(psi(x))
    except (ArithmeticError, ValueError):
        return math.nan


def contradiction(
    psi: Prox, psi_at: Callable[[Array], float], call: Call, earlier: Call | None = None, *,
    off: float = 0.0, allowed: float = 0.0, may_be_outside: bool = False,
) -> str | None:  # fmt: skip
    """A sentence on how the values of psi contradict this prox; None if they do not.

    Args:
        psi_at: psi at a flat vector, as ``value`` gives it.
        earlier: the call before.
        off: the certified error of u.
        allowed: an error of the subgradient s that does not matter.
        may_be_outside: whether psi may be infinite at u.
    """
    w, u, t = call
    if not (np.isfinite(w).all() and np.isfinite(u).all()):
        return None
    at = psi_at(u)
    if at == math.inf and not may_be_outside and not is_at_edge(psi_at, call, u):
        return not_finite(psi, at)
    if not math.isfinite(at):
        return None
    s = (w - u) / t
    moved = float(np.linalg.norm(w - u))
    size = float(np.linalg.norm(u))
    h = PROX_STEP * (size or moved)
    unit = 10 * (SINGLE if _is_single(u) else DOUBLE)
    for v in _directions(u, s, earlier):
        slope, seen = float(s @ v), (psi_at(u + h * v) - at) / h
        relative = PROX_SLACK * max(abs(slope), abs(seen)) + SMALL_SLOPE * moved / t
        uncertain = off / t + 2 * (moved / t) * off / h
        rounded = unit * (float(np.linalg.norm(w)) + size) / t + 10 * SINGLE * abs(at) / h
        if seen < slope - relative - uncertain - rounded - allowed:
            return (
                f"the prox of {name_of(psi)} does not belong to its value: in one direction the slope of psi "
                f"is {seen:.6g} by the values, and at least {slope:.6g} by the prox with step {t:.3g}."
            )
    return None


def _directions(u: Array, s: Array, earlier: Call | None) -> list[Array]:
    """Unit vectors along u, against it, along s where u is held in its place, and along the largest entry of that."""
    # entries that stay where they are may be at a kink or a bound, where the two sides differ
    held = u == 0.0 if earlier is None else u == earlier.u
    free = np.where(held, 0.0, u)
    pushed = np.where(held | (u == 0.0), s, 0.0)
    strongest = np.zeros_like(s)
    j = int(np.argmax(np.abs(pushed)))
    strongest[j] = pushed[j]
    lengths = [(v, float(np.linalg.norm(v))) for v in (free, -free, pushed, strongest)]
    return [v / length for v, length in lengths if length > 0.0]


def is_at_edge(psi_at: Callable[[Array], float], call: Call, x: Array) -> bool:
    """Whether psi is finite a little further inside: rounding has put x out of a set whose edge it is on."""
    w, u, _ = call
    moved = float(np.linalg.norm(w - u))
    if moved == 0:
        return False
    inwards = (EDGE * max(moved, float(np.linalg.norm(x))) / moved) * (u - w)
    return math.isfinite(psi_at(x + inwards))


def not_finite(psi: Prox, value: float) -> str:
    """A sentence on a psi that is infinite, or no number, where its prox ends."""
    return (
        f"{name_of(psi)} is {value} at a point that its own prox returned; correct one of the two, or allow for "
        "rounding where psi tells inside from outside."
    )


def _is_single(v: Array) -> bool:
    """Whether these numbers could come from single precision."""
    return bool(np.array_equal(v.astype(np.float32), v))
