"""Nesterov's acceleration, with mu known or not: the baseline with sqrt(kappa) rounds and no local steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from proxskip.core.exchange import Exchange
from proxskip.core.method import About, Claims, Style, chosen
from proxskip.methods import steps
from proxskip.methods.gradient import GD
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.theory.numbers import nonnegative
from proxskip.theory.step_sizes import Setting, StepLimits, nesterov_limit, nesterov_momentum
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class Accelerated(GD):
    """Nesterov's accelerated (proximal) gradient method with constant momentum, for strongly convex f.

    Y. Nesterov, Lectures on Convex Optimization, 2018, Section 2.2 (constant step scheme III); with a prox: A. Beck,
    First-Order Methods in Optimization, 2017, Section 10.7.7.

        x+ = prox_{gamma psi}(y - gamma grad f(y))
        y+ = x+ + beta (x+ - x),     beta = (sqrt(kappa) - 1)/(sqrt(kappa) + 1)

    Args:
        gamma: the step size.
        beta: the momentum, in [0, 1).
    """

    gamma: float = chosen()
    beta: float = chosen()

    about = About(
        name="accelerated",
        title="accelerated gradient (Nesterov)",
        reference="Nesterov, Lectures on Convex Optimization, 2018; Beck, First-Order Methods in Optimization, 2017",
        handles=frozenset({"clients", "weights", "psi"}),
        style=Style("#000000", "-.", "^"),
        other_names=("nesterov", "agd", "accelerated-gd"),
    )

    def check_parameters(self) -> None:
        GD.check_parameters(self)
        if self.beta is not None and nonnegative("beta", self.beta) >= 1:
            raise InputError(f"beta = {self.beta} must lie in [0, 1).")

    def start(self, problem: Problem, x0: Array) -> Vectors:
        return {"x": x0, "y": x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        (x,) = exchange(self.local, server["y"], K=1)
        if exchange.problem.psi is not None:
            x = exchange.prox(x, self.gamma)
        return {"x": x, "y": x + self.beta * (x - server["x"])}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Accelerated:
        """gamma = 1/L with the smoothness of the average, beta from its condition number."""
        gamma, beta = self.gamma, self.beta
        if gamma is None:
            gamma = 1.0 / problem.L_average
        if beta is None:
            beta = nesterov_momentum(problem.L_average, steps.known_mu(problem, "beta"))
        return replace(self, gamma=gamma, beta=beta)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma <= 1/L; beyond (2 + 2 beta)/((1 + 2 beta) L) it diverges."""
        limit = nesterov_limit(problem.L_average, self.beta) if problem.knows_L else math.inf
        if self.gamma >= limit and not (allow_unsafe_step or problem.smoothness == "average"):
            raise InputError(f"gamma = {self.gamma:g} is too large: momentum {self.beta:g} diverges from {limit:g}.")
        return self.check_steps(problem, allow_unsafe_step, mu=problem.mu)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """1/L; refused where quadratics diverge."""
        # without mu: the worst momentum, with the smallest limit
        beta = 1.0 if s.mu is None else nesterov_momentum(s.L, s.mu)
        source = "Nesterov, Lectures on Convex Optimization, 2018; refused where quadratics diverge"
        return StepLimits(1 / s.L, 1 / s.L, 1 / s.L, nesterov_limit(s.L, beta), source)

    def claims(self, problem: Problem) -> Claims:
        """sqrt(gamma mu), of f(x) - f* + mu/2 |z - x*|^2, for the momentum that belongs to this gamma."""
        if problem.mu is None or self.gamma > 1.0 / problem.L_average:
            return Claims()
        # the theorem gives no rate for another momentum
        root = math.sqrt(self.gamma * problem.mu)
        return Claims(root if math.isclose(self.beta, (1 - root) / (1 + root), abs_tol=1e-9) else None)


@dataclass(frozen=True, slots=True, repr=False)
class Fista(GD):
    """Accelerated proximal gradient with growing momentum, which starts anew when it leads uphill.

    A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm for linear inverse problems, 2009; the
    restart is the gradient scheme of B. O'Donoghue, E. Candes, Adaptive restart for accelerated gradient schemes, 2015.

        x+ = prox_{gamma psi}(y - gamma grad f(y))
        t+ = (1 + sqrt(1 + 4 t^2))/2,     y+ = x+ + ((t - 1)/t+) (x+ - x)
        t+ = 1, y+ = x+     where  <y - x+, x+ - x> > 0

    Args:
        gamma: the step size.
        beta: an upper bound on (t - 1)/t+; with a known mu more than (1 - sqrt(gamma mu))/(1 + sqrt(gamma mu)), the
            momentum of ``Accelerated``, is of no use.

    Linear convergence is observed; the theorem is f - f* = O(1/k^2).
    """

    gamma: float = chosen()
    beta: float = 1.0

    about = About(
        name="fista",
        title="FISTA with restart",
        reference="Beck, Teboulle, FISTA, 2009; O'Donoghue, Candes, Adaptive Restart, 2015",
        handles=frozenset({"clients", "weights", "psi"}),
        style=Style("#78002D", ":", "D"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        # t is a vector, because the server's state consists of vectors
        return {"x": x0, "y": x0, "t": np.ones(1)}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        y, old = server["y"], server["x"]
        t = steps.first_of(server["t"], "fista", "take accelerated if mu is known")
        (x,) = exchange(self.local, y, K=1)
        if exchange.problem.psi is not None:
            x = exchange.prox(x, self.gamma)
        step = x - old
        # y - x+ is gamma times the prox-gradient at y: the last step led uphill
        if (y - x).dot(step) > 0:
            return {"x": x, "y": x, "t": np.array([1.0])}
        ahead = (1.0 + math.sqrt(1.0 + 4.0 * t * t)) / 2.0
        return {"x": x, "y": x + min(self.beta, (t - 1.0) / ahead) * step, "t": np.array([ahead])}

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        # t grows without bound, so the momentum (t - 1)/t+ approaches one
        source = "Beck, Teboulle, FISTA, 2009; refused where momentum near one diverges on quadratics"
        return StepLimits(1 / s.L, 1 / s.L, 1 / s.L, nesterov_limit(s.L, 1.0), source)

    def claims(self, problem: Problem) -> Claims:
        """No contraction per round: f - f* = O(1/k^2)."""
        return Claims()
