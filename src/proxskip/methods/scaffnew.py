"""Scaffnew in its general form: weights, own step sizes, a regularizer at the server, and cohorts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from proxskip import theory
from proxskip.codecs import Codec, as_codec
from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Claims, Method, Style, chosen, constant, from_solution
from proxskip.methods import steps
from proxskip.methods.proxskip import PAPER
from proxskip.participation import EVERYONE, Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class Scaffnew(Method):
    """ProxSkip for clients: K ~ Geom(p) local steps shifted by a learned h_i, then one mean.

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip: Yes! Local gradient steps provably lead to
    communication acceleration! Finally!, ICML 2022, arXiv:2202.09357, Algorithm 2; here in the inner product
    sum_i (w_i/gamma_i) <., .>, in which the same proof allows weights, own steps gamma_i <= 1/L_i and a regularizer
    psi. With cb = 1/sum_i w_i/gamma_i:

        xhat_i = K times  y <- y - gamma_i (g_i(y) - h_i)   from y = x
        x+     = prox_{(cb/p) psi}( cb sum_i (w_i/gamma_i) (xhat_i - (gamma_i/p) h_i) )
        h_i+   = h_i + (p/gamma_i) (x+ - xhat_i)

    On cohorts S (TAMUNA's rule: L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik, 2023, arXiv:2302.09832, without
    compression) the mean is over S and of the xhat_i alone, and exactly the clients in S update, with chi <= nu:

        h_i+   = h_i + (p chi/gamma_i) (x+ - xhat_i)   for i in S

    With the codec float32 what goes up is rounded, and h is updated from it as it was sent.
    A fixed K (instead of a drawn one) is a heuristic: it equals Scaffold II with p = 1/K, and no theorem covers it.

    Args:
        gamma: the step size, or one per client.
        p: the probability of communicating after a step; a round has 1/p steps on average.
        K: a fixed number of local steps instead of a drawn one.
        chi: the step size of h on cohorts, at most nu.
        own_steps: gamma_i = 1/L_i for each client, where gamma is not given.
        codec: how what goes up is rounded, "float32" or none.
        a: the second constant of the cohorts, which the rate needs.
    """

    gamma: float | tuple[float, ...] = chosen()
    p: float = chosen()
    K: int | None = None
    chi: float | None = None
    own_steps: bool = False
    codec: Codec | None = None
    a: float | None = constant()

    about = About(
        name="scaffnew",
        title="Scaffnew",
        reference="Mishchenko, Malinovsky, Stich, Richtarik, ProxSkip, ICML 2022, arXiv:2202.09357; on cohorts Condat "
        "et al., TAMUNA, 2023, arXiv:2302.09832",
        handles=frozenset({"batch", "clients", "weights", "cohort", "psi"}),
        remembers=("h", "xhat"),
        sends=frozenset({"local", "local_in_cohort"}),
        heals=True,
        style=Style("#D55E00", "-", "o", highlighted=True),
        at_p_one="gd",
    )

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        if self.own_steps and isinstance(self.gamma, float | int):
            raise InputError("own_steps=True chooses gamma_i = 1/L_i; leave out gamma, or give one per client.")
        if self.codec is not None:
            object.__setattr__(self, "codec", as_codec(self.codec))

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        K = steps.geometric(exchange.rng, self.p) if self.K is None else self.K
        # weights and own steps change the inner product in which the mean is taken
        c = steps.over(exchange.problem.weights, self.gamma)
        half = self.local if exchange.everyone else self.local_in_cohort
        (x,) = exchange(half, server["x"], K=K, weights=c)
        if exchange.problem.psi is not None:
            x = exchange.prox(x, 1.0 / (self.p * float(c.sum())))
        exchange.settle(self.settle, x)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """With all clients: the prox form, which also repairs a sum of h that is not zero."""
        gamma = client.own(self.gamma)
        xhat = client.descend(x, memory["h"], gamma, K)
        up = xhat - (gamma / self.p) * memory["h"]
        sent = client.send(up, self.codec)
        return (sent,), {"xhat": as_sent(xhat, up, sent)}

    def local_in_cohort(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """On a cohort: the plain form, because the h of a cohort do not sum to zero."""
        xhat = client.descend(x, memory["h"], client.own(self.gamma), K)
        sent = client.send(xhat, self.codec)
        return (sent,), {"xhat": as_sent(xhat, xhat, sent)}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        """Update h with the x+ that averaged this client."""
        eta = self.p * (1.0 if self.chi is None else self.chi)
        return {"h": memory["h"] + (eta / client.own(self.gamma)) * (x - memory["xhat"])}

    def excess(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """sum_i w_i h_i = 0; with psi it is minus a subgradient of psi at x."""
        t = 1.0 / (self.p * float(np.sum(problem.weights / np.asarray(self.gamma))))
        return steps.off_subgradient(problem, x, memory["h"], t)

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Scaffnew:
        """gamma = 1/L, p = 1/sqrt(kappa) (Corollary 4.2), and on cohorts p and chi of TAMUNA's theorem.

        With ``own_steps`` gamma_i = 1/L_i and p = 1/sqrt(max_i kappa_i).
        """
        a, chi = cohorts.constants(problem.n)
        gamma, p = self.gamma, self.p
        if gamma is None:
            gamma = self._step(problem, figure)
        if p is None:
            p = 1.0 / self.K if self.K is not None else best_p(gamma, problem, a, chi, "p or K")
        if isinstance(cohorts, Everyone):
            return replace(self, gamma=gamma, p=p)
        return replace(self, gamma=gamma, p=p, chi=chi if self.chi is None else self.chi, a=a)

    def _step(self, problem: Problem, figure: bool) -> float | tuple[float, ...]:
        """1/L_i or 1/L (1/A with minibatches); with the global L in the setting of Figure 1b."""
        if self.own_steps:
            return tuple(float(1.0 / A) for A in problem.es_A_i)
        if figure and problem.batch is None:
            return 1.0 / problem.L_average
        return steps.largest_step(problem)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L."""
        return StepLimits.one_over_L(s.L, PAPER + "Theorem 3.6 and Corollary 4.2 with L = max_i L_i")

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma_i <= 1/L_i (1/A with stochastic gradients), chi at most the bound of the cohorts."""
        if self.codec is not None and not self.codec.omega(problem.d) < 1e-6:
            raise InputError(f"scaffnew gives wrong answers with the codec {self.codec}; use float32, or locodl.")
        notes = self.check_steps(problem, allow_unsafe_step)
        bound = cohorts.constants(problem.n)[1]
        if self.chi is not None and self.chi > bound * (1 + 1e-12):
            notes.append(f"chi = {self.chi:g} exceeds its bound {bound:g} for these cohorts, so Scaffnew can diverge.")
        return notes

    def slowest_rate(self, problem: Problem) -> float | None:
        """On cohorts also p^2 chi a, and less with unequal weights, for which no theorem gives a rate."""
        rate = Method.slowest_rate(self, problem)
        if rate is None or self.chi is None:
            return rate
        alike = float(problem.weights.min() / problem.weights.max())
        return min(rate, self.p**2 * self.chi_a * alike) or None

    @property
    def chi_a(self) -> float:
        """chi a of the cohorts; 1 with all clients."""
        if self.chi is None:
            return 1.0
        return min(self.chi, 1.0) * (1.0 if self.a is None else self.a)

    def claims(self, problem: Problem) -> Claims:
        """Psi, scaled so that equal weights and steps give  mean |x_i - x*|^2 + (gamma/p)^2 mean |h_i - h_i*|^2."""
        gammas = np.broadcast_to(np.asarray(self.gamma), (problem.n,))

        def psi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            total = theory.scaffnew_lyapunov(problem.weights, gammas, self.p, x, memory["h"], s.x, s.h, self.chi_a)
            return total / float(np.sum(problem.weights / gammas))

        return Claims(self._zeta(problem), from_solution(problem, psi))

    def _zeta(self, problem: Problem) -> float | None:
        """min(min_i gamma_i mu_i, p^2) with all clients; TAMUNA's on cohorts of equal weights, otherwise None."""
        if problem.mu is None or problem.mu_i is None or self.K is not None or self.codec is not None:
            return None
        if self.chi is None:
            gammas = np.broadcast_to(np.asarray(self.gamma), (problem.n,))
            return theory.scaffnew_zeta(gammas, problem.mu_i, self.p)
        if (
            isinstance(self.gamma, tuple | np.ndarray)
            or np.ptp(problem.weights) > 1e-12
            or self.gamma * problem.L_max >= 2
        ):
            return None
        chi, a = min(self.chi, 1.0), 1.0 if self.a is None else self.a
        if problem.batch is not None:
            return min(self.gamma * problem.mu, self.p**2 * chi * a)
        return theory.tamuna_zeta(self.gamma, problem.mu, problem.L_max, self.p, chi, a)


def best_p(gamma: float | tuple[float, ...], problem: Problem, a: float, chi: float, instead: str = "p") -> float:
    """The best p of the theorems for this gamma, with everybody (a = chi = 1) or on cohorts with these constants.

    Args:
        a, chi: the constants of the cohorts, see ``theory.cohort_constants``.
        instead: what to give where mu is unknown.
    """
    mu = steps.known_mu(problem, "p", instead)
    if isinstance(gamma, tuple):
        return min(1.0, theory.scaffnew_p(gamma, np.asarray(problem.mu_i)) / math.sqrt(chi * a))
    if a == 1.0:
        return theory.best_p(gamma, mu)
    # with stochastic gradients x contracts by 1 - gamma mu only
    if problem.batch is not None:
        return min(1.0, theory.best_p(gamma, mu) / math.sqrt(chi * a))
    return theory.tamuna_p(gamma, mu, chi, a)
