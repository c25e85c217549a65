"""One minimisation under way: a method on f + psi(D x), round by round, with a certificate at every prox."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from proxskip.engines.cpu.kernels import distance
from proxskip.problems.federated import Problem
from proxskip.results.trace import Trace
from proxskip.seam import Method
from proxskip.solo import functions
from proxskip.solo.exchange import Enough, Overflow, Solo, TooSteep, client
from proxskip.solo.functions import STEEPER, Linear, Smooth
from proxskip.types import Array, InputError, UnsafeStepWarning

COLUMNS = ("iteration", "ngrad", "passes", "nprox", "seconds", "certificate", "fun")
SLOW_CHECK = 10
"""Rounds between two certificates that cost a product with D each, where every round has a dual step."""
PASSES_BETWEEN = 10
"""Passes of minibatches between two certificates, which cost a pass each."""
BLOWN_UP = 1e8
STEEPEST = 1e12
"""How far backtracking may raise the first guess of L."""


class Point(NamedTuple):
    """An iterate and what is certified of it."""

    bound: float
    x: Array
    dual: Array | None
    iteration: int


@dataclass(frozen=True)
class Task:
    """f + psi(D x) as given: everything about the problem that does not change on the way."""

    f: Smooth
    psi: Any
    D: Linear | None
    shape: tuple[int, ...]
    batch: int | None = None
    D_norm: float | None = None

    def problem(self, f: Smooth) -> Problem:
        """What a method sees; with minibatches its L is A of expected smoothness."""
        A = f if self.batch is None else f.with_L(functions.expected_smoothness(f, self.batch).es_A)
        return Problem([A], psi=self.psi, D=self.D)  # type: ignore[list-item]

    def psi_at(self, x: Array) -> float:
        """psi(x) or psi(D x)."""
        if self.psi is None:
            return 0.0
        return float(self.psi(x.reshape(self.shape) if self.D is None else self.D @ x))

    def value(self, x: Array) -> float:
        """f(x) + psi(D x)."""
        return float(self.f.value(x) + self.psi_at(x))


class Descent:
    """The state between rounds. ``advance`` makes one; ``certify`` measures a point."""

    def __init__(
        self,
        task: Task,
        make: Callable[[Problem, Smooth], Method],
        x0: Array,
        *,
        seed: int = 0,
        dual: Array | None = None,
        tol: float = 0.0,
        inner_tol: float | None = None,
        threads: int | None = None,
        insist: bool = False,
    ) -> None:
        self.task, self.make, self.tol, self.insist = task, make, tol, insist
        f = task.f
        g = functions.well_mannered(f, x0)
        self.backtrack = f.L is None
        self.f = f if f.L is not None else f.with_L(functions.first_L(f, x0, g))
        self.first_L = self.f.L or 1.0
        self.client = client(self.f, task.batch, seed, self.backtrack, threads)
        self.client.calls, self.client.rows = 1 + self.backtrack, (1 + self.backtrack) * f.rows
        self.client.at, self.client.g = x0, g
        self.notes: list[str] = []
        self._set_method()
        self.solo = Solo(self.client, self.problem, task.shape, seed, inner_tol)
        self.solo.L, self.solo.hope = self.f.L or 0.0, max(float(np.linalg.norm(g)), tol)
        if self.solo.inner is not None:
            self.asked = self.solo.inner.tolerance
            self.solo.inner.reset()
            if inner_tol is not None:
                self.solo.inner.tolerance = inner_tol
        self.solo.watched = self.plain and task.batch is None and self.solo.inner is None
        self._begin(x0, dual)
        self.best = Point(math.inf, x0, dual, 0)
        self.bound = self.scale = math.inf
        self.seconds, self.began = 0.0, math.nan
        self.round = self.since = 0
        self.mark = (math.inf, 0, 0)
        self.checked_rows = 0.0
        self.trace = Trace(COLUMNS)

    def _set_method(self) -> None:
        self.problem = self.task.problem(self.f)
        self.method = self.make(self.problem, self.f)
        for note in self.method.check(self.problem, self.insist):
            if note not in self.notes:
                self.notes.append(note)
                warnings.warn(note, UnsafeStepWarning, stacklevel=5)
        self.plain = not self.method.remembers and self.task.D is None
        self.gamma = float(self.method.gamma)
        often = self.task.D is None or getattr(self.method, "p", 1.0) < 0.2
        self.check_every = 1 if often else SLOW_CHECK

    def _begin(self, x: Array, dual: Array | None) -> None:
        """Memory and server at x; ``dual`` is h, or y where there is a D."""
        D = self.task.D
        server = self.method.start(self.problem, x)
        memory = {k: np.zeros(self.f.d) for k in self.method.remembers}
        if dual is not None and D is not None:
            server["y"] = dual
        if "h" in memory and dual is not None:
            memory["h"] = dual if D is None else -np.asarray(D.T @ dual)
        if "x" in memory:
            memory["x"] = x
        self.server, self.solo.memory = server, memory

    # -- a round -------------------------------------------------------------------------------------------------------
    def advance(self) -> bool:
        """One round; True if a new bound on the certificate is known after it. To be called under ``np.errstate``."""
        self.began = time.perf_counter()
        try:
            known = self._round()
        except Overflow:
            self.bound, known = math.nan, True
        self.seconds, self.began = self.elapsed, math.nan
        return known

    @property
    def elapsed(self) -> float:
        """Seconds spent, those of a round under way included."""
        return self.seconds if math.isnan(self.began) else self.seconds + time.perf_counter() - self.began

    def _round(self) -> bool:
        server, memory, solo = self.server, self.solo.memory, self.solo
        solo.begin(self.round)
        try:
            self.server = self.method.round(server, solo)
            self.round += 1
            return self._due() and self._bound()
        except TooSteep as steep:
            self.server, solo.memory = server, memory
            self._take(steep.L)
        except Enough:
            self.server, solo.memory = server, memory
        return False

    def _take(self, seen: float) -> None:
        """Backtracking: a larger L, and on from the point before this round."""
        old = self.f.L or 1.0
        if old > STEEPEST * self.first_L:
            raise Overflow
        x, dual = self.x, self.dual
        self.f = self.f.with_L(max(1.5 * old, min(seen, 1e3 * old)))
        self.client.f, self.client.steepest, self.client.at = self.f, 0.0, None
        self._set_method()
        self.solo.problem, self.solo.L = self.problem, self.f.L or 0.0
        self._begin(x, dual)

    @property
    def x(self) -> Array:
        """The x after the last prox."""
        return self.solo.memory.get("x", self.server["x"])

    @property
    def dual(self) -> Array | None:
        """h, or with D the dual y; None for methods without."""
        return self.server["y"] if self.task.D is not None else self.solo.memory.get("h")

    def _due(self) -> bool:
        if self.task.batch is None:
            return self.round % self.check_every == 0
        return self.client.rows - self.checked_rows >= PASSES_BETWEEN * self.f.rows

    def _bound(self) -> bool:
        """|grad f(x) + s| at x, with what an inexact prox may have spoiled; for psi(D x) see ``solo``."""
        solo, x = self.solo, self.x
        if self.plain and solo.start is not None and self.task.psi is not None and self.task.batch is None:
            raw = distance(solo.start, x) / self.gamma
            if not math.isfinite(raw):
                solo.blame()
        else:
            if solo.watched:
                solo.blame()
            g = self.client.gradient(x)
            self.checked_rows = self.client.rows
            raw = self._residual(x, g)
        self.bound = raw + solo.spoiled
        self._judge(x)
        return True

    def _residual(self, x: Array, g: Array) -> float:
        s, D = self.solo.subgradient, self.task.D
        if D is None:
            v = g + s
            return math.sqrt(v.dot(v))
        y = self.server["y"]
        back = -self.solo.memory["h"] if "h" in self.solo.memory else np.asarray(D.T @ y)
        self._hold(y, back)
        primal, dual = g + back, (D @ x) - s
        return math.sqrt(primal.dot(primal)) + math.sqrt(dual.dot(dual))

    def _hold(self, y: Array, back: Array) -> None:
        """A norm of D that was given is held against |D'y|/|y|."""
        given, size = self.task.D_norm, float(np.linalg.norm(y))
        if given is not None and (seen := float(np.linalg.norm(back))) > given * size * (1 + 1e-9) and size > 0:
            raise InputError(functions.too_small(given, seen / size))

    def _judge(self, x: Array) -> None:
        """Keep the best point, and tie the next inner solve to how good this one is."""
        bound, solo = self.bound, self.solo
        if self.scale == math.inf:
            self.scale = bound
        self.since += 1
        if bound < 0.99 * self.mark[0]:
            self.mark, self.since = (bound, solo.iterations, solo.inner_failures), 0
        if bound < self.best.bound:
            self.best = Point(bound, x, self.dual, solo.iterations)
        if solo.inner is not None and math.isfinite(bound):
            solo.hope = max(bound - solo.spoiled, self.tol or 1e-300)
        if not self.backtrack and self.client.steepest > (L := self.f.L or 0.0) * (1 + STEEPER):
            self._warn_steep(L)

    def _warn_steep(self, L: float) -> None:
        if not any("steeper" in n for n in self.notes):
            self.notes.append(
                f"f is steeper than L = {L:.6g} says: between two iterates its curvature is {self.client.steepest:.6g}."
            )
            warnings.warn(self.notes[-1], UnsafeStepWarning, stacklevel=6)

    @property
    def diverged(self) -> bool:
        """No longer finite, or far beyond the start."""
        return math.isnan(self.bound) or (math.isfinite(self.scale) and self.bound > BLOWN_UP * max(self.scale, 1e-300))

    @property
    def stalled(self) -> bool:
        """No better over 30 bounds and, but for an inner solver at its end, some time that the theory is sure of."""
        _, then, failed = self.mark
        if self.since < 30:
            return False
        slowest = 20_000 if self.f.mu is None else 10.0 / (self.gamma * self.f.mu)
        enough = self.solo.iterations - then > max(slowest, 0.3 * self.solo.iterations)
        return enough or self.solo.inner_failures - failed >= 30

    # -- measures ------------------------------------------------------------------------------------------------------
    def certify(self, point: Point) -> float:
        """The certificate at a point, with one more prox; what its inexactness may hide is added.

        |x - prox_{gamma psi}(x - gamma grad f(x))|/gamma with gamma = 1/L, or for psi(D x)
        |grad f(x) + D'y| + |y - prox_{psi*}(y + D x)|.
        """
        start = time.perf_counter()
        x, y, D = point.x, point.dual, self.task.D
        with np.errstate(all="ignore"):
            g = self.client.gradient(x, hold=False)
            try:
                found = self._certificate(x, y, g, D)
            except Overflow:
                found = math.nan
        self.seconds += time.perf_counter() - start
        return found

    def _certificate(self, x: Array, y: Array | None, g: Array, D: Linear | None) -> float:
        if self.task.psi is None:
            return float(np.linalg.norm(g))
        if D is None:
            seen = self.client.steepest  # goes before what was said
            gamma = 1.0 / max(self.f.L or 1.0, seen if math.isfinite(seen) else 0.0)
            gap = x - self._last_prox(x - gamma * g, gamma, gamma)
            return (float(np.linalg.norm(gap)) + self._accuracy()) / gamma
        assert y is not None
        u = y + (D @ x)
        gap = y - (u - self._last_prox(u, 1.0, 1.0))
        return float(np.linalg.norm(g + D.T @ y)) + float(np.linalg.norm(gap)) + self._accuracy()

    def _last_prox(self, m: Array, t: float, scale: float) -> Array:
        inner = self.solo.inner
        if inner is not None and self.solo.inner_tol is None:
            inner.tolerance = 0.1 * max(min(self.best.bound, 1e300), self.tol or 0.0) * scale
        hope, self.solo.hope = self.solo.hope, math.inf
        new = self.solo._prox(m, t, 1.0)
        self.solo.hope = hope
        return new

    def _accuracy(self) -> float:
        last = None if self.solo.inner is None else self.solo.inner.last
        return 0.0 if last is None else last.accuracy

    def row(self) -> dict[str, float]:
        """The costs so far."""
        return {
            "iteration": self.solo.iterations,
            "ngrad": self.client.calls,
            "passes": self.client.rows / self.f.rows,
            "nprox": self.solo.proxes,
            "seconds": self.seconds,
            "certificate": self.bound,
        }

    def close(self) -> None:
        """Give threads back and leave the operator as it was."""
        self.client.close()
        if self.solo.inner is not None:
            self.solo.inner.tolerance = self.asked
