"""LocalGD / LocalSGD (FedAvg): local steps without a control variate. Biased on heterogeneous data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import Client, Exchange
from proxskip.theory import table1
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class LocalGD:
    """Local gradient descent: K steps at home, then the mean; it stalls at a biased point unless clients agree.

    A. Khaled, K. Mishchenko, P. Richtarik, Tighter theory for Local SGD on identical and heterogeneous data,
    AISTATS 2020, arXiv:1909.04746.

        xhat_i = K times  y <- y - gamma g_i(y)   from y = x
        x+     = sum_i w_i xhat_i
    """

    gamma: float
    K: int

    name: ClassVar[str] = "local-gd"
    handles: ClassVar[frozenset[str]] = frozenset({"batch", "clients", "cohort"})
    remembers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def theory(cls, problem: Problem, K: int | None = None) -> LocalGD:
        """The step size of Khaled et al., with K = sqrt(kappa) where it is not given."""
        K = K or steps.local_steps(problem)
        return cls(gamma=table1.step_limits("local-gd", problem.es_A, K=K).theorem or 0.0, K=K)

    @classmethod
    def paper_figure(cls, problem: Problem, K: int | None = None) -> LocalGD:
        """gamma = 1/(K L), as in Figure 1b and Table 1."""
        K = K or steps.local_steps(problem)
        return cls(gamma=table1.step_limits("local-gd", problem.es_A, K=K).figure, K=K)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L; from 2/L on it diverges."""
        steps.check_count("K", self.K)
        return steps.check_steps("local-gd", self.gamma, problem, insist, K=self.K)

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x."""
        return {"x": x0}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """K plain steps."""
        return (client.descend(x, 0.0, self.gamma, K),), {}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The mean of what came up."""
        (x,) = exchange(self.local, server["x"], K=self.K)
        return {"x": x}

    def zeta(self, problem: Problem) -> float | None:
        """No linear rate to the solution."""
        return None

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """None: it does not converge to the solution."""
        return None
