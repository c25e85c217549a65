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
    task, solo = run.task, run.solo
    if not math.isfinite(f_value):
        return f"f is {f_value} at the x that is returned; its value must be finite there.", GradientWarning
    # a set that is met only up to a tolerance, by an inner solver or as D x, may have the value infinity
    up_to_tol = task.D is not None or solo.inner is not None or solo.call is None
    if not (math.isfinite(psi_value) or (psi_value == math.inf and (up_to_tol or _at_edge(run, point.x)))):
        return _not_finite(task.psi, psi_value), ProxWarning
    with np.errstate(all="ignore"):
        if not _is_ours(task.f.of) and (sentence := _wrong_gradient(run)):
            return sentence, GradientWarning
        own_psi = solo.checked is not None and not solo.checked.said and not _is_ours(solo.checked.psi)
        if own_psi and (sentence := _wrong_prox(run)):
            return sentence, ProxWarning
    return None


def _try(value: Callable[[Array], Any], x: Array) -> float:
    """The value at x; NaN, which proves nothing, where it cannot be computed."""
    try:
        return float(value(x))
    except (ArithmeticError, ValueError):
        return math.nan


def _is_ours(part: Any) -> bool:
    """Whether f or psi, and all that psi is made of, are the library's own."""
    parts = part._parts() if isinstance(part, Operator) else ()
    ours = type(part).__module__.startswith("proxskip.") and not isinstance(part, Adapted)
    return ours and all(map(_is_ours, parts))


def _wrong_gradient(run: Descent) -> str:
    """What contradicts a gradient of the run; values in single precision need a larger h."""
    # soon after the start no part of f is zero by chance; where the gradient vanishes, so does an error in its scale
    x, g = run.early
    x, g = (x, g) if float(np.linalg.norm(g)) > VANISHED * run.first_gradient else run.first
    value, L = run.task.f.value, run.f.L or 1.0
    at = _try(value, x)
    # g finds a wrong sign or scale, x a term in |x|^2, and random numbers a coordinate that was forgotten
    v = generator(0).standard_normal(len(x))
    v /= np.linalg.norm(v)
    v += sum(u / np.linalg.norm(u) for u in (g, x) if np.any(u))
    slope, seen = float(g @ v), math.nan
    size = abs(at) + float(g @ g) / L + L * float(x @ x)
    bends: list[float] = []
    if not 0 < size < math.inf:
        return ""
    for eps in [SINGLE] if run.client.eps > DOUBLE or _is_single(g) or _is_single(at) else [DOUBLE, SINGLE]:
        h, noise = math.cbrt(eps) * math.sqrt(size / L), VALUE_ULPS * eps * size
        up, down = _try(value, x + h * v), _try(value, x - h * v)
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


def _wrong_prox(run: Descent) -> str:
    task, call = run.task, run.solo.call
    if call is None or not all(np.isfinite(v).all() for v in call[:2]):
        return ""
    (w, u, t), off, value = call, run.solo.call_error, _psi_of(run)
    s, moved, size = (w - u) / t, float(np.linalg.norm(w - u)), float(np.linalg.norm(u))
    at = _try(value, u)
    if at == math.inf and run.solo.inner is None and not _at_edge(run, u):
        return _not_finite(task.psi, at)
    if not math.isfinite(at):
        return ""
    eps = 10 * (SINGLE if _is_single(u) else DOUBLE)
    for along in _directions(u, w - u, None if run.solo.earlier is None else run.solo.earlier[1]):
        length = float(np.linalg.norm(along))
        v, h = along / length, PROX_STEP * length
        slope, seen = float(s @ v), (_try(value, u + h * v) - at) / h
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


def _at_edge(run: Descent, x: Array) -> bool:
    """Whether psi is finite a little further inside: rounding has put x out of a set whose edge it is on."""
    assert run.solo.call is not None
    w, u, _ = run.solo.call
    moved = float(np.linalg.norm(w - u))
    if moved == 0:
        return False
    inwards = (EDGE * max(moved, float(np.linalg.norm(x))) / moved) * (u - w)
    return math.isfinite(_try(_psi_of(run), x + inwards))


def _psi_of(run: Descent) -> Callable[[Array], float]:
    psi, shape = run.task.psi, run.solo.shape
    return lambda x: float(psi(x if shape is None else x.reshape(shape)))


def _not_finite(psi: Any, value: float) -> str:
    return (
        f"{name_of(psi)} is {value} at a point that its own prox returned; correct one, or let psi allow for rounding."
    )


def _is_single(v: Array | float) -> bool:
    """Whether these numbers could come from single precision."""
    return bool(np.array_equal(np.asarray(v, dtype=np.float32), v))
