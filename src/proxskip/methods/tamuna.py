"""TAMUNA: Scaffnew on cohorts, where each coordinate is sent by a few clients only."""

from __future__ import annotations

from dataclasses import dataclass, replace

from proxskip import theory
from proxskip.codecs import Masks, Ownership
from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Claims, Method, Style, chosen
from proxskip.methods import steps
from proxskip.methods.scaffnew import Scaffnew, best_p
from proxskip.participation import EVERYONE, Everyone, Given, Participation, Uniform
from proxskip.problems.federated import Problem
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class Tamuna(Method):
    """Local steps, cohorts S of c clients, and masks q_i: every coordinate has s owners in S, and only they send it.

    L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik, TAMUNA: Doubly accelerated federated learning with local
    training, compression, and partial participation, 2023, arXiv:2302.09832, for equal weights. K ~ Geom(p):

        xhat_i = K times  y <- y - gamma (g_i(y) - h_i)   from y = x,   i in S
        x+     = (1/s) sum_{i in S} q_i xhat_i
        h_i+   = h_i + (p chi/gamma) q_i (x+ - xhat_i)   for i in S

    chi <= nu = n (s-1)/(s (n-1)), with n and not c. With s = c nobody has a mask: that is Scaffnew on cohorts, which
    also goes by that name. With c = n it is CompressedScaffnew (L. Condat, I. Agarsky, P. Richtarik, 2022,
    arXiv:2210.13277). A coordinate that misses one of its owners would be wrong, so a round needs its whole cohort.

    Args:
        gamma: the step size.
        p: the probability of communicating after a step; a round has 1/p steps on average.
        s: how many clients of the cohort send each coordinate, at least 2.
        chi: the step size of h, at most nu.
    """

    gamma: float = chosen()
    p: float = chosen()
    s: int = chosen()
    chi: float = chosen()

    about = About(
        name="tamuna",
        title="TAMUNA",
        reference="Condat, Agarsky, Malinovsky, Richtarik, TAMUNA, 2023, arXiv:2302.09832",
        handles=frozenset({"batch", "clients", "cohort"}),
        remembers=("h", "xhat", "q"),
        style=Style("#CC79A7", "-", "*"),
        at_p_one="gd",
        other_names=("compressed-scaffnew",),
        needs_whole_cohort=True,
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        K = steps.geometric(exchange.rng, self.p)
        # with s = c every client owns every coordinate, as in Scaffnew on cohorts, byte for byte
        masked = self.s < len(exchange.cohort)
        half, settle = (self.masked, self.settle_masked) if masked else (self.local, self.settle)
        weights = steps.over(exchange.problem.weights, self.gamma)
        (x,) = exchange(half, server["x"], K=K, weights=weights)
        exchange.settle(settle, x)
        return {"x": x}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """Without masks."""
        xhat = client.descend(x, memory["h"], self.gamma, K)
        sent = client.send(xhat)
        return (sent,), {"xhat": as_sent(xhat, xhat, sent)}

    def masked(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """Send this client's coordinates; what is read is c/s times them, so that the mean is over the owners."""
        xhat = client.descend(x, memory["h"], self.gamma, K)
        q = client.send(xhat, Ownership(self.s))  # everybody can draw it, so nothing is sent
        return (client.send(xhat, Masks(self.s)),), {"xhat": xhat, "q": q}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        return {"h": memory["h"] + (self.p * self.chi / self.gamma) * (x - memory["xhat"])}

    def settle_masked(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        """Update h where this client sent something."""
        return {"h": memory["h"] + (self.p * self.chi / self.gamma) * (memory["q"] * (x - memory["xhat"]))}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Tamuna:
        """gamma = 2/(L + mu), chi = nu, the best p of the theorem, and s = max(2, c/d), the fewest floats up.

        gamma = 1/L where clients are unlike (L_average < L_max/2), and 1/A with minibatches.
        """
        c = size_of(cohorts, problem.n)
        gamma = self.gamma
        s = self.s
        p = self.p
        if gamma is None and figure:
            gamma = steps.largest_step(problem)
        if gamma is None:
            gamma = steps.longer_step(problem, lambda: theory.sharp_step(problem.L_max, problem.mu))
        s = max(2, c // problem.d) if s is None else s
        check_owners(s, c)
        # the owners of a coordinate are a uniform set of s clients out of n, whatever c is
        a, nu = theory.uniform_cohort(problem.n, s)
        p = best_p(gamma, problem, a, nu) if p is None else p
        return replace(self, gamma=gamma, p=p, s=s, chi=nu if self.chi is None else self.chi)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """2 <= s <= n, chi at most nu, gamma <= 2/(L + mu), or 1/A with minibatches."""
        check_owners(self.s, size_of(cohorts, problem.n))
        nu = theory.nu(problem.n, self.s)
        beyond = f"chi = {self.chi:g} exceeds its bound {nu:g} for s = {self.s}, so tamuna can diverge."
        mu = None if problem.batch is not None else problem.mu
        return self.check_steps(problem, allow_unsafe_step, mu=mu) + ([] if self.chi <= nu * (1 + 1e-12) else [beyond])

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """2/(L + mu), from which on the rate falls again; 1/L where mu is unknown."""
        best = 1 / s.L if s.mu is None else theory.sharp_step(s.L, s.mu)
        return StepLimits(best, 1 / s.L, best, 2 / s.L, "Condat et al., TAMUNA, arXiv:2302.09832, with L = max_i L_i")

    def claims(self, problem: Problem) -> Claims:
        """mean |x_i - x*|^2 + gamma^2/(p^2 chi a) mean |h_i - h_i*|^2, as for uniform cohorts of s clients."""
        a = theory.uniform_cohort(problem.n, self.s)[0]
        return Scaffnew(self.gamma, self.p, chi=self.chi, a=a).claims(problem)


def size_of(cohorts: Participation, n: int) -> int:
    """The common size of all cohorts."""
    if isinstance(cohorts, Everyone):
        return n
    if isinstance(cohorts, Uniform):
        return cohorts.c
    sizes = {len(c) for c in cohorts.cohorts} if isinstance(cohorts, Given) else set()
    if len(sizes) != 1:
        raise InputError("tamuna needs cohorts of one size; pass cohort= a number of clients.")
    return sizes.pop()


def check_owners(s: int, c: int) -> None:
    """2 <= s <= c."""
    if c < 2:
        raise InputError("tamuna needs at least two clients in a round.")
    if not 2 <= s <= c:
        raise InputError(f"s = {s} owners are not possible among {c} clients; choose from 2 to {c}.")
