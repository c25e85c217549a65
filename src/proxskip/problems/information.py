"""What the rows of all clients say about the coefficients: the Hessian of their likelihood, and what is wrong with it.

A model's f is a mean over its rows. Where clients are weighted by their rows, N f is minus the log likelihood of all N
rows, up to a constant: its Hessian is N times that of f, and a client's part of the score is -N w_i grad f_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from proxskip.problems import oracles
from proxskip.types import Array

MAX_DECREMENT = 1e-6
"""A point is the minimizer if Newton's step from it is at most so many standard errors long."""
MAX_MOVE = 1e-8
"""And if that step changes the log likelihood at zero, where no class is fitted yet, by at most so much.

Where classes can be separated, the gradient and the curvature both vanish, but the step stays as long as it was.
"""
ALMOST_THERE = 0.1
"""Standard errors to go from which on a vanishing curvature is not that of a bad start."""
NOTHING_LEFT = 1e-10
"""Steps that go on for ever gain e times less each time; at the end less than this share of a row."""
STEPS = 50
"""So many show whether they end."""
TINY_CURVATURE = 1e-3
"""A direction in which the curvature is below this share of that at zero has been fitted completely."""
INTERCEPT = "intercept"
"""The name of the column of ones that a model appends."""
SHOWN = 6
"""So many columns are named in a sentence."""


@dataclass(frozen=True)
class Information:
    """Minus the log likelihood of all rows together, up to second order: at x, and at zero for comparison.

    Args:
        x: the point.
        loss: there, without a penalty.
        gradient, hessian: there.
        first_hessian: at zero.
        rows: of all clients.
        names: of the columns, in the order of x.
        scores: the gradient of each client, one row each; None where only their sum is known.
    """

    x: Array
    loss: float
    gradient: Array
    hessian: Array
    first_hessian: Array
    rows: int
    names: tuple[str, ...]
    scores: Array | None = None


def measure(problem: Any, x: Array) -> Information:
    """One exchange: every client sends its value, gradient and Hessian at x, and its Hessian at zero."""
    N, zero = problem.N, np.zeros(problem.d)
    clients = [(N * w, oracles.in_double(f)) for w, f in zip(problem.weights, problem.clients, strict=True)]
    scores = np.stack([share * f.gradient(x) for share, f in clients])
    return Information(
        x,
        float(sum(share * (f.value(x) - penalty(f, x)) for share, f in clients)),
        scores.sum(axis=0),
        np.asarray(sum(share * f.hessian(x) for share, f in clients)),
        np.asarray(sum(share * f.hessian(zero) for share, f in clients)),
        N,
        oracles.names_of(problem.clients[0], problem.d),
        scores,
    )


def penalty(f: Any, x: Array) -> float:
    """The part of f(x) that is no likelihood."""
    return float(0.5 * np.sum(oracles.attribute(f, "reg", 0.0) * x * x))


def collinear(H: Array, names: Sequence[str]) -> str | None:
    """Which columns the rows cannot tell apart, in a sentence, from a pooled Hessian; None if they can."""
    scale = np.sqrt(np.maximum(np.diag(H), 0.0))
    if not scale.all():
        zero = listed([name for name, size in zip(names, scale, strict=True) if size == 0])
        return (
            f"the likelihood does not depend on {zero}: the values are all zero or, in a Cox model, alike among those "
            "at risk at every event"
        )
    C = H / np.outer(scale, scale)
    rounding = _rounding(len(H))
    if _least(C) > rounding:
        return None
    # the fewest of the first columns that depend on each other: the least eigenvalue only falls with more columns
    low, high = 1, len(H)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _least(C[:middle, :middle]) <= rounding else (middle + 1, high)
    v = np.abs(scipy.linalg.eigh(C[:low, :low])[1][:, 0])
    found = [name for name, share in zip(names, v, strict=False) if share > 1e-3 * v.max()]
    if len(found) == 2 and found[1] == INTERCEPT:
        return f"the column {found[0]} is constant, as the intercept is"
    return f"the columns {listed(found)} are collinear: one of them follows from the others"


def separated(told: Information, step: Array) -> str | None:
    """Which columns fit some rows completely, in a sentence; None if the curvature along the step does not say so."""
    length = step @ told.first_hessian @ step
    if not length > 0 or step @ told.hessian @ step > TINY_CURVATURE * length:
        return None
    # far out the step is rounding alone, but what grows has grown: a point tells more than the step from it
    grown = told.x if told.x.any() else step
    parts = np.abs(grown) * np.sqrt(np.diag(told.first_hessian))
    # of two classes both have the same share of the step, but for rounding: the first is named first
    share = np.round(parts / parts.max(), 6)
    found = [told.names[j] for j in np.argsort(-share, kind="stable") if share[j] > 0.1]
    without_error = "by which the outcomes of some rows are predicted without error"
    return f"the likelihood grows for ever along {listed(found)}, {without_error}"


def endless(problem: Any, x: Array, is_claimed: bool = True) -> str | None:
    """Along which columns Newton's steps from x never end, in a sentence; None if they end, or do not tell.

    One look does not show it: also on the way to the minimizer of rare outcomes or of a few rows on the wrong side,
    many steps are as long as the one before.

    Args:
        problem: whose rows are all here.
        x: the point.
        is_claimed: whether x is taken for the minimizer; else only a point that looks like one is worth the steps.
    """
    before = 0.0
    for _ in range(STEPS):
        with np.errstate(all="ignore"):
            told = measure(problem, x)
            step = newton_step(told)
            length, gain = (float(step @ H @ step) for H in (told.first_hessian, told.hessian))
        reason = separated(told, step)
        if not length > MAX_MOVE or not (is_claimed or (reason and gain < ALMOST_THERE**2)):
            return None
        if gain < NOTHING_LEFT and length > before / 2:
            return reason
        x, before = x + step, length
    return None


def newton_step(told: Information) -> Array:
    """The way from x to the minimizer of the quadratic model, also where the Hessian is singular."""
    curvature = np.diag(told.first_hessian)
    scale = np.divide(1.0, np.sqrt(curvature), out=np.zeros(len(curvature)), where=curvature > 0)
    units = np.outer(scale, scale)
    seen = _seen(told.first_hessian * units)
    hessian = seen.T @ (told.hessian * units) @ seen
    try:
        solved = scipy.linalg.cho_solve(scipy.linalg.cho_factor(hessian), seen.T @ (scale * told.gradient))
    except np.linalg.LinAlgError:  # along the flattest direction, at the length that columns in these units have
        solved = scipy.linalg.eigh(hessian)[1][:, 0]
    return np.asarray(-scale * (seen @ solved))


def _seen(H: Array) -> Array:
    """Directions that span those along which the likelihood changes: the columns, unless they depend on each other."""
    values, directions = scipy.linalg.eigh(H)
    is_seen = values > _rounding(len(H))
    return np.eye(len(H)) if is_seen.all() else np.asarray(directions[:, is_seen])


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    shown = [*names[:SHOWN], f"{len(names) - SHOWN} more"] if len(names) > SHOWN else list(names)
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _least(C: Array) -> float:
    return float(scipy.linalg.eigvalsh(C, subset_by_index=[0, 0])[0])


def _rounding(d: int) -> float:
    """Eigenvalues of a matrix with ones on its diagonal that may be zero."""
    return 100 * d * float(np.finfo(np.float64).eps)
