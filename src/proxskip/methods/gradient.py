"""GD and ProxGD: one gradient of everybody, one exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.seam import About, Claims, Client, Exchange, Method, Style, from_solution
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class GD(Method):
    """Gradient descent.

    Y. Nesterov, Lectures on Convex Optimization, 2018, Section 2.1.5.

        x+ = x - gamma * sum_i w_i grad f_i(x)
    """

    gamma: float

    about = About(
        name="gd",
        title="gradient descent",
        reference="Nesterov, Lectures on Convex Optimization, 2018",
        handles=frozenset({"batch", "clients"}),
        style=Style("#7F7F7F", "-", "s"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The mean of one step each is one step of the mean."""
        (x,) = exchange(self.local, server["x"], K=1)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """One plain step."""
        return (client.send(client.descend(x, 0.0, self.gamma, K)),), {}

    @classmethod
    def theory(cls, problem: Problem) -> Self:
        """gamma = 1/L with the smoothness of the average, which is all that GD needs."""
        # the mean of the clients' steps is a step of the average, whose L can be far below max_i L_i; with minibatches,
        # which each client draws for itself, the worst client's A counts
        return cls(gamma=1.0 / (problem.L_global if problem.batch is None else problem.es_A))

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L; from 2/L on it diverges."""
        return self.check_steps(problem, insist, L=lambda: problem.L_global)

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/L."""
        return StepLimits.one_over_L(
            s.L, "Nesterov, Lectures on Convex Optimization, 2018; linear for every step below 2/L"
        )

    def claims(self, problem: Problem) -> Claims:
        """|x - x*|^2 contracts by 1 - gamma mu: the paper's Theorem 3.6 with p = 1."""

        def distance(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            return float(np.sum((x - s.x) ** 2))

        return Claims(None if problem.mu is None else self.gamma * problem.mu, from_solution(problem, distance))


@dataclass(frozen=True, slots=True)
class ProxGD(GD):
    """Proximal gradient descent: the prox in every step. Without psi it is gradient descent.

    Y. Nesterov, Gradient methods for minimizing composite functions, 2013; paper, equation (2).

        x+ = prox_{gamma psi}(x - gamma grad f(x))
    """

    about = About(
        name="proxgd",
        title="proximal gradient descent",
        reference="Nesterov, Gradient Methods for Minimizing Composite Functions, 2013",
        handles=frozenset({"batch", "clients", "psi"}),
        style=Style("#7F7F7F", "-", "s"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """A step of the mean, then the prox."""
        (y,) = exchange(self.local, server["x"], K=1)
        return {"x": y if exchange.problem.psi is None else exchange.prox(y, self.gamma)}

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/L."""
        return StepLimits.one_over_L(s.L, "Nesterov, Gradient Methods for Minimizing Composite Functions, 2013")
