"""Whether a user's gradient and prox belong to their values: a few values at points that the run has anyway.

At x a convex function F with the (sub)gradient s has, in every direction v and for every h > 0,

    (F(x) - F(x - h v)) / h  <=  <s, v>  <=  (F(x + h v) - F(x)) / h.

For f, s is its gradient, and h so small that the two ends nearly agree. For u = prox_{t psi}(w), s = (w - u)/t is a
subgradient of psi at u, and v is u or -u: along them a norm is linear, and zeros stay zero.
What the library has itself is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.composite.descent import Descent, Point
from proxskip.prox import ProxWarning
from proxskip.prox.adapted import Adapted
from proxskip.prox.parts import Operator, name_of
from proxskip.randomness import generator
from proxskip.types import Array, GradientWarning

MAX_EXTRA_VALUES = 5
"""Values of f and psi together that the checks of one run may take."""
DOUBLE, SINGLE = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
VALUE_ULPS = 100.0
"""Units of rounding by which a value may be off, relative to |f|, |grad f|^2/L and L |x|^2."""
VANISHED = 0.01
"""A gradient this much smaller than the first one counts as vanished."""
SAME_BEND = 0.1
"""By how much (relative) the curvatures of two steps may differ."""
PROX_STEP = 0.01
"""h for psi, relative to |u|."""
PROX_SLACK = 0.05
"""By how much (relative) a slope of psi may differ: a prox may be inexact and not say so."""

SMALL_SLOPE = 1e-4
"""A slope this small beside the whole subgradient proves nothing, since an inexact prox could explain it."""
EDGE = 1e-6
"""How far inside (relative to x) a set is tried where x is outside."""

Fault = tuple[str, type[UserWarning]]


def fault(run: Descent, point: Point, f_value: float, psi_value: float) -> Fault | None:
    """A sentence on what contradicts its own values, with the kind of warning; None if nothing does."""
    task, extra = run.task, _Extra()
    if not math.isfinite(f_value):
        return f"f is {f_value} at the x that is returned; its value must be finite there.", GradientWarning
    # a set that is met only up to a tolerance, by an inner solver or as D x, may have the value infinity
    up_to_tol = task.D is not None or run.solo.inner is not None or run.solo.call is None
    if not (math.isfinite(psi_value) or (psi_value == math.inf and (up_to_tol or _at_edge(extra, run, point.x)))):
        return _not_finite(task.psi, psi_value), ProxWarning
    checked = run.solo.checked
    own_psi = checked is not None and not checked.said and not _is_ours(checked.psi)
    known = psi_value if task.D is None and run.solo.call is not None and run.solo.call[1] is point.x else None
    needed = (3 if known is None else 2) if own_psi else 0
    with np.errstate(all="ignore"):
        if not _is_ours(task.f.of):
            place = _place(run, point, f_value, extra.left - needed)
            if sentence := _wrong_gradient(extra, task.f.value, *place, run.f.L or 1.0, run.client.eps > DOUBLE):
                return sentence, GradientWarning
        if extra.left >= needed > 0 and (sentence := _wrong_prox(extra, run, known)):
            return sentence, ProxWarning
    return None


class _Extra:
    """Extra values, as long as there are some left."""

    def __init__(self) -> None:
        self.left = MAX_EXTRA_VALUES

    def of(self, value: Callable[[Array], Any], x: Array) -> float:
        """The value at x; NaN, which proves nothing, where it cannot be computed."""
        self.left -= 1
        try:
            return float(value(x))
        except (ArithmeticError, ValueError):
            return math.nan


def _is_ours(part: Any) -> bool:
    """Whether f or psi, and all that psi is made of, are the library's own."""
    parts = part.psis if isinstance(part, Operator) else ()
    ours = type(part).__module__.startswith("proxskip.") and not isinstance(part, Adapted)
    return ours and all(map(_is_ours, parts))


def _place(run: Descent, point: Point, f_value: float, left: int) -> tuple[Array, Array, float | None]:
    """Where the gradient is checked: a point with its gradient, and with the value of f if that is known."""
    if left < 3 and run.client.at is point.x:
        return point.x, run.client.g, f_value
    # soon after the start no part of f is zero by chance; where the gradient vanishes, so does an error in its scale
    x, g = run.early
    return (x, g, None) if float(np.linalg.norm(g)) > VANISHED * run.first_gradient else (*run.first, None)


def _wrong_gradient(
    extra: _Extra, value: Callable[[Array], float], x: Array, g: Array, at: float | None, L: float, single: bool
) -> str:
    """What contradicts the gradient g at x; values in single precision need a larger h."""
    at = extra.of(value, x) if at is None else at
    # g finds a wrong sign or scale, x a term in |x|^2, and random numbers a coordinate that was forgotten
    v = generator(0).standard_normal(len(x))
    v /= np.linalg.norm(v)
    v += sum(u / np.linalg.norm(u) for u in (g, x) if np.any(u))
    slope, seen = float(g @ v), math.nan
    size = abs(at) + float(g @ g) / L + L * float(x @ x)
    bends: list[float] = []
    for eps in [SINGLE] if single or _is_single(g) or _is_single(at) else [DOUBLE, SINGLE]:
        if extra.left < 2 or not 0 < size < math.inf:
            return ""
        h, noise = math.cbrt(eps) * math.sqrt(size / L), VALUE_ULPS * eps * size
        up, down = extra.of(value, x + h * v), extra.of(value, x - h * v)
        low, high = sorted([(at - down) / h, (up - at) / h])
        slack, bend = high - low + noise / h, (up - 2 * at + down) / h**2
        # f may be in single precision and not say so: what only the small h shows counts if f is as smooth as for a
        # large one
        is_outside = slope < low - slack or slope > high + slack
        if not is_outside and not (bends and abs(bend - bends[0]) <= SAME_BEND * bend):
            return ""
        seen = (low + high) / 2 if is_outside else seen
        bends.append(bend)
    sign = ", as if its sign were wrong" if abs(slope + seen) < 0.1 * abs(slope) else ""
    return (
        f"the gradient of f does not belong to its value: in one direction the slope is {seen:.6g} by the values "
        f"and {slope:.6g} by the gradient{sign}."
    )


def _wrong_prox(extra: _Extra, run: Descent, at: float | None) -> str:
    """What contradicts the last prox of the iterates; ``at`` is psi there, if it is known."""
    task, call = run.task, run.solo.call
    if call is None or not all(np.isfinite(v).all() for v in call[:2]):
        return ""
    (w, u, t), off, value = call, run.solo.call_error, _psi_of(run)
    s, moved, size = (w - u) / t, float(np.linalg.norm(w - u)), float(np.linalg.norm(u))
    at = extra.of(value, u) if at is None else at
    if at == math.inf and run.solo.inner is None and not _at_edge(extra, run, u):
        return _not_finite(task.psi, at)
    if not math.isfinite(at):
        return ""
    eps = 10 * (SINGLE if _is_single(u) else DOUBLE)
    for along in _directions(u, w - u, None if run.solo.earlier is None else run.solo.earlier[1]):
        length = float(np.linalg.norm(along))
        v, h = along / length, PROX_STEP * length
        slope, seen = float(s @ v), (extra.of(value, u + h * v) - at) / h
        slack = PROX_SLACK * max(abs(slope), abs(seen)) + SMALL_SLOPE * moved / t
        slack += off / t + 2 * (moved / t) * off / h
        slack += eps * (float(np.linalg.norm(w)) + size) / t + 10 * SINGLE * abs(at) / h
        if seen < slope - slack:
            return (
                f"the prox of {name_of(task.psi)} does not belong to its value: in one direction the slope of psi is "
                f"{seen:.6g} by the values, and at least {slope:.6g} by the prox with step {t:.3g}."
            )
    return ""


def _directions(u: Array, step: Array, earlier: Array | None) -> list[Array]:
    """Two directions for psi at u: back and forth along u, or at a corner what the prox has taken away."""
    # entries that stay where they are may be at a kink or a bound
    free = u if earlier is None else np.where(u == earlier, 0.0, u)
    if np.linalg.norm(free) > 1e-6 * np.linalg.norm(step):
        return [free, -free]
    pair = [np.maximum(step, 0.0), np.minimum(step, 0.0)] if np.any(step) else [u, -u]
    return [v for v in pair if np.any(v)]


def _at_edge(extra: _Extra, run: Descent, x: Array) -> bool:
    """Whether psi is finite a little further inside: rounding has put x out of a set whose edge it is on."""
    assert run.solo.call is not None
    w, u, _ = run.solo.call
    moved = float(np.linalg.norm(w - u))
    if moved == 0:
        return False
    inwards = (EDGE * max(moved, float(np.linalg.norm(x))) / moved) * (u - w)
    return math.isfinite(extra.of(_psi_of(run), x + inwards))


def _psi_of(run: Descent) -> Callable[[Array], float]:
    """psi of a flat vector, before D."""
    psi, shape = run.task.psi, run.solo.shape
    return lambda x: float(psi(x if shape is None else x.reshape(shape)))


def _not_finite(psi: Any, value: float) -> str:
    return (
        f"{name_of(psi)} is {value} at a point that its own prox returned; mend one of the two, or allow for rounding "
        "where psi tells inside from outside."
    )


def _is_single(v: Array | float) -> bool:
    """Whether these numbers could come from single precision."""
    return bool(np.array_equal(np.asarray(v, dtype=np.float32), v))
