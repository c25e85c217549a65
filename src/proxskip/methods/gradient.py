"""GD, ProxGD and LocalGD: gradient steps without a control variate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from proxskip.core.exchange import Client, Exchange, Sent
from proxskip.core.method import About, Claims, Method, Style, chosen, from_solution
from proxskip.methods import steps
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class GD(Method):
    """Gradient descent.

    Y. Nesterov, Lectures on Convex Optimization, 2018, Section 2.1.5.

        x+ = x - gamma * sum_i w_i grad f_i(x)

    Args:
        gamma: the step size.
    """

    gamma: float = chosen()

    about = About(
        name="gd",
        title="gradient descent",
        reference="Nesterov, Lectures on Convex Optimization, 2018",
        handles=frozenset({"batch", "clients", "weights"}),
        style=Style("#7F7F7F", "-", "s"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The mean of one step each is one step of the mean."""
        (x,) = exchange(self.local, server["x"], K=1)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        return (client.send(client.descend(x, 0.0, self.gamma, K)),), {}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Self:
        """gamma = 1/L with the smoothness of the average, which is all that GD needs."""
        if self.gamma is not None:
            return self
        # the mean of the clients' steps is a step of the average, whose L can be far below max_i L_i; with minibatches
        # the worst client's A counts
        return replace(self, gamma=1.0 / (problem.L_average if problem.batch is None else problem.es_A))

    def smoothness(self, problem: Problem) -> float:
        """That of the average."""
        return problem.L_average

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L; from 2/L on it diverges."""
        return StepLimits.one_over_L(s.L, "Nesterov, Lectures on Convex Optimization, 2018; linear below 2/L")

    def claims(self, problem: Problem) -> Claims:
        """|x - x*|^2 contracts by 1 - gamma mu: the paper's Theorem 3.6 with p = 1."""

        def distance(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            return float(np.sum((x - s.x) ** 2))

        return Claims(None if problem.mu is None else self.gamma * problem.mu, from_solution(problem, distance))


@dataclass(frozen=True, slots=True, repr=False)
class ProxGD(GD):
    """Proximal gradient descent: the prox in every step. Without psi it is gradient descent.

    Y. Nesterov, Gradient methods for minimizing composite functions, 2013; paper, equation (2).

        x+ = prox_{gamma psi}(x - gamma grad f(x))

    Args:
        gamma: the step size.
    """

    about = About(
        name="proxgd",
        title="proximal gradient descent",
        reference="Nesterov, Gradient Methods for Minimizing Composite Functions, 2013",
        handles=frozenset({"batch", "clients", "weights", "psi"}),
        style=Style("#785A78", "-", "s"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        (y,) = exchange(self.local, server["x"], K=1)
        return {"x": y if exchange.problem.psi is None else exchange.prox(y, self.gamma)}

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L."""
        source = "Nesterov, Gradient Methods for Minimizing Composite Functions, 2013"
        return StepLimits.one_over_L(s.L, source)


class LocalMethod(Method):
    """A method with K local steps a round, whose figures take gamma = 1/(K L)."""

    __slots__ = ()

    def step(self, s: Setting, figure: bool) -> float:
        """The theorem's step size, or that of the figures."""
        limits = self.limits(s)
        assert limits is not None
        assert limits.theorem is not None
        return limits.figure if figure else limits.theorem


@dataclass(frozen=True, slots=True, repr=False)
class LocalGD(LocalMethod):
    """Local gradient descent: K steps at home, then the mean; it stalls at a biased point unless clients agree.

    A. Khaled, K. Mishchenko, P. Richtarik, Tighter theory for Local SGD on identical and heterogeneous data,
    AISTATS 2020, arXiv:1909.04746.

        xhat_i = K times  y <- y - gamma g_i(y)   from y = x
        x+     = sum_i w_i xhat_i

    Args:
        gamma: the step size.
        K: the local steps in a round.
    """

    gamma: float = chosen()
    K: int = chosen()

    about = About(
        name="local-gd",
        title="LocalGD",
        reference="Khaled, Mishchenko, Richtarik, Tighter Theory for Local SGD, AISTATS 2020, arXiv:1909.04746",
        handles=frozenset({"batch", "clients", "weights", "cohort"}),
        sends=frozenset({"local"}),
        style=Style("#E69F00", ":", "v"),
        other_names=("local-sgd", "fedavg"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        (x,) = exchange(self.local, server["x"], K=self.K)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        return (client.send(client.descend(x, 0.0, self.gamma, K)),), {}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> LocalGD:
        """The step size of Khaled et al., or 1/(K L) of the figures; K = sqrt(kappa)."""
        K = steps.local_steps(problem) if self.K is None else self.K
        gamma = self.step(Setting.of(problem.es_A, K=K), figure) if self.gamma is None else self.gamma
        return replace(self, gamma=gamma, K=K)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma <= 1/L; from 2/L on it diverges."""
        return self.check_steps(problem, allow_unsafe_step, K=self.K)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """min(1/(4 L), 1/(8 L (K - 1)))."""
        # K = 1 is gradient descent, without the second bound
        theorem = 1 / (4 * s.L) if s.K == 1 else min(1 / (4 * s.L), 1 / (8 * s.L * (s.K - 1)))
        source = "Khaled, Mishchenko, Richtarik, Tighter Theory for Local SGD on Identical and Heterogeneous Data, "
        source += "AISTATS 2020 (convergence to a neighborhood only)"
        return StepLimits(theorem, 1 / (s.K * s.L), 1 / s.L, 2 / s.L, source)
