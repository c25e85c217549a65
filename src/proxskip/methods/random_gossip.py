"""Random gossip: no server and no common coin; every link of a graph wakes by itself and carries some coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxskip import theory
from proxskip.links.gossip import RandomLinks, largest_weight
from proxskip.links.graphs import Graph, as_graph
from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.seam import About, Claims, Client, Exchange, Method, Style, from_solution
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors

PAPER = "Condat, Richtarik, RandProx, ICLR 2023, arXiv:2207.12891"


@dataclass(frozen=True, slots=True)
class RandomGossip(Method):
    """RandProx whose dual variables are the links of a graph: each wakes with its own coin, and carries k of d numbers.

    L. Condat, P. Richtarik, RandProx: Primal-dual optimization algorithms with randomized proximal updates, ICLR 2023,
    arXiv:2207.12891. We read its abstract; this instance, and its rate, were derived for the library
    (``theory.random_gossip_tau``). One step a round; A_ij is 1 in the coordinates that the link ij carries in this
    round, if it is awake (with probability p_e), and 0 elsewhere; 1 + omega = d/(k p_e).

        xhat_i = x_i - gamma (g_i(x_i) - h_i)
        m_i    = sum_j W_ij A_ij (xhat_j - xhat_i)
        x_i+   = xhat_i + gamma tau (1 + omega) m_i
        h_i+   = h_i + tau m_i
    """

    gamma: float
    tau: float
    graph: Graph
    p_e: float = 1.0
    k: int | None = None
    omega: float = 0.0

    about = About(
        name="random-gossip",
        title="random gossip",
        reference=PAPER,
        handles=frozenset({"batch", "clients", "graph"}),
        remembers=("h", "x", "xhat"),
        parameters=("gamma", "tau", "graph", "p_e", "k"),
        style=Style("#56B4E9", ":", "v"),
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One step everywhere, and the links that wake after it; a link that fails is one that sleeps."""
        exchange.gossip(self.local, RandomLinks(self.graph, self.p_e * (1.0 - self.graph.failure), self.k), 1)
        exchange.settle(self.settle)
        return server

    def local(self, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
        """The step; coordinates of xhat_i go along the links that are awake."""
        xhat = client.descend(memory["x"], memory["h"], self.gamma, K)
        return (xhat,), {"xhat": xhat}

    def settle(self, client: Client, memory: Vectors, mixed: Array) -> Vectors:
        """x and h move along what came; where nothing came, neither does."""
        # exactly zero where nothing came: mixing leaves such coordinates as they were
        m = mixed - memory["xhat"]
        return {"x": memory["xhat"] + (self.gamma * self.tau * (1.0 + self.omega)) * m, "h": memory["h"] + self.tau * m}

    @classmethod
    def theory(
        cls, problem: Problem, graph: Any = "ring", p_e: float | None = None, k: int | None = None, seed: int = 0
    ) -> RandomGossip:
        """gamma = 1/L, tau at its limit, and the smallest p_e that does not slow it down.

        Args:
            p_e: the probability that a link wakes.
            k: the coordinates that it carries; all, if not given.
        """
        return cls.at(theory.largest_step(problem.es_A), problem, as_graph(graph, problem.n, seed=seed), p_e, k)

    @classmethod
    def at(
        cls, gamma: float, problem: Problem, graph: Graph, p_e: float | None = None, k: int | None = None
    ) -> RandomGossip:
        """The best p_e for this gamma, unless it is given, and tau at its limit."""
        # the share of what goes along a link that arrives, on average; a failing link is one that sleeps more often
        share = (problem.d if k is None else min(k, problem.d)) / problem.d * (1.0 - graph.failure)
        w = largest_weight(graph)
        if p_e is None:
            best = theory.random_gossip_omega(gamma, problem.mu, graph.delta, graph.lmax, w)
            p_e = min(1.0, 1.0 / ((1.0 + best) * share))
        steps.check_probability("p_e", p_e)
        omega = 1.0 / (share * p_e) - 1.0
        return cls(gamma, theory.random_gossip_tau(gamma, omega, graph.lmax, w), graph, p_e, k, omega)

    @classmethod
    def configure(cls, problem: Problem, given: Mapping[str, Any]) -> RandomGossip:
        """tau and p_e at their best for what is given; without mu every link is awake."""
        graph = as_graph(given.get("graph", "ring"), problem.n, seed=given.get("seed", 0))
        p_e = given.get("p_e", 1.0 if problem.mu is None else None)
        made = cls.at(steps.gamma_of(given, problem), problem, graph, p_e, given.get("k"))
        return cls(made.gamma, given.get("tau") or made.tau, graph, made.p_e, made.k, made.omega)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L, gamma tau (lmax + 2 omega w) <= 1, equal weights, one node per client."""
        steps.check_probability("p_e", self.p_e)
        steps.check_count("k", 1 if self.k is None else self.k)
        steps.check_gossip(self.graph, problem, may_fail=True)
        kept = (problem.d if self.k is None else min(self.k, problem.d)) / problem.d
        right = 1.0 / (kept * self.p_e * (1.0 - self.graph.failure)) - 1.0
        if abs(self.omega - right) > 1e-9 * (1.0 + right):
            raise InputError(f"omega = {self.omega:g} must be d/(k p_e) - 1 = {right:g} for links awake this often.")
        warnings = self.check_steps(problem, insist)
        limit = theory.random_gossip_tau(self.gamma, self.omega, self.graph.lmax, largest_weight(self.graph))
        if not 0 < self.tau <= limit * (1 + 1e-9):
            raise InputError(f"tau = {self.tau:g} must be positive and at most {limit:g}; take that.")
        return warnings

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/L."""
        return StepLimits.one_over_L(s.L, PAPER + ", an instance derived for the library")

    def claims(self, problem: Problem) -> Claims:
        """Decentralized Scaffnew's Phi and rate with 1/(1 + omega) in the place of p."""
        p = 1.0 / (1.0 + self.omega)

        def phi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            X, H, W = memory["x"], memory["h"], self.graph.W
            return theory.decentralized_lyapunov(X, H, s.x, s.h, self.gamma, p, self.tau, W)

        known = problem.mu is not None
        zeta = theory.split_zeta(self.gamma, problem.mu, p, self.tau, self.graph.delta) if known else None
        return Claims(zeta, from_solution(problem, phi))
