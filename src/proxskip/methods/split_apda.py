"""APDA for f(x) + psi(D x): Chambolle and Pock's dual step, then as many accelerated steps as gamma pays for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from proxskip.methods import steps
from proxskip.methods.apda import APDA, MAX_BALANCE, accelerated_steps, balanced, enough_steps
from proxskip.methods.splitskip import operator_of
from proxskip.problems import operators
from proxskip.problems.federated import Problem
from proxskip.seam import About, Client, Exchange, Method, Style
from proxskip.types import Array, Vectors

SETTLING = 0.95
"""How much smaller, in logarithms, each change of gamma may be than the one before."""


@dataclass(frozen=True, slots=True)
class SplitAPDA(Method):
    """What ``minimize`` takes for "apda" where there is a D: APDA's local solver in the method of Chambolle and Pock.

    A. Chambolle, T. Pock, A first-order primal-dual algorithm for convex problems, 2011, Algorithm 1, whose prox of f
    is replaced by K steps as in A. Sadiev, D. Kovalev, P. Richtarik, NeurIPS 2022, arXiv:2207.03957. With exact local
    solves it converges for any gamma and tau = 1/(gamma |DD'|), since f is not taken by its gradient. For D = I and
    exact solves it is the method of Douglas and Rachford, as APDA is.

        y+ = prox_{tau psi*}(y + tau D xbar)
        x+ = K accelerated gradient steps from x on  f(u) + <D'y+, u> + |u - x|^2/(2 gamma)
        xbar+ = 2 x+ - x
        gamma+ = gamma sqrt(sum |x+ - x| / sum gamma |D| |y+ - y|)     every 5 rounds, not below 1/L

    The n-th change of gamma is by a factor of at most 2^(0.95^n): where D x* = 0, x stops before y, and a gamma that
    never settles would swing for ever (T. Goldstein, M. Li, X. Yuan, Adaptive primal-dual splitting methods for
    statistical learning and image processing, NIPS 2015, let theirs settle likewise). For any K the fixed points are
    the solutions, whatever gamma is: the steps stay at x where grad f(x) = -D'y.
    """

    gamma: float

    about = About(
        name="apda",
        title="APDA",
        reference="Sadiev, Kovalev, Richtarik, APDA-Inexact, NeurIPS 2022, arXiv:2207.03957; Chambolle, Pock, 2011",
        handles=frozenset({"psi", "D"}),
        remembers=("h",),
        parameters=("gamma",),
        style=Style("#009E73", "-", "s"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x, the point ahead of it, y = 0, the step with what balances it, how often it was balanced, and |D|."""
        D = operator_of(problem)
        norm = np.sqrt(np.array([operators.operator_norm2(D)]))
        step = np.array([self.gamma, 0.0, 0.0, 0.0])
        return {"x": x0, "xbar": x0, "y": np.zeros(D.shape[0]), "step": step, "balances": np.zeros(1), "norm": norm}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The dual step, K local steps, the look ahead."""
        D, x, gamma = operator_of(exchange.problem), server["x"], steps.first_of(server["step"])
        norm = steps.first_of(server["norm"])
        tau = 1.0 / (gamma * norm**2)
        y = exchange.prox_conjugate(server["y"] + tau * (D @ server["xbar"]), tau)
        L = exchange.problem.L_global
        half = partial(self.local, gamma=gamma, L=L)
        (new,) = exchange(half, x, -np.asarray(D.T @ y), K=enough_steps(gamma, L))
        most = MAX_BALANCE ** (SETTLING ** steps.first_of(server["balances"]))
        step = balanced(server["step"], (gamma * norm) * (y - server["y"]), new - x, most)
        step[0] = max(step[0], 1.0 / L)
        balances = server["balances"] + (step[3] == 0.0)
        return {**server, "x": new, "xbar": 2.0 * new - x, "y": y, "step": step, "balances": balances}

    def local(
        self, client: Client, memory: Vectors, K: int, x: Array, h: Array, gamma: float, L: float
    ) -> tuple[tuple[Array, ...], Vectors]:
        """K accelerated steps with the shift h = -D'y."""
        return (client.send(accelerated_steps(client, x, h, gamma, L, K)),), {"h": h}

    @classmethod
    def theory(cls, problem: Problem) -> SplitAPDA:
        """APDA's first gamma."""
        return cls(APDA.theory(problem).gamma)

    def slowest_rate(self, problem: Problem) -> float | None:
        """None: gamma moves, and for few local steps no rate is known with which a run could be called stalled."""
        return None

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma > 0."""
        return self.check_steps(problem, insist)
