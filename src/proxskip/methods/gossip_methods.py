"""Methods without a server: a communication is a gossip step along a graph.

All have control variates h_i with sum_i h_i = 0, which tend to grad f_i(x*), as in Scaffnew. DIGing and EXTRA, which do
not skip, are those of their papers in these variables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent, SettleHalf
from proxskip.core.gossip import Links, RandomLinks, largest_weight, links_of
from proxskip.core.method import About, Claims, Lyapunov, Method, Style, chosen, constant, from_solution
from proxskip.graphs import Graph, as_graph
from proxskip.methods import steps
from proxskip.methods.proxskip import PAPER
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


class GossipMethod(Method):
    """A method whose round is one local step and one gossip step along ``links``."""

    __slots__ = ()
    graph: Graph
    settle: ClassVar[SettleHalf]

    def network(self, problem: Problem) -> Graph:
        """The graph over the problem's clients, from whatever describes it; a ring if it is not given."""
        return as_graph("ring" if self.graph is None else self.graph, problem.n)

    @property
    def links(self) -> Links:
        """The graph, or its random links if they may fail; delta and lmax are theirs."""
        return links_of(self.graph)

    def local(self, client: Client, memory: Vectors, K: int) -> Sent:
        """K steps; xhat_i goes to the neighbors."""
        xhat = client.descend(memory["x"], memory["h"], self.gamma, K)
        # not through ``send``: there is no server, and vectors go along the edges unchanged
        return (xhat,), {"xhat": xhat}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        exchange.gossip(self.local, self.links, 1)
        exchange.settle(self.settle)
        return server


@dataclass(frozen=True, slots=True, repr=False)
class DecentralizedScaffnew(GossipMethod):
    """Scaffnew over a graph with mixing matrix W.

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip: Yes! Local gradient steps provably lead to
    communication acceleration! Finally!, ICML 2022, arXiv:2202.09357, Algorithm 3 (the sign of the h update in the
    paper's proof is a misprint; the algorithm is right). K ~ Geom(p), W any symmetric doubly
    stochastic matrix of a connected graph.

        xhat_i = K times  y <- y - gamma (g_i(y) - h_i)   from y = x_i
        x_i+   = (1 - gamma tau/p) xhat_i + (gamma tau/p) sum_j W_ij xhat_j
        h_i+   = h_i + (p/gamma) (x_i+ - xhat_i)

    With tau = p/(2 chi gamma) it is the method of L. Guo, S. A. Alghunaim, K. Yuan, L. Condat, J. Cao, Achieving linear
    speedup with ProxSkip in distributed stochastic optimization, 2023, arXiv:2310.07983. Links may fail at random
    (``Graph.failing``).

    Args:
        gamma: the step size.
        p: the probability of communicating after a step; a round has 1/p steps on average.
        tau: the step size along the links, at most p/(gamma lmax(I - W)).
        graph: who is linked to whom, from ``proxskip.graphs``; one node per client.
        K: a fixed number of local steps instead of a drawn one.
    """

    gamma: float = chosen()
    p: float = chosen()
    tau: float = chosen()
    graph: Graph = chosen()
    K: int | None = None

    about = About(
        name="decentralized-scaffnew",
        title="decentralized Scaffnew",
        reference=PAPER + "arXiv:2202.09357",
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "xhat"),
        style=Style("#C33C5A", "--", "D"),
        other_names=("decentralized",),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        # every client draws the same K from the seed and the round
        K = steps.geometric(exchange.rng, self.p) if self.K is None else self.K
        exchange.gossip(self.local, self.links, K)
        exchange.settle(self.settle)
        return server

    def settle(self, client: Client, memory: Vectors, mixed: Array) -> Vectors:
        """Lines 7 and 8."""
        share = self.gamma * self.tau / self.p
        x = (1.0 - share) * memory["xhat"] + share * mixed
        return {"x": x, "h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])}

    def complete(
        self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False
    ) -> DecentralizedScaffnew:
        """Theorem 5.7: gamma = 1/L, tau = p/(gamma lmax(I - W)), p = min(1, sqrt(gamma mu lmax/delta))."""
        graph = self.network(problem)
        gamma = self.gamma
        p = self.p
        links = links_of(graph)
        if gamma is None:
            gamma = steps.largest_step(problem)
        if p is None and self.K is not None:
            p = 1.0 / self.K
        if p is None:
            p = theory.split_p(gamma, steps.known_mu(problem, "p", "p or K"), links.lmax, links.delta)
        tau = theory.split_tau(gamma, p, links.lmax) if self.tau is None else self.tau
        return replace(self, gamma=gamma, p=p, tau=tau, graph=graph)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L."""
        return StepLimits.one_over_L(s.L, PAPER + "Theorem 5.7")

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma <= 1/L, tau <= p/(gamma lmax(I - W)), equal weights, one node per client."""
        steps.check_gossip(self.graph, problem, may_fail=True)
        warnings = self.check_steps(problem, allow_unsafe_step)
        # beyond this bound the gossip step expands, whatever gamma is
        theory.check_tau(self.tau, self.gamma, self.p, self.links.lmax)
        return warnings

    def claims(self, problem: Problem) -> Claims:
        """Phi contracts by 1 - min(gamma mu, p gamma tau delta): Theorem 5.7.

        Where links fail, p in Phi is the probability that a link is used.
        """
        zeta = None
        if problem.mu is not None and self.K is None:  # the theorem is about a drawn K
            zeta = theory.split_zeta(self.gamma, problem.mu, self.p, self.tau, self.links.delta)
        return Claims(zeta, _lyapunov(problem, self, self.p * (1.0 - self.graph.failure)))


def _lyapunov(problem: Problem, method: DecentralizedScaffnew | RandomGossip, p: float) -> Lyapunov:
    """Phi of Theorem 5.7, where p is the probability that a link is used."""

    def phi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
        X = memory["x"]
        H = memory["h"]
        W = method.graph.W
        return theory.decentralized_lyapunov(X, H, s.x, s.h, method.gamma, p, method.tau, W)

    return from_solution(problem, phi)


RANDPROX = "Condat, Richtarik, RandProx, ICLR 2023, arXiv:2207.12891"


@dataclass(frozen=True, slots=True, repr=False)
class RandomGossip(GossipMethod):
    """RandProx whose dual variables are the links of a graph: each wakes with its own coin, and carries k of d numbers.

    L. Condat, P. Richtarik, RandProx: Primal-dual optimization algorithms with randomized proximal updates, ICLR 2023,
    arXiv:2207.12891. We read its abstract; this instance, and its rate, were derived for the library
    (``theory.random_gossip_tau``). One step a round; A_ij is 1 in the coordinates that the link ij carries in this
    round, if it is awake (with probability p_e), and 0 elsewhere; 1 + omega = d/(k p_e).

        xhat_i = x_i - gamma (g_i(x_i) - h_i)
        m_i    = sum_j W_ij A_ij (xhat_j - xhat_i)
        x_i+   = xhat_i + gamma tau (1 + omega) m_i
        h_i+   = h_i + tau m_i

    Args:
        gamma: the step size.
        tau: the dual step size; ``theory.random_gossip_tau`` is its largest value.
        graph: who is linked to whom, from ``proxskip.graphs``; one node per client.
        p_e: the probability that a link is awake in a round.
        k: how many coordinates a link carries; all of them if it is not given.
        omega: d/(k p_e) - 1, the variance that sleeping links and left out coordinates cause.
    """

    gamma: float = chosen()
    tau: float = chosen()
    graph: Graph = chosen()
    p_e: float = chosen()
    k: int | None = None
    omega: float = constant()

    about = About(
        name="random-gossip",
        title="random gossip",
        reference=RANDPROX,
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "xhat"),
        style=Style("#E1A5A5", ":", "v"),
    )

    @property
    def links(self) -> Links:
        """The links that may wake; a failing link is one that sleeps."""
        return RandomLinks(self.graph, self.p_e * (1.0 - self.graph.failure), self.k)

    def settle(self, client: Client, memory: Vectors, mixed: Array) -> Vectors:
        """Move x and h by what arrived."""
        # exactly zero where nothing arrived
        m = mixed - memory["xhat"]
        return {"x": memory["xhat"] + (self.gamma * self.tau * (1.0 + self.omega)) * m, "h": memory["h"] + self.tau * m}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> RandomGossip:
        """gamma = 1/L, tau at its limit, and the smallest p_e that does not slow it down; 1 where mu is unknown."""
        graph = self.network(problem)
        gamma = self.gamma
        p_e = self.p_e
        w, share = largest_weight(graph), self._share(problem, graph)
        if gamma is None:
            gamma = steps.largest_step(problem)
        if p_e is None and problem.mu is None:
            p_e = 1.0
        if p_e is None:
            best = theory.random_gossip_omega(gamma, problem.mu, graph.delta, graph.lmax, w)
            p_e = min(1.0, 1.0 / ((1.0 + best) * share))
        omega = 1.0 / (share * p_e) - 1.0 if self.omega is None else self.omega
        tau = theory.random_gossip_tau(gamma, omega, graph.lmax, w) if self.tau is None else self.tau
        return replace(self, gamma=gamma, tau=tau, graph=graph, p_e=p_e, omega=omega)

    def _share(self, problem: Problem, graph: Graph) -> float:
        """The share of the coordinates that arrives along an active link, in the mean; a failing link sleeps more."""
        carried = problem.d if self.k is None else min(self.k, problem.d)
        return carried / problem.d * (1.0 - graph.failure)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L."""
        return StepLimits.one_over_L(s.L, RANDPROX + ", an instance derived for the library")

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma <= 1/L, gamma tau (lmax + 2 omega w) <= 1, equal weights, one node per client."""
        steps.check_gossip(self.graph, problem, may_fail=True)
        right = 1.0 / (self._share(problem, self.graph) * self.p_e) - 1.0
        if abs(self.omega - right) > 1e-9 * (1.0 + right):
            raise InputError(f"omega = {self.omega:g} must be d/(k p_e) - 1 = {right:g} for links awake this often.")
        warnings = self.check_steps(problem, allow_unsafe_step)
        limit = theory.random_gossip_tau(self.gamma, self.omega, self.graph.lmax, largest_weight(self.graph))
        if not 0 < self.tau <= limit * (1 + 1e-9):
            raise InputError(f"tau = {self.tau:g} must be positive and at most {limit:g}.")
        return warnings

    def claims(self, problem: Problem) -> Claims:
        """Decentralized Scaffnew's Phi and rate with 1/(1 + omega) in the place of p."""
        p, zeta = 1.0 / (1.0 + self.omega), None
        if problem.mu is not None:
            zeta = theory.split_zeta(self.gamma, problem.mu, p, self.tau, self.graph.delta)
        return Claims(zeta, _lyapunov(problem, self, p))


@dataclass(frozen=True, slots=True, repr=False)
class DIGing(GossipMethod):
    """Gradient tracking: y_i follows the average gradient, at the price of a second vector along every edge.

    A. Nedic, A. Olshevsky, W. Shi, Achieving geometric convergence for distributed optimization over time-varying
    graphs, SIAM J. Optim. 2017, arXiv:1607.03218. Theirs is  y_i+ = sum_j W_ij y_j + g_i(x_i+) - g_i(x_i)  from
    y_i = g_i(x_0); put h_i = g_i(x_i) - y_i:

        y_i  = g_i(x_i) - h_i
        x_i+ = sum_j W_ij x_j - gamma y_i
        h_i+ = h_i + y_i - sum_j W_ij y_j

    Args:
        gamma: the step size.
        graph: who is linked to whom, from ``proxskip.graphs``; one node per client.
    """

    gamma: float = chosen()
    graph: Graph = chosen()

    about = About(
        name="diging",
        title="DIGing (gradient tracking)",
        reference="Nedic, Olshevsky, Shi, SIAM J. Optim. 2017, arXiv:1607.03218",
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "y"),
        style=Style("#A5B4D2", "--", "P"),
        other_names=("gradient-tracking",),
    )

    def local(self, client: Client, memory: Vectors, K: int) -> Sent:
        """x_i and y_i go to the neighbors; one step says what y_i is."""
        # a step is x - gamma (g(x) - h) = x - gamma y, so y needs no second gradient
        y = (memory["x"] - client.descend(memory["x"], memory["h"], self.gamma, K)) / self.gamma
        return (memory["x"], y), {"y": y}

    def settle(self, client: Client, memory: Vectors, x: Array, y: Array) -> Vectors:
        """With the neighbors' x and y."""
        return {"x": x - self.gamma * memory["y"], "h": memory["h"] + memory["y"] - y}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> DIGing:
        """The step with the best proved rate, ``theory.tracking_step``, with L = max_i L_i and mu = min_i mu_i."""
        graph, gamma = self.network(problem), self.gamma
        if gamma is None:
            gamma = theory.tracking_step(problem.es_A, steps.known_mu(problem, "gamma"), graph.sigma)
        return replace(self, gamma=gamma, graph=graph)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """Equal weights, one node per client; from (2 - lmax)^2/(2 L) on it is refused."""
        steps.check_gossip(self.graph, problem)
        limits = {"lmax": self.graph.lmax, "sigma": self.graph.sigma, "mu": problem.mu}
        return self.check_steps(problem, allow_unsafe_step, **limits)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """The step with the best proved rate; refused from (2 - lmax)^2/(2 L) on."""
        _check_spectrum("DIGing", s.lmax)
        theorem = None if s.mu is None else theory.tracking_step(s.L, s.mu, s.sigma)
        end = min(2.0, (2 - s.lmax) ** 2 / 2) / s.L
        source = "Qu and Li, Harnessing smoothness to accelerate distributed optimization, 2018, the best proved rate; "
        source += "refused where equal quadratics diverge, which is exact: (2 - lmax)^2/(2 L)"
        # no theorem without mu: half of the divergence limit
        usual = end / 2 if theorem is None else theorem
        return StepLimits(theorem, usual, usual, end, source)


@dataclass(frozen=True, slots=True, repr=False)
class EXTRA(GossipMethod):
    """Gossip with a correction that adds up the disagreement; one vector along every edge.

    W. Shi, Q. Ling, G. Wu, W. Yin, EXTRA: an exact first-order algorithm for decentralized consensus optimization,
    SIAM J. Optim. 2015, arXiv:1404.6264, with W~ = (I + W)/2. Theirs is  x^{k+1} = W x^k - gamma g(x^k) + sum_{t<k}
    (W - W~) x^t; put -gamma h for minus the sum:

        xhat_i = x_i - gamma (g_i(x_i) - h_i)
        x_i+   = xhat_i - (x_i - sum_j W_ij x_j)
        h_i+   = h_i - (1/(2 gamma)) (x_i - sum_j W_ij x_j)

    Args:
        gamma: the step size.
        graph: who is linked to whom, from ``proxskip.graphs``; one node per client.
    """

    gamma: float = chosen()
    graph: Graph = chosen()

    about = About(
        name="extra",
        title="EXTRA",
        reference="Shi, Ling, Wu, Yin, EXTRA, SIAM J. Optim. 2015, arXiv:1404.6264",
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "xhat"),
        style=Style("#A587C3", "-.", "X"),
    )

    def local(self, client: Client, memory: Vectors, K: int) -> Sent:
        """One step at home; x_i goes to the neighbors."""
        return (memory["x"],), {"xhat": client.descend(memory["x"], memory["h"], self.gamma, K)}

    def settle(self, client: Client, memory: Vectors, mixed: Array) -> Vectors:
        """With the neighbors' x."""
        apart = memory["x"] - mixed
        return {"x": memory["xhat"] - apart, "h": memory["h"] - (0.5 / self.gamma) * apart}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> EXTRA:
        """gamma = (2 - lmax)/(2 L), half of the bound 2 lmin(W~)/L = (2 - lmax)/L of the paper's Theorem 3.3."""
        graph, gamma = self.network(problem), self.gamma
        if gamma is None:
            gamma = self.limits(Setting.of(problem.es_A, lmax=graph.lmax)).figure / 2
        return replace(self, gamma=gamma, graph=graph)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """Equal weights, one node per client; from (8 - 3 lmax)/(4 L) on it is refused."""
        steps.check_gossip(self.graph, problem)
        return self.check_steps(problem, allow_unsafe_step, lmax=self.graph.lmax)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """(2 - lmax)/L; refused from (8 - 3 lmax)/(4 L) on."""
        _check_spectrum("EXTRA", s.lmax)
        bound, end = (2 - s.lmax) / s.L, min(2.0, (8 - 3 * s.lmax) / 4) / s.L
        source = "Shi, Ling, Wu, Yin, EXTRA, SIAM J. Optim. 2015, Theorem 3.3: below 2 lmin((I + W)/2)/L = "
        source += "(2 - lmax)/L; refused where equal quadratics diverge, which is exact: (8 - 3 lmax)/(4 L)"
        return StepLimits(bound, bound, bound, end, source)


def _check_spectrum(method: str, lmax: float) -> None:
    # at lmin(W) = 1 - lmax = -1 two groups swap their disagreement forever
    if lmax >= 2 * (1 - 1e-9):
        raise InputError(f"{method} needs every eigenvalue of W above -1; use (I + W)/2 (psd=True).")
