"""ProxSkip and SProxSkip: the prox only now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from proxskip import theory
from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import Client, Exchange
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class ProxSkip:
    """Gradient steps shifted by a control variate h; the prox with probability p.

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip: Yes! Local gradient steps provably lead to
    communication acceleration! Finally!, ICML 2022, arXiv:2202.09357, Algorithm 1. K ~ Geom(p) steps are the iterations
    between two heads.

        xhat = K times  y <- y - gamma (grad f(y) - h)   from y = x
        x+   = prox_{(gamma/p) psi}(xhat - (gamma/p) h)
        h+   = h + (p/gamma) (x+ - xhat)
    """

    gamma: float
    p: float
    K: int | None = None

    name: ClassVar[str] = "proxskip"
    handles: ClassVar[frozenset[str]] = frozenset({"batch", "psi"})
    remembers: ClassVar[tuple[str, ...]] = ("h", "xhat")

    @classmethod
    def theory(cls, problem: Problem) -> ProxSkip:
        """gamma = 1/L (1/A with minibatches), p = sqrt(gamma mu): Theorem 3.6 and Corollary 3.7."""
        gamma = theory.largest_step(problem.es_A)
        return cls(gamma=gamma, p=theory.best_p(gamma, problem.mu))

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """p in (0, 1], gamma <= 1/L (1/A with stochastic gradients)."""
        steps.check_probability("p", self.p)
        if self.K is not None:
            steps.check_count("K", self.K)
        return steps.check_steps("proxskip", self.gamma, problem, insist)

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x."""
        return {"x": x0}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> tuple[tuple[Array, ...], Vectors]:
        """Line 3, K times; what the prox is to be taken of goes up."""
        xhat = client.descend(x, memory["h"], self.gamma, K)
        return (xhat - (self.gamma / self.p) * memory["h"],), {"xhat": xhat}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        """Line 10."""
        return {"h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """From one prox to the next."""
        K = self.K or steps.geometric(exchange.rng, self.p)
        (m,) = exchange(self.local, server["x"], K=K)
        x = m if exchange.problem.psi is None else exchange.prox(m, self.gamma / self.p)
        exchange.settle(self.settle, x)
        return {"x": x}

    def zeta(self, problem: Problem) -> float | None:
        """min(gamma mu, p^2): Theorem 3.6."""
        return None if problem.mu is None or self.K is not None else theory.zeta(self.gamma, problem.mu, self.p)

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """Psi of Section 3.3."""
        s = problem.solution
        return None if s is None else theory.psi_lyapunov(x, memory["h"][0], s.x, s.h[0], self.gamma, self.p)


@dataclass(frozen=True, slots=True)
class SProxSkip:
    """ProxSkip with stochastic gradients, which converges to a ball of radius^2  gamma^2 C / zeta.

    The same paper, Algorithm 4 and Theorem 5.5; the gradients are the problem's minibatches
    (``problem.with_batch``), and A and C the constants of expected smoothness (Gower et al., 2019).

        xhat = K times  y <- y - gamma (g(y) - h)   from y = x
        x+   = prox_{(gamma/p) psi}(xhat - (gamma/p) h)
        h+   = h + (p/gamma) (x+ - xhat)
    """

    gamma: float
    p: float

    name: ClassVar[str] = "sproxskip"
    handles: ClassVar[frozenset[str]] = frozenset({"batch", "psi"})
    remembers: ClassVar[tuple[str, ...]] = ("h", "xhat")

    @classmethod
    def theory(cls, problem: Problem, eps: float | None = None) -> SProxSkip:
        """gamma = min(1/A, eps mu/(2 C)), p = sqrt(gamma mu): Corollary 5.6; without eps, gamma = 1/A."""
        gamma = theory.largest_step(problem.es_A)
        if eps is not None:
            gamma = theory.stochastic(eps, problem.es_A, problem.es_C, problem.mu).gamma
        return cls(gamma=gamma, p=theory.best_p(gamma, problem.mu))

    @property
    def _same(self) -> ProxSkip:
        return ProxSkip(self.gamma, self.p)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """p in (0, 1], gamma <= 1/A."""
        return self._same.check(problem, insist)

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x."""
        return {"x": x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """ProxSkip's lines; the engine's gradients are stochastic."""
        return self._same.round(server, exchange)

    def zeta(self, problem: Problem) -> float | None:
        """min(gamma mu, p^2): Theorem 5.5."""
        return self._same.zeta(problem)

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """Psi of Section 3.3."""
        return self._same.lyapunov(problem, x, server, memory)
