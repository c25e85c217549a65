"""LocalGD / LocalSGD (FedAvg): local steps without a control variate. Biased on heterogeneous data."""

from __future__ import annotations

from dataclasses import dataclass

from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import About, Client, Exchange, Method, Style
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class LocalGD(Method):
    """Local gradient descent: K steps at home, then the mean; it stalls at a biased point unless clients agree.

    A. Khaled, K. Mishchenko, P. Richtarik, Tighter theory for Local SGD on identical and heterogeneous data,
    AISTATS 2020, arXiv:1909.04746.

        xhat_i = K times  y <- y - gamma g_i(y)   from y = x
        x+     = sum_i w_i xhat_i
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
        """The mean of what came up."""
        (x,) = exchange(self.local, server["x"], K=self.K)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """K plain steps."""
        return (client.send(client.descend(x, 0.0, self.gamma, K)),), {}

    @classmethod
    def theory(cls, problem: Problem, K: int | None = None) -> LocalGD:
        """The step size of Khaled et al., with K = sqrt(kappa) where it is not given."""
        K = K or steps.local_steps(problem)
        return cls(gamma=cls.limits(Setting.of(problem.es_A, K=K)).theorem or 0.0, K=K)

    @classmethod
    def paper_figure(cls, problem: Problem, K: int | None = None) -> LocalGD:
        """gamma = 1/(K L), as in Figure 1b and Table 1."""
        K = K or steps.local_steps(problem)
        return cls(gamma=cls.limits(Setting.of(problem.es_A, K=K)).figure, K=K)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L; from 2/L on it diverges."""
        steps.check_count("K", self.K)
        return self.check_steps(problem, insist, K=self.K)

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """min(1/(4 L), 1/(8 L (K - 1)))."""
        # K = 1 is gradient descent, and the second bound would divide by zero
        theorem = 1 / (4 * s.L) if s.K == 1 else min(1 / (4 * s.L), 1 / (8 * s.L * (s.K - 1)))
        source = "Khaled, Mishchenko, Richtarik, Tighter Theory for Local SGD on Identical and Heterogeneous Data, "
        source += "AISTATS 2020 (convergence to a neighborhood only)"
        return StepLimits(theorem, 1 / (s.K * s.L), 1 / s.L, 2 / s.L, source)
