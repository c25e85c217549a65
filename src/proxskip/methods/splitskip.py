"""SplitSkip and PDHG: f(x) + psi(D x), by the prox of psi* and products with D."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Claims, Method, Style, chosen, from_solution
from proxskip.methods import steps
from proxskip.methods.proxskip import PAPER
from proxskip.participation import EVERYONE, Participation
from proxskip.problems import operators
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.prox import Singleton
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, InputError, Matrix, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class SplitSkip(Method):
    """A primal-dual method that skips the dual step; p = 1 is the method of Loris and Verhoeven (PAPC).

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip: Yes! Local gradient steps provably lead to
    communication acceleration! Finally!, ICML 2022, arXiv:2202.09357, Algorithm 5 (D is the paper's bold L).
    K ~ Geom(p).

        xhat = K times  u <- u - gamma (grad f(u) + D' y)   from u = x
        y+   = prox_{tau psi*}(y + tau D xhat)
        x+   = xhat - (gamma/p) D' (y+ - y)

    Args:
        gamma: the step size.
        p: the probability of taking the dual step after a step; a round has 1/p steps on average.
        tau: the dual step size, at most p/(gamma |DD'|).
        K: a fixed number of steps in a round instead of a drawn one.
    """

    gamma: float = chosen()
    p: float = chosen()
    tau: float = chosen()
    K: int | None = None

    about = About(
        name="splitskip",
        title="SplitSkip",
        reference=PAPER + "arXiv:2202.09357",
        handles=frozenset({"batch", "psi", "D"}),
        remembers=("h", "x", "xhat"),
        style=Style("#C34B96", "--", "P"),
        at_p_one="papc",
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        return {"x": x0, "y": np.zeros(operator_of(problem).shape[0])}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """From one dual step to the next."""
        K = steps.geometric(exchange.rng, self.p) if self.K is None else self.K
        D = operator_of(exchange.problem)
        (xhat,) = exchange(self.local, K=K)
        y = exchange.prox_conjugate(server["y"] + self.tau * (D @ xhat), self.tau)
        v = np.asarray(D.T @ (y - server["y"]))
        # the client keeps x and h = -D'y, so v is all it needs
        exchange.settle(self.settle, v)
        return {"x": xhat - (self.gamma / self.p) * v, "y": y}

    def local(self, client: Client, memory: Vectors, K: int) -> Sent:
        """Line 3, K times, with h = -D'y."""
        xhat = client.descend(memory["x"], memory["h"], self.gamma, K)
        sent = client.send(xhat)
        return (sent,), {"xhat": as_sent(xhat, xhat, sent)}

    def settle(self, client: Client, memory: Vectors, v: Array) -> Vectors:
        """v = D'(y+ - y) comes down."""
        return {"x": memory["xhat"] - (self.gamma / self.p) * v, "h": memory["h"] - v}

    def excess(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """h = -D'y, and the client's x is the server's."""
        off = memory["h"] + operator_of(problem).T @ server["y"]
        apart = (self.p / self.gamma) * (memory["x"] - x)
        return float(np.abs(off).max() + np.abs(apart).max())

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> SplitSkip:
        """Theorem D.1: gamma = 1/L, tau = p/(gamma |DD'|), p = min(1, sqrt(gamma mu |DD'|/lmin+(DD')))."""
        D = operator_of(problem)
        gamma = self.gamma
        p = self.p
        norm2 = operators.operator_norm2(D)
        if gamma is None:
            gamma = steps.largest_step(problem)
        if p is None and self.K is not None:
            p = 1.0 / self.K
        if p is None:
            mu, lmin = steps.known_mu(problem, "p", "p or K"), operators.smallest_positive(D)
            if lmin is None:
                raise InputError("the smallest positive eigenvalue of D D' is too expensive to compute; give p or K.")
            p = theory.split_p(gamma, mu, norm2, lmin)
        tau = theory.split_tau(gamma, p, norm2) if self.tau is None else self.tau
        return replace(self, gamma=gamma, p=p, tau=tau)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L."""
        return StepLimits.one_over_L(s.L, PAPER + "Theorem D.1")

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma <= 1/L, gamma tau <= p/|DD'|."""
        warnings = self.check_steps(problem, allow_unsafe_step)
        theory.check_tau(self.tau, self.gamma, self.p, operators.operator_norm2(operator_of(problem)))
        return warnings

    def claims(self, problem: Problem) -> Claims:
        """Phi contracts by 1 - min(gamma mu, p gamma tau lmin+(DD')): Theorem D.1."""

        def phi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float | None:
            if s.y is None:
                return None
            return theory.split_lyapunov(x, server["y"], s.x, s.y, self.gamma, self.p, self.tau)

        return Claims(self._zeta(problem), from_solution(problem, phi))

    def _zeta(self, problem: Problem) -> float | None:
        """Known where the subgradients of psi lie in the range of D."""
        # otherwise the part of y in the kernel of D' need not converge
        if not (operators.full_row_rank(operator_of(problem)) or isinstance(problem.psi, Singleton)):
            return None
        lmin = operators.smallest_positive(operator_of(problem))
        if problem.mu is None or lmin is None or self.K is not None:
            return None
        return theory.split_zeta(self.gamma, problem.mu, self.p, self.tau, lmin)


def operator_of(problem: Problem) -> Matrix:
    """The problem's D, which it must have."""
    if problem.D is None or problem.psi is None:
        raise InputError("this method solves f(x) + psi(D x); give the problem psi and D.")
    return problem.D


@dataclass(frozen=True, slots=True, repr=False)
class PDHG(Method):
    """The primal-dual hybrid gradient method; with mu > 0 its steps change for the rate O(1/k^2).

    A. Chambolle, T. Pock, A first-order primal-dual algorithm for convex problems, 2011, Algorithm 2, with the explicit
    gradient step of their On the ergodic convergence rates of a first-order primal-dual algorithm, 2016: f is taken as
    (f - mu/2 |x|^2) + mu/2 |x|^2, the first by its gradient and the second by its prox. mu = 0 keeps the steps and is
    the method of Condat (2013) and Vu (2013).

        y+ = prox_{tau psi*}(y + tau D xbar)
        x+ = (x - gamma (grad f(x) - mu x + D'y+)) / (1 + gamma mu)
        theta = 1/sqrt(1 + gamma mu),   gamma+ = theta gamma,   tau+ = tau/theta
        xbar+ = x+ + theta (x+ - x)

    Args:
        gamma: the first primal step size.
        tau: the first dual step size.
        mu: the strong convexity of f that is used, for the rate O(1/k^2); 0 keeps the step sizes.
    """

    gamma: float = chosen()
    tau: float = chosen()
    mu: float = chosen()

    about = About(
        name="pdhg",
        title="PDHG",
        reference="Chambolle, Pock, 2011 and 2016; Condat, 2013; Vu, 2013",
        handles=frozenset({"psi", "D"}),
        style=Style("#962D5A", "-.", "^"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        y = np.zeros(operator_of(problem).shape[0])
        return {"x": x0, "xbar": x0, "y": y, "steps": np.array([self.gamma, self.tau])}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        D = operator_of(exchange.problem)
        x = server["x"]
        gamma, tau = server["steps"]
        y = exchange.prox_conjugate(server["y"] + tau * (D @ server["xbar"]), float(tau))
        h = self.mu * x - np.asarray(D.T @ y)
        # gamma changes every round
        (new,) = exchange(partial(self.local, gamma=float(gamma)), x, h, K=1)
        new = new / (1.0 + gamma * self.mu)
        theta = 1.0 / math.sqrt(1.0 + gamma * self.mu)
        xbar = new + theta * (new - x)
        return {"x": new, "xbar": xbar, "y": y, "steps": np.array([theta * gamma, tau / theta])}

    def local(self, client: Client, memory: Vectors, K: int, x: Array, h: Array, gamma: float) -> Sent:
        """One gradient step with the shift h = mu x - D'y."""
        return (client.send(client.descend(x, h, gamma, K)),), {}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> PDHG:
        """gamma = 1/(2 (L - mu)), tau = (L - mu)/|DD'|: half of the bound for the gradient, half for D.

        For another gamma the largest tau with gamma (L - mu + tau |DD'|) <= 1.
        """
        gamma, tau = self.gamma, self.tau
        mu = (problem.mu or 0.0) if self.mu is None else self.mu
        if gamma is not None and tau is not None:
            return replace(self, mu=mu)
        norm2, L = operators.operator_norm2(operator_of(problem)), problem.L_average
        # f - mu/2 |x|^2 is L - mu smooth; where mu is near L, gamma would have no bound
        smooth = max(L - mu, 1e-3 * L)
        if tau is None and gamma is not None:
            tau = (1.0 / gamma - (L - mu)) / norm2
            if not tau > 0:
                raise InputError(
                    f"gamma = {gamma:g} leaves no room for tau; take gamma below 1/(L - mu) = {1 / smooth:g}."
                )
        if tau is None:
            tau = smooth / norm2
        return replace(self, gamma=0.5 / smooth if gamma is None else gamma, tau=tau, mu=mu)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """gamma <= 1/L, where no tau would be left."""
        source = "Nesterov, Gradient Methods for Minimizing Composite Functions, 2013"
        return StepLimits.one_over_L(s.L, source)

    def smoothness(self, problem: Problem) -> float:
        """That of the average."""
        return problem.L_average

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma (L - mu + tau |DD'|) <= 1, and so gamma <= 1/L, where no tau would be left."""
        notes = self.check_steps(problem, allow_unsafe_step)
        norm2 = operators.operator_norm2(operator_of(problem))
        used = self.gamma * (max(problem.L_average - self.mu, 0.0) + self.tau * norm2)
        if used > 1 + theory.ROUNDING and not allow_unsafe_step:
            raise InputError(
                f"gamma (L - mu + tau |D D'|) = {used:.4g} is above 1, so PDHG can diverge; use a smaller tau."
            )
        return notes
