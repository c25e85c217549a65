"""A minimization under way: a method on f + psi(D x), round by round, with a bound on the certificate at every prox."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from proxskip.core.method import Method
from proxskip.minimizing import functions
from proxskip.minimizing.exchange import LimitReached, Overflow, SoloExchange, TooSteep, client_of
from proxskip.minimizing.functions import CURVATURE_SLACK, Linear, Smooth
from proxskip.problems import accuracy, gradient_check, prox_check
from proxskip.problems.federated import Problem
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.quadratic import Quadratic
from proxskip.prox.parts import is_ours
from proxskip.results.trace import Trace
from proxskip.running.ledger import Ledger
from proxskip.running.watch import CertificateWatch
from proxskip.types import Array, GradientWarning, UnsafeStepWarning

COLUMNS = ("iteration", "ngrad", "passes", "nprox", "seconds", "certificate", "fun")
ROUNDS_BETWEEN_BOUNDS = 10
"""Rounds between two bounds that cost a product with D each, where every round has a dual step."""
PASSES_BETWEEN_BOUNDS = 10
"""Passes of minibatches between two bounds, which cost a full gradient each."""
ROUNDING_ULPS = 1e4
"""A certificate that no longer falls counts as rounding up to this many units of it."""
MAX_BACKTRACKING = 1e12
"""How far backtracking may raise the first guess of L."""


class Point(NamedTuple):
    """An iterate, its dual variable, and a bound on its certificate."""

    bound: float
    x: Array
    dual: Array | None
    iteration: int


@dataclass(frozen=True)
class Task:
    """f + psi(D x) as given: everything about the problem that does not change during a run."""

    f: Smooth
    psi: Any
    D: Linear | None
    shape: tuple[int, ...]
    batch: int | None = None

    def problem(self, f: Smooth) -> Problem:
        """The problem that a method sees; with minibatches its L is A of expected smoothness."""
        A = f if self.batch is None else f.with_L(functions.expected_smoothness(f, self.batch))
        return Problem([A], psi=self.psi, D=self.D)  # type: ignore[list-item]

    def psi_at(self, x: Array) -> float:
        if self.psi is None:
            return 0.0
        return float(self.psi(x.reshape(self.shape) if self.D is None else self.D @ x))

    def value(self, x: Array) -> float:
        return float(self.f.value(x) + self.psi_at(x))


def skip_probability(method: Method) -> float | None:
    """The p of a method that skips; None if it has none."""
    p: float | None = method.parameters().get("p")
    return p


class Descent:
    """The state between rounds. ``advance`` makes one round; ``certify`` measures a point.

    The hot loop counts in plain attributes of the client and the exchange; ``ledger`` collects them.
    """

    def __init__(
        self,
        task: Task,
        make: Callable[[Problem, Smooth], Method],
        x0: Array,
        *,
        seed: int = 0,
        dual: Array | None = None,
        tol: float = 0.0,
        threads: int | None = None,
        allow_unsafe_step: bool = False,
        began: float | None = None,
    ) -> None:
        self.task = task
        self.make = make
        self.tol = tol
        self.allow_unsafe_step = allow_unsafe_step
        f = task.f
        g = functions.first_gradient(f, x0)
        self.backtrack, guessed = f.L is None, 0
        if f.L is None:
            self.first_L, guessed = functions.first_L(f, x0, g)
            f = f.with_L(self.first_L)
        self.f, self.first_L = f, f.L or 1.0
        self.client = client_of(self.f, x0, g, task.batch, seed, self.backtrack, threads)
        self.client.count_gradients(1 + guessed)  # g, and those that a first guess of L took
        self.notes: list[str] = []
        self.contradiction = None if gradient_check.is_trusted(f.of) else self._contradiction(x0, g)
        """How the value and the gradient of a user's f contradict each other; None if they do not."""
        self._set_method()
        hope = max(float(np.linalg.norm(g)), tol)
        self.solo = SoloExchange(self.client, self.problem, task.shape, seed, self.f.L or 0.0, hope)
        if self.solo.inner is not None:
            self.own_tolerance = self.solo.inner.tolerance  # given back by ``close``
            self.solo.inner.reset()
        psi = task.psi
        is_known = psi is None or self.solo.inner is not None or is_ours(psi)
        self.probed = None if is_known else prox_check.Probed(psi, self.solo.last_prox)
        """The prox of certificates, if its accuracy is unknown, so that they have to find it out."""
        self.solo.allow(tol / (self.f.L or 1.0))  # such an error cannot move a certificate by tol
        self._begin(x0, dual)
        self.x0, self.best = x0, Point(math.inf, x0, dual, 0)
        self.bound = math.inf
        self.rounding = 0.0
        self.first_gradient = float(np.linalg.norm(g))
        self.watch = CertificateWatch()
        self.spent, self.began = 0.0, math.nan  # seconds of rounds that are over; when the one under way began
        self.round = 0
        self.checked_rows = self.client.rows
        self.trace = Trace(COLUMNS)
        if began is not None:  # what was computed before the first round takes time too
            self.spent = time.perf_counter() - began

    def _contradiction(self, x0: Array, g: Array) -> str | None:
        def counted(x: Array) -> Array:
            self.client.count_gradients(1)
            return self.task.f.gradient(x)

        fault = gradient_check.contradiction(self.task.f.value, counted, x0, g, self.f.L)
        if fault is not None:
            self.notes.append(fault)
            warnings.warn(fault, GradientWarning, stacklevel=6)
        return fault

    def _set_method(self) -> None:
        self.problem = self.task.problem(self.f)
        self.method = self.make(self.problem, self.f)
        for note in self.method.check(self.problem, self.allow_unsafe_step):
            if note not in self.notes:
                self.notes.append(note)
                warnings.warn(note, UnsafeStepWarning, stacklevel=6)
        self.maps = not (self.method.remembers or self.task.D or self.task.psi is None or self.task.batch)
        self.gamma = float(self.method.gamma)
        # the L that a model computed is right: a larger curvature is rounding, where residuals are large and x small
        is_computed = isinstance(self.f.of, LinearModel) and self.f.of.knows("L") and self.f.of.L == self.f.L
        self.too_steep = math.inf if self.backtrack or is_computed else (self.f.L or 0.0) * (1 + CURVATURE_SLACK)
        # a round of many gradients is worth a product with D
        rare = (skip_probability(self.method) or 1.0) < 0.2 or self.method.name == "apda"
        self.check_every = 1 if self.task.D is None or rare else ROUNDS_BETWEEN_BOUNDS
        self.always = self.check_every == 1 and self.task.batch is None

    def _begin(self, x: Array, dual: Array | None) -> None:
        """Set the client's memory and the server's vectors at x; ``dual`` is h, or y where there is a D."""
        D = self.task.D
        server = self.method.start(self.problem, x)
        memory = {k: np.zeros(self.f.d) for k in self.method.remembers}
        if dual is not None and D is not None:
            server["y"] = dual
        if "h" in memory and dual is not None:
            memory["h"] = dual if D is None else -np.asarray(D.T @ dual)
        if "x" in memory:
            memory["x"] = x
        self.server = server
        self.solo.begin(memory)

    def switch(self, make: Callable[[Problem, Smooth], Method], x: Array, dual: Array | None) -> None:
        """Go on with another method from x and its dual variable, or else from the last subgradient of psi."""
        if dual is None and self.task.D is None and self.solo.last is not None:
            dual = -np.asarray(self.solo.subgradient)
        self.make = make
        self._set_method()
        if self.solo.checked is not None:  # other steps, at which an inexact prox may do better
            self.solo.checked.forgive()
        self.watch = self.watch.anew(self.solo.iterations, self.solo.inner_failures)
        self._begin(x, dual)

    # -- a round -------------------------------------------------------------------------------------------------------
    def advance(self) -> bool:
        """Make one round; True if a new bound on the certificate is known after it. Call it under ``np.errstate``."""
        self.began = time.perf_counter()
        try:
            known = self._round()
        except Overflow:
            self.bound, known = math.nan, True
        self.spent += time.perf_counter() - self.began
        self.began = math.nan
        return known

    def _round(self) -> bool:
        server = self.server
        solo = self.solo
        solo.enter(self.round)
        try:
            self.server = self.method.round(server, solo)
            self.round += 1
            return (self.always or self._due()) and self._bound()
        except TooSteep:
            self.server = server
            solo.undo()
            self._raise_L(self.client.steepest)
        except LimitReached:
            self.server = server
            solo.undo()
        return False

    def _raise_L(self, seen: float) -> None:
        """Backtracking: continue with a larger L from the point before this round."""
        old = self.f.L or 1.0
        if old > MAX_BACKTRACKING * self.first_L:
            raise Overflow
        x, dual = self.x, self.dual
        self.f = self.f.with_L(max(1.5 * old, min(seen, 1e3 * old)))
        L = self.f.L or 1.0
        self.client.raise_L(L)
        self._set_method()
        self.solo.raise_L(self.problem, L)
        self.solo.allow(self.tol / L)
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
        return self.client.rows - self.checked_rows >= PASSES_BETWEEN_BOUNDS * self.f.rows

    def _bound(self) -> bool:
        """|grad f(x) + s| at x plus what an inexact prox may have spoiled; for psi(D x) see ``exchange``."""
        solo = self.solo
        if self.maps and solo.start is not None:
            x = self.server["x"]
            # x = T(start) with the prox-gradient map T, which is nonexpansive: |T(x) - x| <= |x - start|, a bound
            # without another gradient
            raw = float(np.linalg.norm(solo.start - x)) / self.gamma
        else:
            x = self.x
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
        primal, dual = g + back, (D @ x) - s
        return math.sqrt(primal.dot(primal)) + math.sqrt(dual.dot(dual))

    def _judge(self, x: Array) -> None:
        """Keep the best point, and tie the accuracy of the next inner solve to this bound."""
        bound, solo = self.bound, self.solo
        self.watch.see(bound, solo.iterations, solo.inner_failures)
        if bound < self.best.bound:
            self.best = Point(bound, x, None if self.maps else self.dual, solo.iterations)
        solo.hope_for(bound, self.tol)
        steepest = self.client.steepest
        if steepest > self.too_steep and not any("steeper" in note for note in self.notes):
            L = f"L = {self.f.L or 0.0:.6g}"
            self.notes.append(f"f is steeper than {L} says: between two iterates its curvature is {steepest:.6g}.")
            warnings.warn(self.notes[-1], UnsafeStepWarning, stacklevel=6)

    def is_rounding(self, certificate: float) -> bool:
        """Whether a certificate of this size may be nothing but the rounding of the method's own gradients."""
        size = self.first_gradient + (self.f.L or 0.0) * float(np.linalg.norm(self.best.x))
        return certificate <= ROUNDING_ULPS * self.client.eps * size

    @property
    def stalled(self) -> bool:
        """Whether the bound has stopped falling."""
        # gamma mu is the rate of plain steps without a D only; methods with larger steps claim none that a wrong mu
        # could spoil
        mu = self.f.mu if self.task.D is None and self.gamma * (self.f.L or 1.0) <= 2.0 else None
        return self.watch.stalled(self.solo.iterations, self.solo.inner_failures, self.gamma, mu)

    # -- counts --------------------------------------------------------------------------------------------------------
    @property
    def ledger(self) -> Ledger:
        """The counts in a run's terms, a round under way included: f is the only client, ``grad_evals`` counts rows."""
        seconds = self.spent if math.isnan(self.began) else self.spent + time.perf_counter() - self.began
        return Ledger(
            iterations=self.solo.iterations,
            local_steps=self.client.calls,
            grad_evals=self.client.rows,
            prox_evals=self.solo.proxes,
            seconds=seconds,
        )

    # -- measures ------------------------------------------------------------------------------------------------------
    def certify(self, point: Point) -> float:
        """An upper bound on the certificate at a point, with one more prox; what is not exact about it is added.

        |x - prox_{gamma psi}(x - gamma grad f(x))|/gamma with gamma = 1/L, or for psi(D x)
        |grad f(x) + D'y| + |y - prox_{psi*}(y + D x)|.  ``rounding`` is the part of it that rounding may account for.
        """
        start = time.perf_counter()
        with np.errstate(all="ignore"):
            self.client.gradient(point.x, hold=False)  # looks at the curvature there
            try:
                certificate = self._certificate(point)
            except Overflow:
                certificate = accuracy.Bounded(math.nan, math.nan)
        self.spent += time.perf_counter() - start
        self.rounding = certificate.error
        return certificate.most

    def _certificate(self, point: Point) -> accuracy.Bounded:
        x, D = point.x, self.task.D
        g, error = self._accurate(x)
        if self.task.psi is None:
            return accuracy.Bounded(float(np.linalg.norm(g)), error)
        if D is None:
            seen = self.client.steepest  # what was measured overrides an L that is too small
            gamma = 1.0 / max(self.f.L or 1.0, seen if math.isfinite(seen) else 0.0)
            residual = accuracy.prox_residual(self._last_prox(gamma), x, g, error, gamma)
            return accuracy.Bounded(residual.value + self._accuracy() / gamma, residual.error)
        assert point.dual is not None
        residual = accuracy.dual_residual(self._last_prox(1.0), D, x, point.dual, g, error)
        return accuracy.Bounded(residual.value + self._accuracy(), residual.error)

    def _accurate(self, x: Array) -> tuple[Array, float]:
        """grad f(x) with its error."""
        if isinstance(self.f.of, (LinearModel, Quadratic)):
            return accuracy.gradient(self.f.of, x)
        g = self.client.gradient(x, hold=False)
        size = float(np.linalg.norm(g)) + (self.f.L or 0.0) * float(np.linalg.norm(x))
        return g, accuracy.ASSUMED_ULPS * self.client.eps / 2 * size

    def _last_prox(self, scale: float) -> accuracy.Prox:
        """The prox of a certificate, which has an accuracy of its own."""
        inner = self.solo.inner
        if inner is not None:
            inner.tolerance = 0.1 * max(min(self.best.bound, 1e300), self.tol or 0.0) * scale
        return self.probed or self.solo.last_prox

    def _accuracy(self) -> float:
        if self.probed is not None:
            return self.probed.error
        last = None if self.solo.inner is None else self.solo.inner.last
        return 0.0 if last is None else last.accuracy

    def row(self) -> dict[str, float]:
        """A row of the trace: the costs so far, and the last bound on the certificate."""
        counts = self.ledger
        return {
            "iteration": counts.iterations,
            "ngrad": counts.local_steps,
            "passes": counts.grad_evals / self.f.rows,
            "nprox": counts.prox_evals,
            "seconds": counts.seconds,
            "certificate": self.bound,
        }

    def close(self) -> None:
        """End the threads, and leave the operator as it was."""
        self.client.close()
        if self.solo.inner is not None:
            self.solo.inner.tolerance = self.own_tolerance
