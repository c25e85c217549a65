"""GradSkip: Scaffnew whose clients may stop their local steps early, each with its own probability."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Claims, Method, Style, chosen, from_solution
from proxskip.methods import steps
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, Column, Flags, Indices, InputError, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class GradSkip(Method):
    """Scaffnew in which client i falls asleep before each step with probability 1 - q_i, until the communication.

    A. Maranjyan, M. Safaryan, P. Richtarik, GradSkip: Communication-accelerated local gradient methods with better
    computational complexity, 2022, arXiv:2210.16402. We read its abstract; the rate and the limit of gamma were derived
    again (``theory.gradskip_L``). K ~ Geom(p); G_i ~ Geom(1 - q_i) is the step before which client i falls asleep. A
    client that sleeps has moved its shift to its gradient, where further steps would do nothing, so it takes none.

        xhat_i = min(K, G_i - 1) times  y <- y - gamma (grad f_i(y) - h_i)   from y = x
        hhat_i = h_i if G_i > K, else grad f_i(xhat_i)
        x+     = sum_i w_i (xhat_i - (gamma/p) hhat_i)
        h_i+   = hhat_i + (p/gamma) (x+ - xhat_i)

    Args:
        gamma: the step size.
        p: the probability of communicating after a step; a round has 1/p steps on average.
        q: the probability that a client stays awake before a step, one per client.
    """

    gamma: float = chosen()
    p: float = chosen()
    q: tuple[float, ...] = chosen()

    about = About(
        name="gradskip",
        title="GradSkip",
        reference="Maranjyan, Safaryan, Richtarik, GradSkip, 2022, arXiv:2210.16402",
        handles=frozenset({"clients", "weights"}),
        remembers=("h", "hhat", "xhat"),
        heals=True,
        style=Style("#004BA5", "-.", ">"),
        at_p_one="gd",
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The server draws for all clients, so that no coin has to travel."""
        K, asleep = self.draw(exchange.rng)
        (x,) = exchange(self.local, server["x"], K=K, own={"asleep": asleep})  # type: ignore[arg-type]
        exchange.settle(self.settle, x)
        return {"x": x}

    def draw(self, rng: np.random.Generator) -> tuple[Indices, Flags]:
        """Each client's steps, and whether it is asleep at their end."""
        K = steps.geometric(rng, self.p)
        G = steps.geometric_each(rng, 1.0 - np.asarray(self.q))
        return np.minimum(G - 1, K), G <= K

    def local(self, client: Client, memory: Vectors, K: int, x: Array, asleep: Column) -> Sent:
        """The steps before sleep, and the gradient that a sleeping client takes for its shift."""
        xhat = client.descend(x, memory["h"], self.gamma, K)
        # asleep is 0 or 1: a client that is awake keeps its h and computes no gradient
        hhat = memory["h"] + asleep * (client.gradient(xhat, where=asleep) - memory["h"])
        up = xhat - (self.gamma / self.p) * hhat
        sent = client.send(up)
        return (sent,), {"xhat": as_sent(xhat, up, sent), "hhat": hhat}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        return {"h": memory["hhat"] + (self.p / self.gamma) * (x - memory["xhat"])}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> GradSkip:
        """gamma = 1/L, p = 1/sqrt(kappa_max), q_i = (1 - 1/kappa_i)/(1 - 1/kappa_max).

        For another p, q_i follows from it and from the ratios of the L_i, so that mu need not be known.
        """
        gamma = steps.largest_step(problem) if self.gamma is None else self.gamma
        p = theory.best_p(gamma, steps.known_mu(problem, "p")) if self.p is None else self.p
        q = tuple(theory.gradskip_q(problem.L_i, p, problem.L).tolist()) if self.q is None else self.q
        return replace(self, gamma=gamma, p=p, q=q)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L, with the L of ``smoothness``."""
        return StepLimits.one_over_L(s.L, "Maranjyan, Safaryan, Richtarik, GradSkip, 2022, arXiv:2210.16402, rederived")

    def smoothness(self, problem: Problem) -> float:
        """max_i L_i (1 - q_i (1 - p^2))/p^2."""
        return theory.gradskip_L(problem.L_i, self.q, self.p)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """p in (0, 1], a q_i in [0, 1] for each client, gamma <= min_i p^2/(L_i (1 - q_i (1 - p^2)))."""
        q = np.asarray(self.q, dtype=np.float64)
        if q.shape != (problem.n,) or not (q.min() >= 0 and q.max() <= 1):
            raise InputError(f"q must hold a probability for each of the {problem.n} clients.")
        return self.check_steps(problem, allow_unsafe_step)

    def claims(self, problem: Problem) -> Claims:
        """Scaffnew's Psi contracts by 1 - min(gamma mu, 1 - q_max (1 - p^2))."""

        def psi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            weights, h = problem.weights, memory["h"]
            return self.gamma * theory.scaffnew_lyapunov(weights, self.gamma, self.p, x, h, s.x, s.h)

        zeta = None if problem.mu is None else theory.gradskip_zeta(self.gamma, problem.mu, self.q, self.p)
        return Claims(zeta, from_solution(problem, psi))
