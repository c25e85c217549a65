"""Total variation: exact in one dimension, by an inner solver with a duality-gap certificate in two.

Where the same function h of one number is added to every coordinate (here ``l1 |x_i|`` and the bounds), the prox of the
sum is the prox of h after that of an *anisotropic* total variation: h's prox is monotone, so it keeps the order of any
two coordinates or makes them equal, and a subgradient remains one (Friedman, Hastie, Hoefling and Tibshirani, "Pathwise
coordinate optimization", 2007, for l1). The isotropic one has no such property, so its inner solver includes h.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from proxskip.prox.contract import Iterative, StoppingRule
from proxskip.prox.parts import INSIDE, Operator, as_point, check_sizes, matrix_shape, max_abs, shaped, soft_threshold
from proxskip.support.compiling import compiling
from proxskip.support.cores import available_cores
from proxskip.types import Array, InputError

MIN_PIXELS_FOR_THREADS = 1 << 15
"""From this many pixels on, the rows are divided among threads."""


# kernels are imported and compiled at the first prox that needs them
@cache
def _exact() -> Any:
    """The kernel of one dimension."""
    from proxskip.prox import tv_kernels

    with compiling(tv_kernels.tv1d):
        tv_kernels.tv1d(np.zeros(0), 1.0, *np.zeros((6, 1)))
    return tv_kernels


@cache
def _isotropic() -> Any:
    """The kernels of ``TV2D._gradients``."""
    from proxskip.prox import tv_kernels

    x = np.zeros((1, 1))
    row = np.zeros(1)
    duals = np.zeros((6, 1, 1))
    with compiling(tv_kernels.iso_step):
        tv_kernels.iso_gap(x, 1.0, 0.0, 0.0, 0.0, *duals[:3], row, 0, 0)
        tv_kernels.iso_step(x, 1.0, 0.0, 0.0, 0.0, 0.0, *duals, row, 0, 0)
    return tv_kernels


@cache
def _anisotropic() -> Any:
    """The kernels of ``TV2D._anisotropic``."""
    from proxskip.prox import tv_kernels

    x, row = np.zeros((1, 1)), np.zeros(1)
    with compiling(tv_kernels.rows):
        tv_kernels.rows(x, x, 1.0, x, 0, 0)
        tv_kernels.columns(x, x, 1.0, x, x, x, 0.0, row, 0, 0)
        tv_kernels.rows_gap(x, x, 1.0, row, 0, 0)
    return tv_kernels


def _bounded(psi: TV1D | TV2D) -> None:
    check_sizes(psi, lam=psi.lam, l1=psi.l1)
    if not (psi.lo <= psi.hi and psi.lo < math.inf and psi.hi > -math.inf):
        raise InputError(f"{type(psi).__name__} needs lo <= hi, with numbers between, not {psi.lo} and {psi.hi}.")


def _pointwise(psi: TV1D | TV2D, x: Array) -> float:
    """``l1 sum_i |x_i|``; infinity outside the bounds."""
    outside = np.max(np.abs(x - np.clip(x, psi.lo, psi.hi)), initial=0.0)
    return float(psi.l1 * np.abs(x).sum()) if outside <= INSIDE * max_abs(x) else math.inf


def _pointwise_prox(psi: TV1D | TV2D, x: Array, t: float) -> Array:
    return np.clip(soft_threshold(x, t * psi.l1), psi.lo, psi.hi)


@dataclass(frozen=True, slots=True)
class TV1D(Operator):
    """``lam sum_i |x_{i+1} - x_i| + l1 sum_i |x_i|`` within bounds: exact by dynamic programming (Johnson, 2013).

    Args:
        lam: the weight of the total variation.
        l1: the weight of the absolute values.
        lo, hi: the bounds.
    """

    lam: float
    l1: float = 0.0
    lo: float = -math.inf
    hi: float = math.inf

    def __post_init__(self) -> None:
        _bounded(self)

    def __call__(self, x: Array) -> float:
        x = np.asarray(x, dtype=np.float64)
        return float(self.lam * np.abs(np.diff(np.ravel(x))).sum()) + _pointwise(self, x)

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        if not np.isfinite(x).all():
            return np.full_like(x, np.nan)
        flat, n = np.ascontiguousarray(x).ravel(), x.size
        # The queue holds the place of each knot and its jumps in slope and intercept.
        y = np.empty(n)
        queue = np.empty((3, 2 * n + 2))
        ends = np.empty((2, n))
        _exact().tv1d(flat, t * self.lam, y, *queue, *ends)
        return _pointwise_prox(self, y, t).reshape(x.shape)


class TV2D(Iterative):
    """``lam`` times the total variation of x as an image of this shape, with forward differences; inexact prox.

    Isotropic: the Euclidean norms of the pairs of differences, by accelerated projected gradients on the dual (Beck and
    Teboulle, "Fast gradient-based algorithms for constrained total variation image denoising", 2009). Anisotropic: the
    differences' absolute values, by exact one-dimensional solves along all rows and all columns in turn, accelerated
    (Chambolle and Pock, "A remark on accelerated block coordinate descent", 2015). Both restart when the momentum
    points uphill (O'Donoghue and Candes, 2015), and stop at the tolerance, at ``max_iterations``, or when the gap no
    longer falls: rounding hides errors below about ``1e-8 sqrt(t psi(y))``.

    Args:
        lam: the weight.
        shape: of the image.
        isotropic: which of the two.
        tolerance: the accuracy that a call asks for.
        max_iterations: of one call.
        warm: start from the last call's solution.
        l1, lo, hi: add ``l1 sum_i |x_i|`` and the bounds ``lo <= x <= hi``.
        threads: for large images, one per core unless given; the result does not depend on it.
    """

    def __init__(
        self,
        lam: float,
        shape: tuple[int, int],
        isotropic: bool = True,
        l1: float = 0.0,
        lo: float = -math.inf,
        hi: float = math.inf,
        tolerance: float = 1e-6,
        max_iterations: int = 10_000,
        warm: bool = True,
        threads: int | None = None,
    ):
        check_sizes(self, lam=lam, l1=l1)
        self.lam = float(lam)
        self.shape = matrix_shape(self, shape)
        self.isotropic = bool(isotropic)
        self.l1 = float(l1)
        self.lo = float(lo)
        self.hi = float(hi)
        self.threads = threads
        _bounded(self)
        self._begin(tolerance, max_iterations, warm)

    def __repr__(self) -> str:
        kind = "isotropic" if self.isotropic else "anisotropic"
        extras = (("l1", self.l1, 0.0), ("lo", self.lo, -math.inf), ("hi", self.hi, math.inf))
        more = "".join(f", {name}={value}" for name, value, default in extras if value != default)
        return f"TV2D({self.lam}, {self.shape}, {kind}{more}, tolerance={self.tolerance})"

    def __call__(self, x: Array) -> float:
        shaped(self, x, self.shape)
        image = np.reshape(x, self.shape)
        if self.isotropic:  # with differences of zero in the last row and the last column
            down, right = np.diff(image, axis=0, append=image[-1:]), np.diff(image, axis=1, append=image[:, -1:])
            variation = float(np.hypot(down, right).sum())
        else:
            variation = float(np.abs(np.diff(image, axis=0)).sum() + np.abs(np.diff(image, axis=1)).sum())
        return self.lam * variation + _pointwise(self, x)

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        shaped(self, x, self.shape)
        image = np.ascontiguousarray(x.reshape(self.shape))
        if not np.isfinite(image).all():
            raise InputError("TV2D was given an image with numbers that are not finite.")
        solve = self._gradients if self.isotropic else self._anisotropic
        return solve(image, t).reshape(x.shape)

    def _gradients(self, x: Array, t: float) -> Array:
        # (p, q): the dual of the vertical and horizontal differences; (r, s): the same after the momentum step.
        m = self.shape[0]
        lam = t * self.lam
        l1 = t * self.l1
        p, q = self._started(2, t)
        r = p.copy()
        s = q.copy()
        turn = np.empty(m)
        gap = np.empty(m)
        y = np.empty_like(x)
        r_new, s_new = np.empty_like(p), np.empty_like(q)
        spread, compiled = self._spread, _isotropic()
        rule, k = StoppingRule(self.tolerance, self.max_iterations), 0
        h = (l1, self.lo, self.hi)
        while True:
            if rule.iterations % 10 == 0:  # the gap costs as much as a step
                spread(m, compiled.iso_gap, x, lam, *h, p, q, y, gap)
                if rule.done(math.sqrt(gap.sum()), y):
                    break
            spread(m, compiled.iso_step, x, lam, *h, k / (k + 3.0), p, q, r, s, r_new, s_new, turn)
            r, s, r_new, s_new = r_new, s_new, r, s
            k = self._turned(turn, ((r, p), (s, q)), k)
            rule.iterations += 1
        return self._ended(rule, (p, q), t)

    def _anisotropic(self, x: Array, t: float) -> Array:
        # c: the dual of the columns' part, ahead: the same after the momentum step; u: the dual of the rows' part.
        (m, n), lam = self.shape, t * self.lam
        (c,) = self._started(1, t)
        ahead = c.copy()
        u = np.empty_like(x)
        y = np.empty_like(x)
        turn = np.empty(n)
        gap = np.empty(m)
        spread, compiled = self._spread, _anisotropic()
        rule, k = StoppingRule(self.tolerance, self.max_iterations), 0
        while True:
            spread(m, compiled.rows, x, ahead, lam, u)
            spread(n, compiled.columns, x, u, lam, y, c, ahead, k / (k + 3.0), turn)
            spread(m, compiled.rows_gap, y, u, lam, gap)
            rule.iterations += 1
            if rule.done(math.sqrt(gap.sum()), y):
                break
            k = self._turned(turn, ((ahead, c),), k)
        return _pointwise_prox(self, self._ended(rule, (c,), t), t)

    def _started(self, count: int, t: float) -> tuple[Array, ...]:
        """The dual variables to start from: those of the last call, scaled to this step t, or zero."""
        if self.warm and self._kept is not None:
            return tuple(t * p for p in self._kept)
        return tuple(np.zeros(self.shape) for _ in range(count))

    def _turned(self, turn: Array, pairs: tuple[tuple[Array, Array], ...], k: int) -> int:
        """The next k of the momentum k/(k + 3); 0, a restart, when the momentum points uphill."""
        if turn.sum() <= 0:
            return k + 1
        for ahead, here in pairs:
            ahead[:] = here
        return 0

    def _ended(self, rule: StoppingRule, dual: tuple[Array, ...], t: float) -> Array:
        self._kept = tuple(p / t for p in dual) if self.warm else None
        self._record(rule.accuracy, rule.iterations)
        return rule.y

    def _spread(self, count: int, kernel: Callable[..., Any], *arguments: object) -> None:
        """``kernel(*arguments, lo, hi)`` over ``range(count)``, on several threads for large images."""
        threads = self.threads or available_cores()
        if threads == 1 or math.prod(self.shape) < MIN_PIXELS_FOR_THREADS:
            kernel(*arguments, 0, count)
            return
        # The kernels write disjoint rows, so the threads need no lock, and their number does not matter.
        ends = np.linspace(0, count, threads + 1).astype(int).tolist()
        list(_pool(os.getpid(), threads).map(partial(kernel, *arguments), ends[:-1], ends[1:]))


@cache
def _pool(pid: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process, since threads do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="proxskip-tv")
