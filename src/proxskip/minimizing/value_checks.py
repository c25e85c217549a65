"""Whether a user's prox belongs to its value: psi at the last prox of the run, and at a few points around it.

For u = prox_{t psi}(w), s = (w - u)/t is a subgradient of psi at u. In every direction v and for every h > 0 then

    <s, v>  <=  (psi(u + h v) - psi(u)) / h.

Four directions are tried: along u and against it, where a norm is linear and zeros stay zero; along what pushes the
entries that the prox holds in their place (at zero, or at a bound), and along the strongest of these pushes alone. What
the library has itself is trusted.
The gradient of a user's f is compared with its value at the start of a run, see ``problems.gradient_check``.
"""

from __future__ import annotations

import math

import numpy as np

from proxskip.minimizing.descent import Descent, Point
from proxskip.prox import ProxWarning
from proxskip.prox.parts import is_ours, name_of
from proxskip.types import Array, GradientWarning, Prox

DOUBLE, SINGLE = float(np.finfo(np.float64).eps), float(np.finfo(np.float32).eps)
PROX_STEP = 0.01
"""h, relative to |u|."""
PROX_SLACK = 0.05
"""By how much (relative) a slope of psi may differ: a prox may be inexact and not say so."""
SMALL_SLOPE = 1e-4
"""A slope this small beside the whole subgradient proves nothing, since an inexact prox could explain it."""
EDGE = 1e-6
"""How far inside (relative to x) a set is tried where x is outside."""

Fault = tuple[str, type[UserWarning]]


def fault(run: Descent, point: Point, f_value: float, psi_value: float) -> Fault | None:
    """A sentence on what contradicts its own values, with the kind of warning; None if nothing does."""
    if not math.isfinite(f_value):
        return f"f is {f_value} at the x that is returned; its value must be finite there.", GradientWarning
    with np.errstate(all="ignore"):
        if not math.isfinite(psi_value) and not _may_be_outside(run, point.x, psi_value):
            return _not_finite(run.task.psi, psi_value), ProxWarning
        checked = run.solo.checked
        if checked is None or checked.said or is_ours(checked.psi):
            return None
        sentence = _wrong_prox(run)
    return None if sentence is None else (sentence, ProxWarning)


def _may_be_outside(run: Descent, x: Array, value: float) -> bool:
    """Whether psi may be infinite at the x that is returned."""
    if value != math.inf:
        return False
    # a set that is met only up to a tolerance, by an inner solver or as D x, is missed by about that much
    return run.task.D is not None or run.solo.inner is not None or run.solo.call is None or _is_at_edge(run, x)


def _wrong_prox(run: Descent) -> str | None:
    """What contradicts the last prox of the iterates."""
    call = run.solo.call
    if call is None or not all(np.isfinite(v).all() for v in call[:2]):
        return None
    w, u, t = call
    at = _psi(run, u)
    if at == math.inf and run.solo.inner is None and not _is_at_edge(run, u):
        return _not_finite(run.task.psi, at)
    if not math.isfinite(at):
        return None
    s = (w - u) / t
    moved = float(np.linalg.norm(w - u))
    size = float(np.linalg.norm(u))
    off, h = run.solo.call_error, PROX_STEP * (size or moved)
    unit = 10 * (SINGLE if _is_single(u) else DOUBLE)
    for v in _directions(u, s, run.solo.earlier):
        slope, seen = float(s @ v), (_psi(run, u + h * v) - at) / h
        relative = PROX_SLACK * max(abs(slope), abs(seen)) + SMALL_SLOPE * moved / t
        inexact = off / t + 2 * (moved / t) * off / h
        rounded = unit * (float(np.linalg.norm(w)) + size) / t + 10 * SINGLE * abs(at) / h
        # what moves the certificate by less than tol does not matter
        if seen < slope - relative - inexact - rounded - run.tol:
            return (
                f"the prox of {name_of(run.task.psi)} does not belong to its value: in one direction the slope of psi "
                f"is {seen:.6g} by the values, and at least {slope:.6g} by the prox with step {t:.3g}."
            )
    return None


def _directions(u: Array, s: Array, earlier: tuple[Array, Array, float] | None) -> list[Array]:
    """Unit vectors along u, against it, along s where u is held in its place, and along the largest entry of that."""
    # entries that stay where they are may be at a kink or a bound, where the two sides differ
    held = u == 0.0 if earlier is None else u == earlier[1]
    free = np.where(held, 0.0, u)
    pushed = np.where(held | (u == 0.0), s, 0.0)
    strongest = np.zeros_like(s)
    j = int(np.argmax(np.abs(pushed)))
    strongest[j] = pushed[j]
    lengths = [(v, float(np.linalg.norm(v))) for v in (free, -free, pushed, strongest)]
    return [v / length for v, length in lengths if length > 0.0]


def _is_at_edge(run: Descent, x: Array) -> bool:
    """Whether psi is finite a little further inside: rounding has put x out of a set whose edge it is on."""
    assert run.solo.call is not None
    w, u, _ = run.solo.call
    moved = float(np.linalg.norm(w - u))
    if moved == 0:
        return False
    inwards = (EDGE * max(moved, float(np.linalg.norm(x))) / moved) * (u - w)
    return math.isfinite(_psi(run, x + inwards))


def _psi(run: Descent, x: Array) -> float:
    """psi at a flat vector, before D; NaN, which proves nothing, where it cannot be computed."""
    try:
        return float(run.task.psi(x if run.solo.shape is None else x.reshape(run.solo.shape)))
    except (ArithmeticError, ValueError):
        return math.nan


def _not_finite(psi: Prox, value: float) -> str:
    return (
        f"{name_of(psi)} is {value} at a point that its own prox returned; correct one of the two, or allow for "
        "rounding where psi tells inside from outside."
    )


def _is_single(v: Array) -> bool:
    """Whether these numbers could come from single precision."""
    return bool(np.array_equal(v.astype(np.float32), v))
