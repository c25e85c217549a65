"""Nesterov's accelerated gradient: the honest yardstick, sqrt(kappa) rounds without a local step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from proxskip import theory
from proxskip.problems.federated import Problem
from proxskip.seam import About, Claims, Client, Exchange, Method, Style
from proxskip.theory.steps import Setting, StepLimits, nesterov_limit, nesterov_momentum
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True)
class Accelerated(Method):
    """Nesterov's accelerated (proximal) gradient method with constant momentum, for strongly convex f.

    Y. Nesterov, Lectures on Convex Optimization, 2018, Section 2.2 (constant step scheme III); with a prox: A. Beck,
    First-Order Methods in Optimization, 2017, Section 10.7.7.

        x+ = prox_{gamma psi}(y - gamma grad f(y))
        y+ = x+ + beta (x+ - x),     beta = (sqrt(kappa) - 1)/(sqrt(kappa) + 1)
    """

    gamma: float
    beta: float

    about = About(
        name="accelerated",
        title="accelerated gradient (Nesterov)",
        reference="Nesterov, Lectures on Convex Optimization, 2018; Beck, First-Order Methods in Optimization, 2017",
        handles=frozenset({"clients", "psi"}),
        parameters=("gamma",),
        style=Style("#000000", "-.", "^"),
        other_names=("nesterov", "agd", "accelerated-gd"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x and the point y ahead of it."""
        return {"x": x0, "y": x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """A step of the mean from y, then the look ahead."""
        (x,) = exchange(self.local, server["y"], K=1)
        if exchange.problem.psi is not None:
            x = exchange.prox(x, self.gamma)
        return {"x": x, "y": x + self.beta * (x - server["x"])}

    def local(self, client: Client, memory: Vectors, K: int, y: Array) -> tuple[tuple[Array, ...], Vectors]:
        """One plain step from y."""
        return (client.send(client.descend(y, 0.0, self.gamma, K)),), {}

    @classmethod
    def theory(cls, problem: Problem) -> Accelerated:
        """gamma = 1/L with the smoothness of the average, beta from its condition number."""
        return cls(
            gamma=1.0 / problem.L_global,
            beta=nesterov_momentum(problem.L_global, theory.known(problem.mu)),
        )

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """0 <= beta < 1, gamma <= 1/L; beyond (2 + 2 beta)/((1 + 2 beta) L) it diverges."""
        if not 0 <= self.beta < 1:
            raise InputError(f"beta = {self.beta} must lie in [0, 1).")
        limit = nesterov_limit(problem.L_global, self.beta)
        if self.gamma >= limit and not (insist or problem.L_kind == "global"):
            raise InputError(f"gamma = {self.gamma:g} is not below {limit:g}, where momentum {self.beta:g} diverges.")
        return self.check_steps(problem, insist, L=problem.L_global, mu=problem.mu)

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/L; refused where quadratics diverge."""
        # mu is unknown: the worst momentum, which has the smallest limit
        beta = 1.0 if s.mu is None else nesterov_momentum(s.L, s.mu)
        source = "Nesterov, Lectures on Convex Optimization, 2018; refused where quadratics diverge"
        return StepLimits(1 / s.L, 1 / s.L, 1 / s.L, nesterov_limit(s.L, beta), source)

    def claims(self, problem: Problem) -> Claims:
        """sqrt(gamma mu), of f(x) - f* + mu/2 |z - x*|^2, for the momentum that belongs to this gamma."""
        if problem.mu is None or self.gamma > 1.0 / problem.L_global:
            return Claims()
        # another momentum converges too, but the theorem says nothing about its rate
        root = math.sqrt(self.gamma * problem.mu)
        return Claims(root if math.isclose(self.beta, (1 - root) / (1 + root), abs_tol=1e-9) else None)
