"""ProxSkip and SProxSkip: the prox only now and then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Claims, Method, Style, chosen, from_solution
from proxskip.methods import steps
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, Vectors

PAPER = "Mishchenko, Malinovsky, Stich, Richtarik, ProxSkip, ICML 2022, "


@dataclass(frozen=True, slots=True, repr=False)
class ProxSkip(Method):
    """Gradient steps shifted by a control variate h; the prox with probability p.

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip: Yes! Local gradient steps provably lead to
    communication acceleration! Finally!, ICML 2022, arXiv:2202.09357, Algorithm 1. K ~ Geom(p) steps are the iterations
    between two heads.

        xhat = K times  y <- y - gamma (grad f(y) - h)   from y = x
        x+   = prox_{(gamma/p) psi}(xhat - (gamma/p) h)
        h+   = h + (p/gamma) (x+ - xhat)

    Args:
        gamma: the step size.
        p: the probability of taking the prox after a step; a round has 1/p steps on average.
        K: a fixed number of steps in a round instead of a drawn one.
    """

    gamma: float = chosen()
    p: float = chosen()
    K: int | None = None

    about = About(
        name="proxskip",
        title="ProxSkip",
        reference=PAPER + "arXiv:2202.09357",
        handles=frozenset({"batch", "psi"}),
        remembers=("h", "xhat"),
        heals=True,
        style=Style("#964B00", "-", "o", highlighted=True),
        at_p_one="proxgd",
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """From one prox to the next."""
        K = steps.geometric(exchange.rng, self.p) if self.K is None else self.K
        # the server is idle between two heads, so these K iterations are one exchange
        (m,) = exchange(self.local, server["x"], K=K)
        x = m if exchange.problem.psi is None else exchange.prox(m, self.gamma / self.p)
        exchange.settle(self.settle, x)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """Line 3, K times; sends the argument of the prox."""
        xhat = client.descend(x, memory["h"], self.gamma, K)
        up = xhat - (self.gamma / self.p) * memory["h"]
        sent = client.send(up)
        return (sent,), {"xhat": as_sent(xhat, up, sent)}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        return {"h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])}

    def excess(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """-h is a subgradient of psi at x."""
        return steps.off_subgradient(problem, x, memory["h"], self.gamma / self.p)

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Self:
        """gamma = 1/L (1/A with minibatches), p = 1/K or sqrt(gamma mu): Theorem 3.6 and Corollary 3.7."""
        gamma = steps.largest_step(problem) if self.gamma is None else self.gamma
        p = steps.best_p(self.K, gamma, problem) if self.p is None else self.p
        return replace(self, gamma=gamma, p=p)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L."""
        return StepLimits.one_over_L(s.L, PAPER + "Theorem 3.6")

    def claims(self, problem: Problem) -> Claims:
        """Psi of Section 3.3 contracts by 1 - min(gamma mu, p^2): Theorem 3.6."""

        def psi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            return theory.psi_lyapunov(x, memory["h"][0], s.x, s.h[0], self.gamma, self.p)

        zeta = None
        if problem.mu is not None and self.K is None:
            zeta = theory.zeta(self.gamma, problem.mu, self.p)
        return Claims(zeta, from_solution(problem, psi))


@dataclass(frozen=True, slots=True, repr=False)
class SProxSkip(ProxSkip):
    """ProxSkip under the name that it has with stochastic gradients: a ball of radius^2  gamma^2 C / zeta remains.

    The same paper, Algorithm 4 and Theorem 5.5; the gradients are the problem's minibatches
    (``problem.with_batch``), and A and C the constants of expected smoothness (Gower et al., 2019). gamma = 1/A if it
    is not given; ``theory.stochastic`` has the one for a given accuracy (Corollary 5.6).

        xhat = K times  y <- y - gamma (g(y) - h)   from y = x
        x+   = prox_{(gamma/p) psi}(xhat - (gamma/p) h)
        h+   = h + (p/gamma) (x+ - xhat)

    Args:
        gamma: the step size.
        p: the probability of taking the prox after a step; a round has 1/p steps on average.
        K: a fixed number of steps in a round instead of a drawn one.
    """

    about = replace(
        ProxSkip.about,
        name="sproxskip",
        title="SProxSkip",
        style=Style("#C39669", "--", "D"),
    )
