"""Decentralized Scaffnew: no server; a communication is one gossip step along a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from proxskip import theory
from proxskip.links.graphs import Graph, as_graph
from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import Client, Exchange
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class DecentralizedScaffnew:
    """Scaffnew over a graph with mixing matrix W.

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip: Yes! Local gradient steps provably lead to
    communication acceleration! Finally!, ICML 2022, arXiv:2202.09357, Algorithm 3 (the sign of the h update in the
    paper's proof is a misprint; the algorithm is right). K ~ Geom(p), W any symmetric doubly
    stochastic matrix of a connected graph.

        xhat_i = K times  y <- y - gamma (g_i(y) - h_i)   from y = x_i
        x_i+   = (1 - gamma tau/p) xhat_i + (gamma tau/p) sum_j W_ij xhat_j
        h_i+   = h_i + (p/gamma) (x_i+ - xhat_i)
    """

    gamma: float
    p: float
    tau: float
    graph: Graph
    K: int | None = None

    name: ClassVar[str] = "decentralized-scaffnew"
    handles: ClassVar[frozenset[str]] = frozenset({"batch", "clients", "graph"})
    remembers: ClassVar[tuple[str, ...]] = ("h", "x", "xhat")

    @classmethod
    def theory(cls, problem: Problem, graph: Any = "ring", seed: int = 0) -> DecentralizedScaffnew:
        """Theorem 5.7: gamma = 1/L, tau = p/(gamma lmax(I - W)), p = min(1, sqrt(gamma mu lmax/delta))."""
        link = as_graph(graph, problem.n, seed=seed)
        t = theory.decentralized(problem.es_A, problem.mu, link.delta, link.lmax)
        return cls(gamma=t.gamma, p=t.p, tau=t.tau, graph=link)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L, tau <= p/(gamma lmax(I - W)), equal weights, one node a client."""
        steps.check_probability("p", self.p)
        if self.K is not None:
            steps.check_count("K", self.K)
        steps.check_gossip(self.graph, problem)
        warnings = steps.check_steps("decentralized-scaffnew", self.gamma, problem, insist)
        theory.check_tau(self.tau, self.gamma, self.p, self.graph.lmax)
        return warnings

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """There is no server."""
        return {}

    def local(self, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
        """Line 5, K times; xhat_i goes to the neighbours."""
        xhat = client.descend(memory["x"], memory["h"], self.gamma, K)
        return (xhat,), {"xhat": xhat}

    def settle(self, client: Client, memory: Vectors, mixed: Array) -> Vectors:
        """Lines 7 and 8."""
        share = self.gamma * self.tau / self.p
        x = (1.0 - share) * memory["xhat"] + share * mixed
        return {"x": x, "h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One gossip step."""
        K = self.K or steps.geometric(exchange.rng, self.p)
        exchange.gossip(self.local, self.graph, K)
        exchange.settle(self.settle)
        return server

    def zeta(self, problem: Problem) -> float | None:
        """min(gamma mu, p gamma tau delta): Theorem 5.7."""
        if problem.mu is None or self.K is not None:
            return None
        return theory.split_zeta(self.gamma, problem.mu, self.p, self.tau, self.graph.delta)

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """Phi of Theorem 5.7."""
        s = problem.solution
        if s is None:
            return None
        return theory.decentralized_lyapunov(
            memory["x"], memory["h"], s.x, s.h, self.gamma, self.p, self.tau, self.graph.W
        )
