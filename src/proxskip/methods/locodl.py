"""LoCoDL: local steps and any unbiased compression of what goes up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from proxskip import theory
from proxskip.codecs import Codec, Float32, Natural, RandK, as_codec
from proxskip.core.exchange import Client, Exchange, Sent
from proxskip.core.method import About, Claims, Method, Style, chosen, constant, from_solution
from proxskip.core.parameters import check_probability
from proxskip.methods import steps
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class LoCoDL(Method):
    """Clients send compressed differences to a model y that everybody can compute, so that they vanish in the end.

    L. Condat, A. Maranjyan, P. Richtarik, LoCoDL: Communication-efficient distributed learning with local training and
    compression, ICLR 2025, arXiv:2403.04348. A part of the l2 term (of any strong convexity) is the g that everybody
    knows: f = sum_i w_i F_i + g with g = mu_g/2 |.|^2 and F_i = f_i - g. K ~ Geom(p), C the codec, i = 1, ..., n:

        xhat_i = K times  z <- z - gamma (grad F_i(z) - u_i)   from z = x_i
        yhat   = K times  z <- z - gamma (mu_g z - v)          from z = y
        d_i    = C(xhat_i - yhat)                              this goes up
        db     = 1/2 sum_i w_i d_i                             this comes down
        x_i+   = (1 - rho) xhat_i + rho (yhat + db),           y+ = yhat + rho db
        u_i+   = u_i + eta (db - d_i),                         v+ = v + eta db,      eta = p rho/(gamma (1 + 2 omega))

    It begins with x_i = y = x0, v = mu_g x0 and u_i = h0_i - v, so that (x*, h*) of another method is where it stays.
    sum_i w_i u_i + v = 0 throughout, u_i tends to grad F_i(x*) and v to mu_g x*. E |C(z) - z|^2 <= omega |z|^2, and
    rho = 1/(1 + omega max_i w_i). The answer is y. yhat goes down too, so that a client without memory can be restored.

    Args:
        gamma: the step size.
        p: the probability of communicating after a step; a round has 1/p steps on average.
        codec: how the differences are compressed, such as "rand-2" or "natural"; it must be unbiased.
        mu_g: the strong convexity of the part g that everybody knows, between 0 and mu.
        omega: the relative variance of the codec.
        rho: how far the models move towards the mean, in (0, 1].
    """

    gamma: float = chosen()
    p: float = chosen()
    codec: Codec = chosen()
    mu_g: float = chosen()
    omega: float = constant()
    rho: float = constant()

    about = About(
        name="locodl",
        title="LoCoDL",
        reference="Condat, Maranjyan, Richtarik, LoCoDL, ICLR 2025, arXiv:2403.04348",
        handles=frozenset({"clients", "weights"}),
        remembers=("h", "x", "d"),
        style=Style("#6996E1", "-", "p"),
    )

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        if self.rho is not None:
            check_probability("rho", self.rho)
        if self.codec is not None:
            object.__setattr__(self, "codec", as_codec(self.codec))

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """y is called x here."""
        return {"x": x0, "v": 0.0 * x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        K = steps.geometric(exchange.rng, self.p)
        first = exchange.round == 0
        y = server["x"]
        v = server["v"] + self.mu_g * server["x"] if first else server["v"]
        shrink = 1.0
        add = 0.0
        # the K steps on g in closed form, z <- (1 - gamma mu_g) z + gamma v
        for _ in range(K):
            shrink, add = (1.0 - self.gamma * self.mu_g) * shrink, (1.0 - self.gamma * self.mu_g) * add + self.gamma
        yhat = shrink * y + add * v
        (d,) = exchange(self.first, yhat, y, K=K) if first else exchange(self.local, yhat, K=K)
        db = 0.5 * d
        exchange.settle(self.settle, db)
        return {"x": yhat + self.rho * db, "v": v + self.eta * db}

    @property
    def eta(self) -> float:
        """The step of u and v."""
        return self.p * self.rho / (self.gamma * (1.0 + 2.0 * self.omega))

    def first(self, client: Client, memory: Vectors, K: int, yhat: Array, x: Array) -> Sent:
        """The first round: all x_i are the starting point, and h0 is taken for gradients of f_i, not of F_i."""
        # 0 times the memory has the shape of a client or of a cohort
        h = memory["h"] - self.mu_g * x
        up, new = self.local(client, {**memory, "x": 0.0 * memory["x"] + x, "h": h}, K, yhat)
        return up, new | {"h": h}

    def local(self, client: Client, memory: Vectors, K: int, yhat: Array) -> Sent:
        """u is called h here."""
        # a negative pull to zero subtracts g: grad F_i(z) = grad f_i(z) - mu_g z
        xhat = client.descend(memory["x"], memory["h"], self.gamma, K, pull=(-self.mu_g, 0.0))
        d = client.send(xhat - yhat, self.codec)
        return (d,), {"x": (1.0 - self.rho) * xhat + self.rho * yhat, "d": d}

    def settle(self, client: Client, memory: Vectors, db: Array) -> Vectors:
        """The rest of x_i+, and the update of u."""
        return {"x": memory["x"] + self.rho * db, "h": memory["h"] + self.eta * (db - memory["d"])}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> LoCoDL:
        """gamma = 2/L, mu_g = mu/2, rho = 1/(1 + omega max_i w_i), and the best p for them.

        gamma = 1/L where clients are unlike (L_average < L_max/2). F_i is (L - mu/2)-smooth, so that 2/L is the best.
        The codec sends d/n random coordinates after natural compression: with fewer bits a round, as many more rounds
        are needed.
        """
        gamma = self.gamma
        codec = self.codec
        mu_g = self.mu_g
        omega = self.omega
        rho = self.rho
        p = self.p
        if gamma is None and figure:
            gamma = steps.largest_step(problem)
        if gamma is None:
            gamma = steps.longer_step(problem, lambda: 2 / problem.L_max)
        if codec is None:
            codec = RandK(-(-problem.d // problem.n), Natural())
        if mu_g is None:
            mu_g = steps.known_mu(problem, "mu_g") / 2
        if omega is None:
            omega = codec.omega(problem.d)
        check_codec(codec, omega)
        if rho is None:
            rho = 1.0 / (1.0 + omega * float(problem.weights.max()))
        if p is None:
            p = theory.locodl_p(gamma, mu_g, omega, rho)
        return LoCoDL(gamma, p, codec, mu_g, omega, rho)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """An unbiased codec with this omega, 0 < mu_g < mu, gamma <= 2/L."""
        omega = self.codec.omega(problem.d)
        check_codec(self.codec, omega)
        if self.omega < omega * (1 - 1e-12):
            raise InputError(f"omega = {self.omega:g} is below the {omega:g} of {self.codec}; use at least that.")
        if not self.mu_g > 0 or (problem.mu is not None and self.mu_g >= problem.mu):
            raise InputError(f"mu_g = {self.mu_g:g} must lie between 0 and mu = {problem.mu}.")
        return self.check_steps(problem, allow_unsafe_step, mu=problem.mu)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """2/L, from which on the rate falls again, with mu_g = mu/2; 1/L where mu is unknown."""
        best, end = (1 / s.L, 2 / s.L) if s.mu is None else (2 / s.L, 2 / (s.L - s.mu / 2))
        source = "Condat, Maranjyan, Richtarik, LoCoDL, arXiv:2403.04348, with L = max_i L_i"
        return StepLimits(best, 1 / s.L, best, end, source)

    def controls(self, server: Vectors, memory: Vectors) -> Array | None:
        """u_i + v, which tends to grad f_i(x*)."""
        return memory["h"] + server["v"]

    def claims(self, problem: Problem) -> Claims:
        """sum_i w_i |x_i - x*|^2 + |y - x*|^2, and the same of (u_i, v) times gamma^2 (1 + 2 omega)/(p^2 rho)."""
        dual = self.gamma / (self.eta * self.p)

        def psi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            w, v = problem.weights, self.mu_g * s.x
            x2 = float(w @ ((memory["x"] - s.x) ** 2).sum(axis=1) + ((server["x"] - s.x) ** 2).sum())
            u2 = float(w @ ((memory["h"] - s.h + v) ** 2).sum(axis=1) + ((server["v"] - v) ** 2).sum())
            return x2 + dual * u2

        zeta, L = None, max(self.mu_g, problem.L_max - self.mu_g)
        if problem.mu is not None and self.codec.unbiased and self.gamma * L < 2:
            mu = min(self.mu_g, problem.mu - self.mu_g)
            zeta = theory.locodl_zeta(self.gamma, mu, L, self.p, self.omega, self.rho)
        return Claims(zeta, from_solution(problem, psi))


def check_codec(codec: Codec, omega: float) -> None:
    """Refuse codecs that are biased or of unbounded variance."""
    # float32 rounds vanishing differences by 6e-8 of them: no theorem, but the same limit
    if not codec.unbiased and not isinstance(getattr(codec, "values", codec), Float32):
        raise InputError(f"locodl needs an unbiased codec, and {codec} is biased; use rand-K, natural or l1-K.")
    if not math.isfinite(omega):
        raise InputError(f"{codec} divides the coordinates among the clients; use it with tamuna, and rand-K here.")
