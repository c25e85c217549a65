"""DIGing and EXTRA: what gossip methods do without skipping, the yardsticks of Decentralized Scaffnew.

Both are written here with a control variate h_i, in which their lines are those of their papers: sum_i h_i = 0
throughout, and h_i goes to grad f_i(x*), as in Scaffnew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxskip import theory
from proxskip.links.graphs import Graph, as_graph
from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import About, Client, Exchange, Method, Style
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True)
class DIGing(Method):
    """Gradient tracking: y_i follows the average gradient, at the price of a second vector along every edge.

    A. Nedic, A. Olshevsky, W. Shi, Achieving geometric convergence for distributed optimization over time-varying
    graphs, SIAM J. Optim. 2017, arXiv:1607.03218. Theirs is  y_i+ = sum_j W_ij y_j + g_i(x_i+) - g_i(x_i)  from
    y_i = g_i(x_0); put h_i = g_i(x_i) - y_i:

        y_i  = g_i(x_i) - h_i
        x_i+ = sum_j W_ij x_j - gamma y_i
        h_i+ = h_i + y_i - sum_j W_ij y_j
    """

    gamma: float
    graph: Graph

    about = About(
        name="diging",
        title="DIGing (gradient tracking)",
        reference="Nedic, Olshevsky, Shi, SIAM J. Optim. 2017, arXiv:1607.03218",
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "y"),
        style=Style("#0072B2", "--", "P"),
        other_names=("gradient-tracking",),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One gossip step of two vectors."""
        exchange.gossip(self.local, self.graph, 1)
        exchange.settle(self.settle)
        return server

    def local(self, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
        """x_i and y_i go to the neighbors; one step says what y_i is."""
        # a step is x - gamma (g(x) - h) = x - gamma y: it says what y is without a second gradient
        y = (memory["x"] - client.descend(memory["x"], memory["h"], self.gamma, K)) / self.gamma
        return (memory["x"], y), {"y": y}

    def settle(self, client: Client, memory: Vectors, x: Array, y: Array) -> Vectors:
        """With the neighbors' x and y."""
        return {"x": x - self.gamma * memory["y"], "h": memory["h"] + memory["y"] - y}

    @classmethod
    def theory(cls, problem: Problem, graph: Any = "ring", seed: int = 0) -> DIGing:
        """The step with the best proved rate, ``theory.tracking_step``, with L = max_i L_i and mu = min_i mu_i."""
        link = as_graph(graph, problem.n, seed=seed)
        return cls(gamma=theory.tracking_step(problem.es_A, problem.mu, link.sigma), graph=link)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """Equal weights, one node per client; from (2 - lmax)^2/(2 L) on it is refused."""
        steps.check_gossip(self.graph, problem)
        limits = {"lmax": self.graph.lmax, "sigma": self.graph.sigma, "mu": problem.mu}
        return self.check_steps(problem, insist, **limits)

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """The step with the best proved rate; refused from (2 - lmax)^2/(2 L) on."""
        _check_spectrum("DIGing", s.lmax)
        theorem = None if s.mu is None else theory.tracking_step(s.L, s.mu, s.sigma)
        end = min(2.0, (2 - s.lmax) ** 2 / 2) / s.L
        source = "Qu and Li, Harnessing smoothness to accelerate distributed optimization, 2018, the best proved rate; "
        source += "refused where equal quadratics diverge, which is exact: (2 - lmax)^2/(2 L)"
        # no theorem without mu: half of where it diverges
        usual = end / 2 if theorem is None else theorem
        return StepLimits(theorem, usual, usual, end, source)


@dataclass(frozen=True, slots=True)
class EXTRA(Method):
    """Gossip with a correction that adds up the disagreement; one vector along every edge.

    W. Shi, Q. Ling, G. Wu, W. Yin, EXTRA: an exact first-order algorithm for decentralized consensus optimization,
    SIAM J. Optim. 2015, arXiv:1404.6264, with W~ = (I + W)/2. Theirs is  x^{k+1} = W x^k - gamma g(x^k) + sum_{t<k}
    (W - W~) x^t; put -gamma h for minus the sum:

        xhat_i = x_i - gamma (g_i(x_i) - h_i)
        x_i+   = xhat_i - (x_i - sum_j W_ij x_j)
        h_i+   = h_i - (1/(2 gamma)) (x_i - sum_j W_ij x_j)
    """

    gamma: float
    graph: Graph

    about = About(
        name="extra",
        title="EXTRA",
        reference="Shi, Ling, Wu, Yin, EXTRA, SIAM J. Optim. 2015, arXiv:1404.6264",
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "xhat"),
        style=Style("#009E73", "-.", "X"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One gossip step."""
        exchange.gossip(self.local, self.graph, 1)
        exchange.settle(self.settle)
        return server

    def local(self, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
        """One step at home; x_i goes to the neighbors."""
        return (memory["x"],), {"xhat": client.descend(memory["x"], memory["h"], self.gamma, K)}

    def settle(self, client: Client, memory: Vectors, mixed: Array) -> Vectors:
        """With the neighbors' x."""
        apart = memory["x"] - mixed
        return {"x": memory["xhat"] - apart, "h": memory["h"] - (0.5 / self.gamma) * apart}

    @classmethod
    def theory(cls, problem: Problem, graph: Any = "ring", seed: int = 0) -> EXTRA:
        """gamma = (2 - lmax)/(2 L), half of the bound 2 lmin(W~)/L = (2 - lmax)/L of the paper's Theorem 3.3."""
        link = as_graph(graph, problem.n, seed=seed)
        return cls(gamma=cls.limits(Setting.of(problem.es_A, lmax=link.lmax)).figure / 2, graph=link)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """Equal weights, one node per client; from (8 - 3 lmax)/(4 L) on it is refused."""
        steps.check_gossip(self.graph, problem)
        return self.check_steps(problem, insist, lmax=self.graph.lmax)

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """(2 - lmax)/L; refused from (8 - 3 lmax)/(4 L) on."""
        _check_spectrum("EXTRA", s.lmax)
        bound, end = (2 - s.lmax) / s.L, min(2.0, (8 - 3 * s.lmax) / 4) / s.L
        source = "Shi, Ling, Wu, Yin, EXTRA, SIAM J. Optim. 2015, Theorem 3.3: below 2 lmin((I + W)/2)/L = "
        source += "(2 - lmax)/L; refused where equal quadratics diverge, which is exact: (8 - 3 lmax)/(4 L)"
        return StepLimits(bound, bound, bound, end, source)


def _check_spectrum(method: str, lmax: float) -> None:
    # lmax = 1 - lmin(W): at lmin(W) = -1 the disagreement of two groups changes its sign in every round, for ever
    if lmax >= 2 * (1 - 1e-9):
        raise InputError(f"{method} needs every eigenvalue of W above -1; take (I + W)/2 (psd).")
