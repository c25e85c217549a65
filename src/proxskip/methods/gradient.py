"""GD and ProxGD: one gradient of everybody, one exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import Client, Exchange
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class GD:
    """Gradient descent.

    Y. Nesterov, Lectures on Convex Optimization, 2018, Section 2.1.5.

        x+ = x - gamma * sum_i w_i grad f_i(x)
    """

    gamma: float

    name: ClassVar[str] = "gd"
    handles: ClassVar[frozenset[str]] = frozenset({"batch", "clients"})
    remembers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def theory(cls, problem: Problem) -> GD:
        """gamma = 1/L with the smoothness of the average, which is all that GD needs."""
        return cls(gamma=1.0 / (problem.L_global if problem.batch is None else problem.es_A))

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L; from 2/L on it diverges."""
        return steps.check_steps("gd", self.gamma, problem, insist, L=problem.L_global)

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x."""
        return {"x": x0}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """One plain step."""
        return (client.descend(x, 0.0, self.gamma, K),), {}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The mean of one step each is one step of the mean."""
        (x,) = exchange(self.local, server["x"], K=1)
        return {"x": x}

    def zeta(self, problem: Problem) -> float | None:
        """gamma mu: the paper's Theorem 3.6 with p = 1."""
        return None if problem.mu is None else self.gamma * problem.mu

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """|x - x*|^2."""
        return None if problem.solution is None else float(np.sum((x - problem.solution.x) ** 2))


@dataclass(frozen=True, slots=True)
class ProxGD:
    """Proximal gradient descent: the prox in every step.

    Y. Nesterov, Gradient methods for minimizing composite functions, 2013; paper, equation (2).

        x+ = prox_{gamma psi}(x - gamma grad f(x))
    """

    gamma: float

    name: ClassVar[str] = "proxgd"
    handles: ClassVar[frozenset[str]] = frozenset({"batch", "clients", "psi"})
    remembers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def theory(cls, problem: Problem) -> ProxGD:
        """gamma = 1/L with the smoothness of the average."""
        return cls(gamma=GD.theory(problem).gamma)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L."""
        return steps.check_steps("proxgd", self.gamma, problem, insist, L=problem.L_global)

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x."""
        return {"x": x0}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """One plain step."""
        return (client.descend(x, 0.0, self.gamma, K),), {}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """A step of the mean, then the prox."""
        (y,) = exchange(self.local, server["x"], K=1)
        return {"x": y if exchange.problem.psi is None else exchange.prox(y, self.gamma)}

    def zeta(self, problem: Problem) -> float | None:
        """gamma mu."""
        return None if problem.mu is None else self.gamma * problem.mu

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """|x - x*|^2."""
        return None if problem.solution is None else float(np.sum((x - problem.solution.x) ** 2))
