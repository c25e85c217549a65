"""Is the run still going where the theorem says? Divergence and stalling, without false alarms.

* DIVERGED: a value is no longer finite, or the residual is 100 times larger than the method's transient can make it.
  By the Lyapunov function, h_0 = 0 may throw x off by (gamma/p) |h_0 - h*|, so the yardstick holds that factor: a warm
  start near x* with h_0 = 0 raises the gradient norm thousands of times and is no divergence.
* STALLED: over a window in which the theorem promises a contraction by exp(-2.5) the residual did not fall at all (its
  geometric mean over the second half is 0.9 to 1.2 of that over the first), and it is not at the floor of rounding.
  What grows by more is left to the first rule: a bounded loss cannot go on growing, and an unbounded one diverges. On
  logistic loss this is the only sign of a step size that is far too large, since gradients are bounded there. It needs
  a known mu, and exact gradients (minibatches have a noise floor).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxskip.problems.federated import Problem
from proxskip.problems.oracles import dtype_of
from proxskip.results.trace import Trace
from proxskip.seam import Method
from proxskip.types import Array

WINDOW = 5.0
FALLEN = 0.9
GROWN = 1.2
BLOWN_UP = 100.0


@dataclass(frozen=True, slots=True)
class Watch:
    """Set up once from the method, the problem and the start."""

    blown_up: float
    window: float | None
    noise: float
    L: float

    @staticmethod
    def of(method: Method, problem: Problem, x0: Array, h0: Array, residual0: float) -> Watch:
        """What this run may do at most, and how long it may take to fall."""
        amplification, zeta = _pace(method, problem)
        G = problem.client_gradients(x0) - h0
        drift = float(np.sqrt(problem.weights @ np.sum(G * G, axis=1)))
        yardstick = max(residual0, (1.0 + amplification) * drift)
        eps = float(np.finfo(dtype_of(problem.clients[0])).eps)
        watched = zeta is not None and problem.batch is None
        return Watch(
            blown_up=BLOWN_UP * yardstick if yardstick > 0 else np.inf,
            window=WINDOW / zeta if watched and zeta else None,
            noise=100 * eps * (1.0 + amplification) * drift,
            L=100 * eps * problem.L_max,
        )

    def diverged(self, residual: float) -> bool:
        """No longer finite, or far beyond what the transient allows."""
        return not bool(np.isfinite(residual)) or residual > self.blown_up

    def stalled(self, trace: Trace, x: Array) -> bool:
        """No fall over the last window, although the one before it is over too."""
        t = trace["iterations"]
        if self.window is None or t[-1] < 2 * self.window:
            return False
        residual = trace["grad_norm"]
        late = t > t[-1] - self.window / 2
        early = (t > t[-1] - self.window) & ~late
        if late.sum() < 2 or early.sum() < 2:
            return False
        now, before = _geometric_mean(residual[late]), _geometric_mean(residual[early])
        floor = self.noise + self.L * float(np.linalg.norm(x))
        return bool(now > floor and FALLEN * before < now < GROWN * before)


def _pace(method: Method, problem: Problem) -> tuple[float, float | None]:
    """(gamma L / p, the slowest contraction per iteration that the method's parameters suggest)."""
    gamma = np.atleast_1d(np.asarray(method.gamma, dtype=np.float64))
    p = method.pace
    rates = [method.zeta(problem)]
    if problem.mu is not None:
        rates += [float(gamma.min()) * problem.mu, p * p]
    known = [r for r in rates if r is not None]
    return float(gamma.max()) * problem.L_max / p, min(known) if problem.mu is not None and known else None


def _geometric_mean(v: Array) -> float:
    return float(np.exp(np.mean(np.log(np.maximum(v, 1e-300)))))
