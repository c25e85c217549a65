"""SplitSkip: f(x) + psi(D x), the prox of psi* and the products with D only now and then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.methods import steps
from proxskip.methods.proxskip import PAPER
from proxskip.problems import operators
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.prox import Singleton
from proxskip.seam import About, Claims, Client, Exchange, Method, Style, as_sent, from_solution
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True)
class SplitSkip(Method):
    """A primal-dual method that skips the dual step; p = 1 is the method of Loris and Verhoeven (PAPC).

    K. Mishchenko, G. Malinovsky, S. Stich, P. Richtarik, ProxSkip: Yes! Local gradient steps provably lead to
    communication acceleration! Finally!, ICML 2022, arXiv:2202.09357, Algorithm 5 (D is the paper's bold L).
    K ~ Geom(p).

        xhat = K times  u <- u - gamma (grad f(u) + D' y)   from u = x
        y+   = prox_{tau psi*}(y + tau D xhat)
        x+   = xhat - (gamma/p) D' (y+ - y)
    """

    gamma: float
    p: float
    tau: float
    K: int | None = None

    about = About(
        name="splitskip",
        title="SplitSkip",
        reference=PAPER + "arXiv:2202.09357",
        handles=frozenset({"batch", "psi", "D"}),
        remembers=("h", "x", "xhat"),
        style=Style("#0072B2", "--", "P"),
        at_p_one="papc",
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x, and the dual y = 0."""
        return {"x": x0, "y": np.zeros(operator_of(problem).shape[0])}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """From one dual step to the next."""
        K = self.K or steps.geometric(exchange.rng, self.p)
        D = operator_of(exchange.problem)
        (xhat,) = exchange(self.local, K=K)
        y = exchange.prox_conjugate(server["y"] + self.tau * (D @ xhat), self.tau)
        v = np.asarray(D.T @ (y - server["y"]))
        # the client has x and h = -D'y in its own memory, so that v is all it has to hear
        exchange.settle(self.settle, v)
        return {"x": xhat - (self.gamma / self.p) * v, "y": y}

    def local(self, client: Client, memory: Vectors, K: int) -> tuple[tuple[Array, ...], Vectors]:
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

    @classmethod
    def theory(cls, problem: Problem) -> SplitSkip:
        """Theorem D.1: gamma = 1/L, tau = p/(gamma |DD'|), p = min(1, sqrt(gamma mu |DD'|/lmin+(DD')))."""
        D = operator_of(problem)
        lmin = operators.smallest_positive(D)
        if lmin is None:
            raise InputError(
                "the smallest positive eigenvalue of D D' is too expensive to compute here; give p and tau."
            )
        norm2 = operators.operator_norm2(D)
        gamma = theory.largest_step(problem.es_A)
        p = theory.split_p(gamma, problem.mu, norm2, lmin)
        return cls(gamma=gamma, p=p, tau=theory.split_tau(gamma, p, norm2))

    @classmethod
    def configure(cls, problem: Problem, given: Mapping[str, Any]) -> SplitSkip:
        """p and tau at their best for what is given."""
        if not given.keys() & {"gamma", "p", "K", "tau"}:
            return cls.theory(problem)
        gamma, norm2 = steps.gamma_of(given, problem), operators.operator_norm2(operator_of(problem))
        p = steps.p_of(
            given, lambda: theory.split_p(gamma, problem.mu, norm2, operators.smallest_positive(problem.D) or 0.0)
        )
        return cls(gamma, p, given.get("tau") or theory.split_tau(gamma, p, norm2), given.get("K"))

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L, gamma tau <= p/|DD'|."""
        steps.check_probability("p", self.p)
        steps.check_count("K", 1 if self.K is None else self.K)
        warnings = self.check_steps(problem, insist)
        theory.check_tau(self.tau, self.gamma, self.p, operators.operator_norm2(operator_of(problem)))
        return warnings

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/L."""
        return StepLimits.one_over_L(s.L, PAPER + "Theorem D.1")

    def claims(self, problem: Problem) -> Claims:
        """Phi contracts by 1 - min(gamma mu, p gamma tau lmin+(DD')): Theorem D.1."""

        def phi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float | None:
            if s.y is None:
                return None
            return theory.split_lyapunov(x, server["y"], s.x, s.y, self.gamma, self.p, self.tau)

        return Claims(self._zeta(problem), from_solution(problem, phi))

    def _zeta(self, problem: Problem) -> float | None:
        """Known where the subgradients of psi lie in the range of D."""
        # otherwise the part of y that D' does not see need not converge
        if not (operators.full_row_rank(operator_of(problem)) or isinstance(problem.psi, Singleton)):
            return None
        lmin = operators.smallest_positive(operator_of(problem))
        if problem.mu is None or lmin is None or self.K is not None:
            return None
        return theory.split_zeta(self.gamma, problem.mu, self.p, self.tau, lmin)


def operator_of(problem: Problem) -> Any:
    """D, asked of a problem that must have one."""
    if problem.D is None or problem.psi is None:
        raise InputError("SplitSkip solves f(x) + psi(D x); give the problem psi and D.")
    return problem.D
