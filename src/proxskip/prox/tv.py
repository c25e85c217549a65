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

from proxskip.cores import available_cores
from proxskip.prox import tv_kernels
from proxskip.prox.contract import Iterative, StoppingRule
from proxskip.prox.parts import INSIDE, Operator, as_point, at_least_zero, matrix_shape, max_abs, shaped, soft_threshold
from proxskip.types import Array, InputError

MIN_PIXELS_FOR_THREADS = 1 << 15
"""From this many pixels on, the rows are divided among threads."""
MIN_PIXELS_FOR_SPLITTING = 1000
"""Images with fewer are solved by projected gradients at once."""
RHO, RELAX = 3.0, 1.8
"""The splitting's first penalty, which no unit of x changes, and its overrelaxation.

Below 2 it is proved for exact linear solves (Eckstein and Bertsekas, 1992); with sweeps the gap alone vouches for it.
"""
RHO_MAX = 100.0
"""The splitting's largest penalty: one sweep solves a system with a larger one too badly."""


def _bounded(psi: TV1D | TV2D) -> None:
    at_least_zero(psi, lam=psi.lam, l1=psi.l1)
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
    """``lam sum_i |x_{i+1} - x_i| + l1 sum_i |x_i|`` within bounds: exact by dynamic programming (Johnson, 2013)."""

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
        y, queue, ends = np.empty(n), np.empty((3, 2 * n + 2)), np.empty((2, n))
        tv_kernels.tv1d(flat, t * self.lam, y, *queue, *ends)
        return _pointwise_prox(self, y, t).reshape(x.shape)


class TV2D(Iterative):
    """``lam`` times the total variation of x as an image of this shape, with forward differences; inexact prox.

    Isotropic: the Euclidean norms of the pairs of differences, by Douglas-Rachford splitting with a red-black sweep for
    its linear system (Bredies and Sun, "Preconditioned Douglas-Rachford algorithms for TV- and TGV-regularized
    variational imaging problems", 2015); with l1 or bounds, or inside a ``Sum``, by accelerated projected gradients on
    the dual (Beck and Teboulle, "Fast gradient-based algorithms for constrained total variation image denoising",
    2009). Anisotropic: the differences' absolute values, by exact one-dimensional solves along all rows and all columns
    in turn, accelerated (Chambolle and Pock, "A remark on accelerated block coordinate descent", 2015). The last two
    restart when the momentum points uphill (O'Donoghue and Candes, 2015). All stop at the tolerance, at
    ``max_iterations``, or when the gap no longer falls: rounding hides errors below about ``1e-8 sqrt(t psi(y))``.

    Args:
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
        self.lam, self.shape, self.isotropic = float(lam), matrix_shape(self, shape), bool(isotropic)
        self.l1, self.lo, self.hi = float(l1), float(lo), float(hi)
        self.threads = threads
        # the splitting takes neither l1 nor bounds, and does not pay on small images
        large = math.prod(self.shape) >= MIN_PIXELS_FOR_SPLITTING
        self._split = large and self.l1 == 0 and self.lo == -math.inf and self.hi == math.inf
        _bounded(self)
        self._begin(tolerance, max_iterations, warm)

    def __repr__(self) -> str:
        kind = "isotropic" if self.isotropic else "anisotropic"
        more = "".join(f", {k}={v}" for k, v, no in self._extras() if v != no)
        return f"TV2D({self.lam}, {self.shape}, {kind}{more}, tolerance={self.tolerance})"

    def _extras(self) -> tuple[tuple[str, float, float], ...]:
        return ("l1", self.l1, 0.0), ("lo", self.lo, -math.inf), ("hi", self.hi, math.inf)

    def _forget(self) -> None:
        self._dual: tuple[Array, ...] | None = None
        self._rho = RHO

    def __call__(self, x: Array) -> float:
        shaped(self, x, self.shape)
        image = np.reshape(x, self.shape)
        down, right = np.diff(image, axis=0), np.diff(image, axis=1)
        if self.isotropic:
            both = np.zeros((2, *self.shape))  # the differences, zero in the last row and the last column
            both[0, :-1], both[1, :, :-1] = down, right
            variation = float(np.hypot(*both).sum())
        else:
            variation = float(np.abs(down).sum() + np.abs(right).sum())
        return self.lam * variation + _pointwise(self, x)

    def prox(self, x: Array, t: float) -> Array:
        x = as_point(x, t)
        shaped(self, x, self.shape)
        image = np.ascontiguousarray(x.reshape(self.shape))
        if not np.isfinite(image).all():
            raise InputError("TV2D was given an image with numbers that are not finite.")
        if not self.isotropic:
            return self._anisotropic(image, t).reshape(x.shape)
        if self._split:
            y = self._splitting(image, t)
            assert self.last is not None
            # where rounding ends it early, the gap of the gradients' own point goes lower
            if self.last.reached or self.last.iterations >= self.max_iterations:
                return y.reshape(x.shape)
        return self._gradients(image, t).reshape(x.shape)

    def _as_part(self) -> None:
        # The splitting certifies the distance of y(p, q) with the help of its other point, which a Sum does not see;
        # the gap of y(p, q) itself falls later.
        self._split = False

    def _splitting(self, x: Array, t: float) -> Array:
        # (p, q): the dual of the vertical and horizontal differences; (g, h): see the kernel; y: framed by zeros.
        (m, n), lam, spread = self.shape, t * self.lam, self._spread
        p, q = self._started(2, t)
        y, b, primal, parts = np.zeros((m + 2, n + 2)), np.empty_like(x), np.empty_like(x), np.empty((2, m))
        rule, rho = StoppingRule(self.tolerance, self.max_iterations), self._rho
        weight, (g, h) = _inverse_diagonal(self.shape, rho), _matched(x, p, q, rho, y)
        while True:
            if rule.iterations % 10 == 0:
                spread(m, tv_kernels.dr_gap, x, lam, p, q, y, primal, *parts)
                flat, apart = parts.sum(axis=1).tolist()
                # The squared errors of y and of y(p, q) are together at most 2 (flat + apart), so the middle of the two
                # is within the root of flat + apart/2. What is returned is y(p, q), half their distance away from it:
                # x - y(p, q) = D'(p, q) is in the dual ball at any tolerance.
                if rule.done(math.sqrt(flat + 0.5 * apart) + math.sqrt(0.5 * apart), primal):
                    break
                rho, before = _balanced(rho, flat, apart, rule.iterations), rho
                if rho != before:
                    for dual, reflected in ((p, g), (q, h)):
                        reflected[:] = (rho / before) * (reflected + dual) - dual
                    weight = _inverse_diagonal(self.shape, rho)
            # a symmetric red-black sweep stands for the solution of the linear system
            spread(m, tv_kernels.dr_red, x, g, h, rho, weight, b, y)
            spread(m, tv_kernels.dr_sweep, b, rho, weight, 1, y)
            spread(m, tv_kernels.dr_sweep, b, rho, weight, 0, y)
            spread(m, tv_kernels.dr_dual, y, lam, rho, RELAX, p, q, g, h)
            rule.iterations += 1
        self._rho = rho if self.warm else RHO
        return self._ended(rule, (p, q), t)

    def _gradients(self, x: Array, t: float) -> Array:
        # (p, q): the dual of the vertical and horizontal differences; (r, s): the same after the momentum step.
        m, lam, l1 = self.shape[0], t * self.lam, t * self.l1
        p, q = self._started(2, t)
        r, s, turn, gap, y = p.copy(), q.copy(), np.empty(m), np.empty(m), np.empty_like(x)
        r_new, s_new = np.empty_like(p), np.empty_like(q)
        rule, k, spread = StoppingRule(self.tolerance, self.max_iterations), 0, self._spread
        h = (l1, self.lo, self.hi)
        while True:
            if rule.iterations % 10 == 0:  # the gap costs as much as a step
                spread(m, tv_kernels.iso_gap, x, lam, *h, p, q, y, gap)
                if rule.done(math.sqrt(gap.sum()), y):
                    break
            spread(m, tv_kernels.iso_step, x, lam, *h, k / (k + 3.0), p, q, r, s, r_new, s_new, turn)
            r, s, r_new, s_new = r_new, s_new, r, s
            k = self._turned(turn, ((r, p), (s, q)), k)
            rule.iterations += 1
        return self._ended(rule, (p, q), t)

    def _anisotropic(self, x: Array, t: float) -> Array:
        # c: the dual of the columns' part, ahead: the same after the momentum step; u: the dual of the rows' part.
        (m, n), lam = self.shape, t * self.lam
        (c,) = self._started(1, t)
        ahead, u, y, turn, gap = c.copy(), np.empty_like(x), np.empty_like(x), np.empty(n), np.empty(m)
        rule, k, spread = StoppingRule(self.tolerance, self.max_iterations), 0, self._spread
        while True:
            spread(m, tv_kernels.rows, x, ahead, lam, u)
            spread(n, tv_kernels.columns, x, u, lam, y, c, ahead, k / (k + 3.0), turn)
            spread(m, tv_kernels.rows_gap, y, u, lam, gap)
            rule.iterations += 1
            if rule.done(math.sqrt(gap.sum()), y):
                break
            k = self._turned(turn, ((ahead, c),), k)
        return _pointwise_prox(self, self._ended(rule, (c,), t), t)

    def _started(self, count: int, t: float) -> tuple[Array, ...]:
        """The dual variables to start from: those of the last call, scaled to this step t, or zero."""
        if self.warm and self._dual is not None:
            return tuple(t * p for p in self._dual)
        return tuple(np.zeros(self.shape) for _ in range(count))

    def _turned(self, turn: Array, pairs: tuple[tuple[Array, Array], ...], k: int) -> int:
        """The next k of the momentum k/(k + 3); 0, a restart, when the momentum points uphill."""
        if turn.sum() <= 0:
            return k + 1
        for ahead, here in pairs:
            ahead[:] = here
        return 0

    def _ended(self, rule: StoppingRule, dual: tuple[Array, ...], t: float) -> Array:
        self._dual = tuple(p / t for p in dual) if self.warm else None
        self._record(rule.accuracy, rule.iterations)
        return rule.y

    def _spread(self, count: int, kernel: Callable[..., Any], *arguments: Any) -> None:
        """``kernel(*given, lo, hi)`` over ``range(count)``, on several threads for large images."""
        threads = self.threads or available_cores()
        if threads == 1 or math.prod(self.shape) < MIN_PIXELS_FOR_THREADS:
            kernel(*arguments, 0, count)
            return
        # The kernels write disjoint rows, so the threads need no lock, and their number does not matter.
        ends = np.linspace(0, count, threads + 1).astype(int).tolist()
        list(_pool(os.getpid(), threads).map(partial(kernel, *arguments), ends[:-1], ends[1:]))


def _matched(x: Array, p: Array, q: Array, rho: float, y: Array) -> tuple[Array, Array]:
    """y <- y(p, q) = x - D'(p, q) inside its frame; returns the (g, h) that make a solution (p, q) a fixed point."""
    inside = y[1:-1, 1:-1]
    inside[:] = x + p + q
    inside[1:] -= p[:-1]
    inside[:, 1:] -= q[:, :-1]
    g, h = -p, -q
    g[:-1] += rho * np.diff(inside, axis=0)
    h[:, :-1] += rho * np.diff(inside, axis=1)
    return g, h


def _inverse_diagonal(shape: tuple[int, int], rho: float) -> Array:
    """1 over the diagonal of I + rho D'D along a row with 0, 1 or 2 rows beside it."""
    column = np.arange(shape[1])
    beside = (column > 0).astype(float) + (column < shape[1] - 1)
    diagonal: Array = 1.0 + rho * (beside + np.arange(3.0)[:, None])
    return 1.0 / diagonal


def _balanced(rho: float, flat: float, apart: float, iterations: int) -> float:
    """The next penalty: a larger one shrinks the gap's first part faster, a smaller one its second.

    The changes shrink and their sum is finite, so that the penalty settles, as a proof for a fixed one needs.
    """
    if iterations == 0:
        return rho
    factor = 1.0 + 0.3 / (1.0 + (iterations / 400) ** 2)
    return min(rho * factor, RHO_MAX) if flat > 4 * apart else rho / factor


@cache
def _pool(pid: int, threads: int) -> ThreadPoolExecutor:
    """One pool per process, since threads do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="proxskip-tv")
