"""Divergence and stalling, without false alarms: ``RunWatch`` for runs, ``CertificateWatch`` for ``minimize``.

``RunWatch`` sees the residual at records:

* DIVERGED: a value is not finite, or the residual is 100 times larger than the method's transient can make it. By the
  Lyapunov function h_0 = 0 may throw x off by (gamma/p) |h_0 - h*|, so a warm start near x* is no divergence.
* STALLED: over a window in which the theorem promises a contraction by exp(-2.5), and over two of them, the geometric
  mean of the residual in the second half is 0.9 to 1.2 of that in the first. Needs a known mu and exact gradients. At
  the level of rounding a tolerance cannot be reached (PRECISION), and a run without one continues.

``CertificateWatch`` sees a bound on the certificate after every prox of one function; the best point is returned:

* DIVERGED: the bound is NaN, or 1e8 times the first one.
* STALLED: none of 30 bounds in a row was 1 % below the best, for 10/(gamma mu) iterations (20,000 if mu is unknown) and
  30 % of the run; or an inner solver missed its tolerance 30 times meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from proxskip.core.method import Method
from proxskip.problems.federated import Problem
from proxskip.problems.operators import operator_norm2
from proxskip.problems.oracles import dtype_of
from proxskip.results.result import Status
from proxskip.results.trace import Trace
from proxskip.running.stop import Verdict
from proxskip.types import Array

STALL_WINDOW = 5.0
"""The stalling window, in units of 1/zeta iterations."""
LEVEL_FROM, LEVEL_TO = 0.9, 1.2
"""The residual is level if the ratio of its means over the window's halves lies between these."""
RUN_BLOWN_UP = 100.0
"""How far the residual of a run may rise above its yardstick."""
CERTIFICATE_BLOWN_UP = 1e8
"""How far a bound on the certificate may rise above the first one."""
STALLED_BOUNDS = 30
"""Bounds (or inner failures) without progress before a minimization may count as stalled."""


@dataclass(frozen=True, slots=True)
class RunWatch:
    """The limits that decide whether a run diverges or stalls; set up once at the start."""

    blown_up: float
    window: float | None
    noise: float
    L: float

    @staticmethod
    def of(
        method: Method, problem: Problem, start: tuple[float, float], residual0: float, judges_stalls: bool = True
    ) -> RunWatch:
        """From the method, the problem and the start.

        Args:
            start: see ``start_of``.
            judges_stalls: whether a residual that no longer falls is a reason to end.
        """
        amplification, zeta = _pace(method, problem)
        drift, size = start
        yardstick = max(residual0, (1.0 + amplification) * drift * _dual_share(problem))
        eps = float(np.finfo(dtype_of(problem.clients[0])).eps)
        window = None
        if judges_stalls and zeta and problem.batch is None:
            window = STALL_WINDOW / zeta
        return RunWatch(
            blown_up=RUN_BLOWN_UP * yardstick if yardstick > 0 else np.inf,
            window=window,
            noise=100 * eps * ((1.0 + amplification) * drift + size),
            L=100 * eps * (problem.L_max + _norm_of_D(problem)),
        )

    @staticmethod
    def knowing_nothing() -> RunWatch:
        """Without L there is no yardstick: only values that are not finite have diverged."""
        return RunWatch(np.inf, None, 0.0, 0.0)

    def diverged(self, residual: float) -> bool:
        """Whether the residual is not finite, or far beyond the transient."""
        return not bool(np.isfinite(residual)) or residual > self.blown_up

    def is_level(self, trace: Trace) -> bool:
        """Whether the residual fell neither over the last window nor over the last two.

        With random numbers of local steps it may rest for one of them.
        """
        if self.window is None or trace["iterations"][-1] < 2 * self.window:
            return False
        return _is_level_over(trace, self.window) and _is_level_over(trace, 2 * self.window)

    def is_rounding(self, residual: float, x: Array, y: Array | None = None) -> bool:
        """Whether a residual of this size may be rounding alone; with psi(D x) it is that of (x, y)."""
        dual = 0.0 if y is None else 100 * float(np.finfo(np.float64).eps) * float(np.linalg.norm(y))
        return bool(residual <= self.noise + self.L * float(np.linalg.norm(x)) + dual)


def start_of(problem: Problem, gradients: Array, h0: Array | None) -> tuple[float, float]:
    """The roots of  sum_i w_i |grad f_i(x0) - h0_i|^2  and of  sum_i w_i |grad f_i(x0)|^2."""
    shifted = gradients if h0 is None else gradients - h0
    drift, size = (float(np.sqrt(problem.weights @ np.sum(G * G, axis=1))) for G in (shifted, gradients))
    return drift, size


def at_start(problem: Problem, x0: Array, h0: Array | None, in_blocks: bool) -> tuple[float, float]:
    """``start_of`` at x0; ``in_blocks`` for very many clients, a few at a time, with h0 = 0."""
    if not in_blocks:
        return start_of(problem, problem.client_gradients(x0), h0)
    parts = (problem.weights[some] @ np.sum(G * G, axis=1) for some, G in problem.gradient_blocks(x0))
    root = float(np.sqrt(sum(map(float, parts))))
    return root, root


def not_finite(round: int) -> Verdict:
    """The verdict on a run whose x is not finite."""
    sentence = f"x is not finite after round {round}; the last finite x is returned. Use a smaller gamma."
    return Verdict(Status.DIVERGED, sentence)


def grown(grad_norm: float, round: int) -> Verdict:
    """The verdict on a run whose residual is far beyond the transient."""
    sentence = f"the gradient norm grew to {grad_norm:.3g} by round {round}; use a smaller gamma."
    if round == 0:
        sentence = f"the gradient norm is {grad_norm:.3g} at x0; check the clients, or give another x0."
    return Verdict(Status.DIVERGED, sentence)


def advice(method: Method, round: int, f: float, best_round: int) -> str:
    """The message of a run that diverged where L is unknown, as for networks; the best x is returned."""
    ways = ["a smaller gamma"]
    own = method.parameters()
    if "K" in own and own["K"] is None:
        ways.append("a fixed number of local steps (K=)")
    if "chi" in own and own["chi"] in (None, 1.0):
        ways.append("chi below 1")
    return (
        f"diverged by round {round}: use {' or '.join(ways)}. The best recorded x is returned, from round {best_round} "
        f"(f = {f:.4g})."
    )


@dataclass(slots=True)
class CertificateWatch:
    """Judges a minimization by its bounds on the certificate so far."""

    first: float = math.inf
    """The first bound."""
    ceiling: float = math.inf
    """A bound above it means divergence."""
    best: float = math.inf
    """The last bound that was 1 % below the best before it."""
    best_iteration: int = 0
    best_failures: int = 0
    """Calls of an inner solver that had failed by then."""
    since: int = 0
    """Bounds seen since then."""

    def see(self, bound: float, iterations: int, inner_failures: int) -> None:
        """Take in the next bound."""
        if self.first == math.inf:
            self.first = bound
            self.ceiling = CERTIFICATE_BLOWN_UP * max(bound, 1e-300) if math.isfinite(bound) else math.inf
        self.since += 1
        if bound < 0.99 * self.best:
            self.best = bound
            self.best_iteration = iterations
            self.best_failures = inner_failures
            self.since = 0

    def anew(self, iterations: int, inner_failures: int) -> CertificateWatch:
        """For another method, which must make its own progress from here."""
        return CertificateWatch(self.first, self.ceiling, best_iteration=iterations, best_failures=inner_failures)

    def diverged(self, bound: float) -> bool:
        """Whether the bound is NaN, or far beyond the first one."""
        return not bound <= self.ceiling  # true for NaN too

    def stalled(self, iterations: int, inner_failures: int, gamma: float, mu: float | None) -> bool:
        """Whether the bounds have not fallen for too long; gamma mu is the guaranteed rate."""
        if self.since < STALLED_BOUNDS:
            return False
        slowest = 20_000 if mu is None else 10.0 / (gamma * mu)
        too_long = iterations - self.best_iteration > max(slowest, 0.3 * iterations)
        return too_long or inner_failures - self.best_failures >= STALLED_BOUNDS


def _pace(method: Method, problem: Problem) -> tuple[float, float | None]:
    """(gamma L / p, the slowest contraction per iteration that the parameters suggest)."""
    gamma = np.atleast_1d(np.asarray(method.gamma, dtype=np.float64))
    slowest = method.slowest_rate(problem) if problem.mu is not None else None
    return float(gamma.max()) * problem.L_max / method.pace, slowest


def _dual_share(problem: Problem) -> float:
    """How much larger the residual of psi(D x) may become than its primal part.

    Its dual part is at most about |D x|, in other units than gradients, and x moves by some drift/mu.
    """
    if problem.D is None:
        return 1.0
    return 1.0 + _norm_of_D(problem) / (problem.mu or problem.L_max)


def _norm_of_D(problem: Problem) -> float:
    """|D|; zero without one."""
    return 0.0 if problem.D is None else float(np.sqrt(operator_norm2(problem.D)))


def _is_level_over(trace: Trace, window: float) -> bool:
    """Whether the geometric means of the residual over the two halves of the window are about the same."""
    t, residual = trace["iterations"], trace["grad_norm"]
    late = t > t[-1] - window / 2
    early = (t > t[-1] - window) & ~late
    if late.sum() < 2 or early.sum() < 2:
        return False
    now, before = _geometric_mean(residual[late]), _geometric_mean(residual[early])
    return bool(LEVEL_FROM * before < now < LEVEL_TO * before)


def _geometric_mean(v: Array) -> float:
    return float(np.exp(np.mean(np.log(np.maximum(v, 1e-300)))))
