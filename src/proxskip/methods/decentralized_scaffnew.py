"""Decentralized Scaffnew: no server; a communication is one gossip step along a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxskip import theory
from proxskip.links.gossip import Links, links_of
from proxskip.links.graphs import Graph, as_graph
from proxskip.methods import steps
from proxskip.methods.proxskip import PAPER
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.seam import About, Claims, Client, Exchange, Method, Style, from_solution
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class DecentralizedScaffnew(Method):
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
    (``Graph.failing``); ``gossips`` steps in one communication are the idea of MG-Skip (L. Guo et al., 2023,
    arXiv:2312.11861), here by a Chebyshev polynomial in the place of W.
    """

    gamma: float
    p: float
    tau: float
    graph: Graph
    K: int | None = None
    gossips: int = 1

    about = About(
        name="decentralized-scaffnew",
        title="decentralized Scaffnew",
        reference=PAPER + "arXiv:2202.09357",
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "xhat"),
        style=Style("#CC79A7", "--", "D"),
        other_names=("decentralized",),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One gossip step."""
        # every client draws the same K from the seed and the round, so that nobody has to announce it
        K = self.K or steps.geometric(exchange.rng, self.p)
        exchange.gossip(self.local, self.links, K)
        exchange.settle(self.settle)
        return server

    def local(self, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
        """Line 5, K times; xhat_i goes to the neighbors."""
        xhat = client.descend(memory["x"], memory["h"], self.gamma, K)
        # not through ``send``: there is no server, and vectors go along the edges as they are
        return (xhat,), {"xhat": xhat}

    def settle(self, client: Client, memory: Vectors, mixed: Array) -> Vectors:
        """Lines 7 and 8."""
        share = self.gamma * self.tau / self.p
        x = (1.0 - share) * memory["xhat"] + share * mixed
        return {"x": x, "h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])}

    @property
    def links(self) -> Links:
        """The graph, or its links that may fail, or several gossips along it as one; delta and lmax are theirs."""
        return links_of(self.graph, self.gossips)

    @classmethod
    def theory(cls, problem: Problem, graph: Any = "ring", gossips: int = 1, seed: int = 0) -> DecentralizedScaffnew:
        """Theorem 5.7: gamma = 1/L, tau = p/(gamma lmax(I - W)), p = min(1, sqrt(gamma mu lmax/delta)).

        Args:
            gossips: gossip steps in each communication, as one by a Chebyshev polynomial of W.
        """
        return cls.configure(problem, {"graph": graph, "gossips": gossips, "seed": seed})

    @classmethod
    def configure(cls, problem: Problem, given: Mapping[str, Any]) -> DecentralizedScaffnew:
        """p and tau at their best for what is given."""
        network = as_graph(given.get("graph", "ring"), problem.n, seed=given.get("seed", 0))
        gossips = given.get("gossips", 1)
        steps.check_count("gossips", gossips)
        links = links_of(network, gossips)
        gamma = steps.gamma_of(given, problem)
        p = steps.p_of(given, lambda: theory.split_p(gamma, problem.mu, links.lmax, links.delta))
        tau = given.get("tau") or theory.split_tau(gamma, p, links.lmax)
        return cls(gamma, p, tau, network, given.get("K"), gossips)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L, tau <= p/(gamma lmax(I - W)), equal weights, one node per client."""
        steps.check_probability("p", self.p)
        steps.check_count("K", 1 if self.K is None else self.K)
        steps.check_count("gossips", self.gossips)
        steps.check_gossip(self.graph, problem, may_fail=True)
        warnings = self.check_steps(problem, insist)
        # beyond this bound the step along the graph expands, whatever gamma is
        theory.check_tau(self.tau, self.gamma, self.p, self.links.lmax)
        return warnings

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/L."""
        return StepLimits.one_over_L(s.L, PAPER + "Theorem 5.7")

    def claims(self, problem: Problem) -> Claims:
        """Phi contracts by 1 - min(gamma mu, p gamma tau delta): Theorem 5.7.

        Where links fail, p in Phi is the probability that a link is used.
        """
        links = self.links
        p = self.p * (1.0 - self.graph.failure)

        def phi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            return theory.decentralized_lyapunov(memory["x"], memory["h"], s.x, s.h, self.gamma, p, self.tau, links.W)

        # the theorem is about a drawn K
        covered = problem.mu is not None and self.K is None
        zeta = theory.split_zeta(self.gamma, problem.mu, self.p, self.tau, links.delta) if covered else None
        return Claims(zeta, from_solution(problem, phi))
