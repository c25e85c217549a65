"""GD, ProxGD and LocalGD: gradient steps without a control variate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from proxskip.interfaces import About, Claims, Client, Exchange, Method, Sent, Style, from_solution
from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class GD(Method):
    """Gradient descent.

    Y. Nesterov, Lectures on Convex Optimization, 2018, Section 2.1.5.

        x+ = x - gamma * sum_i w_i grad f_i(x)

    Args:
        gamma: the step size.
    """

    gamma: float

    about = About(
        name="gd",
        title="gradient descent",
        reference="Nesterov, Lectures on Convex Optimization, 2018",
        handles=frozenset({"batch", "clients"}),
        style=Style("#7F7F7F", "-", "s"),
        one_over_L="Nesterov, Lectures on Convex Optimization, 2018; linear for every step below 2/L",
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The mean of one step each is one step of the mean."""
        (x,) = exchange(self.local, server["x"], K=1)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        return (client.send(client.descend(x, 0.0, self.gamma, K)),), {}

    @classmethod
    def theory(cls, problem: Problem) -> Self:
        """gamma = 1/L with the smoothness of the average, which is all that GD needs."""
        # the mean of the clients' steps is a step of the average, whose L can be far below max_i L_i; with minibatches
        # the worst client's A counts
        return cls(gamma=1.0 / (problem.L_global if problem.batch is None else problem.es_A))

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L; from 2/L on it diverges."""
        return self.check_steps(problem, insist, L=lambda: problem.L_global)

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

    Args:
        gamma: the step size.
    """

    about = About(
        name="proxgd",
        title="proximal gradient descent",
        reference="Nesterov, Gradient Methods for Minimizing Composite Functions, 2013",
        handles=frozenset({"batch", "clients", "psi"}),
        style=Style("#785A78", "-", "s"),
        one_over_L="Nesterov, Gradient Methods for Minimizing Composite Functions, 2013",
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        (y,) = exchange(self.local, server["x"], K=1)
        return {"x": y if exchange.problem.psi is None else exchange.prox(y, self.gamma)}


class LocalMethod(Method):
    """A method with K local steps a round, whose figures take gamma = 1/(K L)."""

    __slots__ = ()

    @classmethod
    def paper_figure(cls, problem: Problem, *args: Any, **parameters: Any) -> Any:
        """gamma = 1/(K L), as in Figure 1b and Table 1."""
        best = cls.theory(problem, *args, **parameters)
        limits = cls.limits(Setting.of(problem.es_A, K=best.K))
        assert limits is not None
        return replace(best, gamma=limits.figure)


@dataclass(frozen=True, slots=True)
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

    gamma: float
    K: int

    about = About(
        name="local-gd",
        title="LocalGD",
        reference="Khaled, Mishchenko, Richtarik, Tighter Theory for Local SGD, AISTATS 2020, arXiv:1909.04746",
        handles=frozenset({"batch", "clients", "cohort"}),
        sends=frozenset({"local"}),
        style=Style("#E69F00", ":", "v"),
        other_names=("local-sgd", "fedavg"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        (x,) = exchange(self.local, server["x"], K=self.K)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        return (client.send(client.descend(x, 0.0, self.gamma, K)),), {}

    @classmethod
    def theory(cls, problem: Problem, K: int | None = None) -> LocalGD:
        """The step size of Khaled et al., with K = sqrt(kappa) where it is not given."""
        K = K or steps.local_steps(problem)
        return cls(gamma=cls.limits(Setting.of(problem.es_A, K=K)).theorem or 0.0, K=K)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L; from 2/L on it diverges."""
        return self.check_steps(problem, insist, K=self.K)

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """min(1/(4 L), 1/(8 L (K - 1)))."""
        # K = 1 is gradient descent, without the second bound
        theorem = 1 / (4 * s.L) if s.K == 1 else min(1 / (4 * s.L), 1 / (8 * s.L * (s.K - 1)))
        source = "Khaled, Mishchenko, Richtarik, Tighter Theory for Local SGD on Identical and Heterogeneous Data, "
        source += "AISTATS 2020 (convergence to a neighborhood only)"
        return StepLimits(theorem, 1 / (s.K * s.L), 1 / s.L, 2 / s.L, source)
