"""PDHG: Chambolle and Pock's primal-dual method with gradient steps on f, a baseline for f(x) + psi(D x)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.methods.gradient import ProxGD
from proxskip.methods.splitskip import operator_of
from proxskip.problems import operators
from proxskip.problems.federated import Problem
from proxskip.seam import About, Client, Exchange, Method, Style
from proxskip.theory.steps import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True)
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
    """

    gamma: float
    tau: float
    mu: float = 0.0

    about = About(
        name="pdhg",
        title="PDHG",
        reference="Chambolle, Pock, 2011 and 2016; Condat, 2013; Vu, 2013",
        handles=frozenset({"psi", "D"}),
        parameters=("gamma", "tau"),
        style=Style("#000000", "-.", "^"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x, the point ahead of it, the dual y = 0, and the two steps."""
        y = np.zeros(operator_of(problem).shape[0])
        return {"x": x0, "xbar": x0, "y": y, "steps": np.array([self.gamma, self.tau])}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """A dual step, a primal step, the look ahead."""
        D, x, (gamma, tau) = operator_of(exchange.problem), server["x"], server["steps"]
        y = exchange.prox_conjugate(server["y"] + tau * (D @ server["xbar"]), float(tau))
        h = self.mu * x - np.asarray(D.T @ y)
        # the step size changes from round to round, so the half takes this round's with it
        (new,) = exchange(partial(self.local, gamma=float(gamma)), x, h, K=1)
        new = new / (1.0 + gamma * self.mu)
        theta = 1.0 / math.sqrt(1.0 + gamma * self.mu)
        xbar = new + theta * (new - x)
        return {"x": new, "xbar": xbar, "y": y, "steps": np.array([theta * gamma, tau / theta])}

    def local(
        self, client: Client, memory: Vectors, K: int, x: Array, h: Array, gamma: float
    ) -> tuple[tuple[Array, ...], Vectors]:
        """One gradient step with the shift h = mu x - D'y."""
        return (client.send(client.descend(x, h, gamma, K)),), {}

    @classmethod
    def theory(cls, problem: Problem, accelerate: bool = True) -> PDHG:
        """gamma = 1/(2 (L - mu)), tau = (L - mu)/|DD'|: half of the bound for the gradient, half for D."""
        mu = (problem.mu or 0.0) if accelerate else 0.0
        # f - mu/2 |x|^2 is L - mu smooth; where mu is near L, gamma would have no bound
        smooth = max(problem.L_global - mu, 1e-3 * problem.L_global)
        return cls(0.5 / smooth, smooth / operators.operator_norm2(operator_of(problem)), mu)

    @classmethod
    def configure(cls, problem: Problem, given: Mapping[str, Any]) -> PDHG:
        """tau as large as the gamma that is taken allows."""
        made = cls.theory(problem)
        gamma = given["gamma"] if isinstance(given.get("gamma"), float) else made.gamma
        return cls(gamma, given.get("tau") or cls.largest_tau(problem, gamma, made.mu), made.mu)

    @staticmethod
    def largest_tau(problem: Problem, gamma: float, mu: float = 0.0) -> float:
        """The largest tau with gamma (L - mu + tau |DD'|) <= 1; 0 if gamma leaves no room."""
        # what the gradient leaves of the step for D
        room = max(1.0 / gamma - (problem.L_global - mu), 0.0)
        return room / operators.operator_norm2(operator_of(problem))

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma (L - mu + tau |DD'|) <= 1."""
        theory.positive("tau", self.tau)
        theory.nonnegative("mu", self.mu)
        notes = self.check_steps(problem, insist, L=problem.L_global)
        norm2 = operators.operator_norm2(operator_of(problem))
        used = self.gamma * (max(problem.L_global - self.mu, 0.0) + self.tau * norm2)
        if used > 1 + theory.ROUNDING and not insist:
            raise InputError(
                f"gamma (L - mu + tau |D D'|) = {used:.4g} is above 1, where PDHG can diverge; take a smaller tau."
            )
        return notes

    @staticmethod
    def limits(s: Setting) -> StepLimits:
        """1/L, where tau = 0 would be left; ``check`` holds gamma and tau together."""
        return ProxGD.limits(s)
