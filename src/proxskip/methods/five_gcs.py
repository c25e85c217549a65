"""Few rounds and few gradients: a primal-dual method whose clients take a few accelerated steps a round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent
from proxskip.core.method import About, Claims, Method, Style, chosen, constant, from_solution
from proxskip.participation import EVERYONE, Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.solve import Solution
from proxskip.support.sums import weighted_sum
from proxskip.types import Array, InputError, Vectors

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class FiveGCS(Method):
    """A primal-dual method with an accelerated local solver, between Nesterov's method and Scaffnew.

    In the line of M. Grudzien, G. Malinovsky, P. Richtarik, "Can 5th Generation Local Training Methods Support Client
    Sampling? Yes!", 2022, arXiv:2212.14370 (5GCS), and of APDA-Inexact (A. Sadiev, D. Kovalev, P. Richtarik, 2022,
    arXiv:2207.03957); here with own steps tau_m, weights, psi, and the dual update in the form of a step, which is
    stable with few local steps. v is sum_m w_m v_m, and the answer is xhat:

        xhat = prox_{gamma/(1 + gamma mu) psi}( (z - gamma v)/(1 + gamma mu) )
        y_m  = K accelerated steps from xhat on  f_m(y) - (mu/2)|y|^2 - <v_m, y> + (tau_m/2)|y - xhat|^2
        v_m+ = v_m + tau_m (xhat - y_m)                                         for the m of the cohort S
        z+   = xhat - gamma sum_{m in S} (w_m/pi_m) (v_m+ - v_m)

    With ``theta`` a client ends its steps (at most K) at the first point whose local gradient is below theta tau_m
    times its distance from xhat. Where none of gamma, tau, K and theta is given, all are the theorem's. Otherwise the
    rest is what measurements support: c = 1, sigma = 1 and K = 2.

    Args:
        gamma: the server's step size.
        tau: the strength of the pull to xhat (the dual step size), or one per client.
        K: the local steps in a round; at most so many with ``theta``.
        theta: the accuracy at which a client ends its local steps, between 0 and 1.
        c: gamma = c/sqrt(mu Lbar), where gamma is not given; more for clients that are alike.
        sigma: gamma sum_m w_m tau_m = sigma, where tau is not given; what is below 1 is for errors of the local solves.
        mu: the strong convexity that the server's step takes over from the clients.
        L: the smoothness of the clients' functions, or one per client.
        beta: the momentum of the local steps, or one per client.
        pi: the probability that a client takes part, one per client; None if all take part.
        rho: P(i and j) = rho pi_i pi_j is the probability that two clients take part.
    """

    gamma: float = chosen()
    tau: float | tuple[float, ...] = chosen()
    K: int = chosen()
    theta: float | None = None
    c: float = chosen()
    sigma: float = chosen()
    mu: float = chosen()
    L: float | tuple[float, ...] = constant()
    beta: float | tuple[float, ...] = constant()
    pi: tuple[float, ...] | None = constant()
    rho: float = constant()

    about = About(
        name="5gcs",
        title="5GCS, accelerated local steps",
        reference="after Grudzien, Malinovsky, Richtarik, 5GCS, 2022, arXiv:2212.14370, and Sadiev, Kovalev, "
        "Richtarik, APDA-Inexact, 2022, arXiv:2207.03957",
        handles=frozenset({"clients", "weights", "cohort", "cohort+weights", "cohort+psi", "psi"}),
        remembers=("v",),
        heals=True,
        style=Style("#3C2D87", "-", "8", highlighted=True),
        summed="v",
        needs_whole_cohort=True,
        other_names=("fivegcs",),
    )

    def check_parameters(self) -> None:
        Method.check_parameters(self)
        if self.theta is not None and self.theta >= 1:
            raise InputError(f"theta = {self.theta:g} must lie between 0 and 1.")

    def start(self, problem: Problem, x0: Array) -> Vectors:
        return {"x": x0, "z": x0, "v": 0.0 * x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        gamma = self.gamma
        z = server["z"]
        v = server["v"]
        xhat = (z - gamma * v) / (1.0 + gamma * self.mu)
        if exchange.problem.psi is not None:
            xhat = exchange.prox(xhat, gamma / (1.0 + gamma * self.mu))
        if exchange.everyone:
            (new,) = exchange(self.local, xhat, K=self.K)
            return {"x": xhat, "z": xhat - gamma * (new - v), "v": new}
        w, S = exchange.problem.weights, exchange.cohort
        both = _with_inclusion(w, self.pi)
        plain, scaled = exchange(self.local_in_cohort, xhat, K=self.K, weights=both)
        scaled = gamma * float(both[1][S].sum()) * scaled
        return {"x": xhat, "z": xhat - scaled, "v": v + float(w[S].sum()) * plain}

    def _solve(self, client: Client, memory: Vectors, K: int, xhat: Array) -> Array:
        """tau_m (xhat - y_m); the pull includes - (mu/2)|y|^2."""
        tau, beta = client.own(self.tau), client.own(self.beta)
        h, step = memory["v"] + self.mu * xhat, 1.0 / (client.own(self.L) - self.mu + tau)
        until = None if self.theta is None else self.theta * tau
        y = client.descend(xhat, h, step, K, pull=(tau - self.mu, xhat), momentum=beta, until=until)
        return tau * (xhat - (y if self.theta is None else y[0]))  # type: ignore[no-any-return]

    def local(self, client: Client, memory: Vectors, K: int, xhat: Array) -> Sent:
        """With all clients: v_m itself goes up, so that a lost v_m does not leave the sum wrong."""
        sent = client.send(memory["v"] + self._solve(client, memory, K, xhat))
        return (sent,), {"v": sent}

    def local_in_cohort(self, client: Client, memory: Vectors, K: int, xhat: Array) -> Sent:
        """On a cohort: the change of v_m goes up."""
        sent = client.send(self._solve(client, memory, K, xhat))
        return (sent,), {"v": memory["v"] + sent}

    # -- what must hold ------------------------------------------------------------------------------------------------
    def audited(self, server: Vectors, memory: Vectors) -> Array | None:
        return memory["v"]

    def dual_step(self, round: int) -> float:
        """The largest tau_m: v_m moves by tau_m (xhat - y_m)."""
        return float(np.max(self.tau))

    def known_sum(self, problem: Problem, server: Vectors) -> Array:
        return server["v"]

    def excess(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """max |sum_m w_m v_m - v|, with psi and for one client too."""
        return float(np.abs(weighted_sum(problem.weights, memory["v"]) - server["v"]).max())

    # -- its parameters ------------------------------------------------------------------------------------------------
    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> FiveGCS:
        """gamma = c/sqrt(mu Lbar), gamma sum_m w_m tau_m = sigma, and theta (with K steps that are sure to reach it).

        The theorem's rounds are those of  max(1/c, c/sigma).  Its best, c = sqrt(sigma) with sigma near 1, takes more
        rounds and gradients than c = 1.05 and sigma = 0.85 where clients are alike (docs/decisions.md). On cohorts Lbar
        is sum_m w_m (L_m - mu)/pi_m, and tau_m as the theorem needs it.
        """
        by_theorem = self.gamma is None and self.tau is None and self.K is None and self.theta is None and not figure
        method = self._with_constants(problem, cohorts)
        mu = method.mu
        w = problem.weights
        n = problem.n
        L = (problem.L_i if self.L is None else _each("L", self.L, n)) - mu
        pi = np.ones(n) if method.pi is None else np.asarray(method.pi)
        if self.gamma is None:
            if not mu:
                raise InputError("gamma is chosen by mu, which is unknown here; give gamma, or l2 > 0.")
            c = _either(self.c, 1.05 if by_theorem else 1.0)
            method = replace(method, gamma=c / math.sqrt(mu * float(w @ (L / pi))), c=c)
        if self.tau is None:
            sigma = _either(self.sigma, 0.85 if by_theorem else 1.0)
            if by_theorem and not 0 < sigma < 1:
                raise InputError(f"sigma = {sigma:g} must lie between 0 and 1, so that local solves may have errors.")
            dual = theory.local_dual_steps(method.gamma, L, w, pi, method.rho, sigma)
            method = replace(method, tau=_one(dual), sigma=sigma)
        if self.beta is None:
            method = replace(method, beta=_one(theory.local_momentum(L, _each("tau", method.tau, n))))
        if not by_theorem:
            return replace(method, K=_either(self.K, 2))
        tau, smooth = np.asarray(method.tau), np.asarray(method.L) - mu
        theta = theory.local_theta(method.gamma, mu, smooth, tau, method.sigma)
        return replace(method, theta=theta, K=theory.local_steps_for(theta, smooth, tau))

    def _with_constants(self, problem: Problem, cohorts: Participation) -> FiveGCS:
        """With mu, the L_m, and the probabilities of the cohorts."""
        mu, L = self.mu, self.L
        if mu is None:
            mu = min(float(problem.mu or 0.0), float(problem.L_i.min()) / 2)
        if L is None:
            L = _one(problem.L_i)
        if self.rho is not None:
            return replace(self, mu=mu, L=L)
        pi, rho = cohorts.inclusion(problem.n)
        if isinstance(cohorts, Everyone) or np.all(pi == 1.0):
            return replace(self, mu=mu, L=L, pi=None, rho=1.0)
        return replace(self, mu=mu, L=L, pi=tuple(pi.tolist()), rho=rho)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma sum_m w_m tau_m <= 1; settings that diverge on a quadratic are refused."""
        allow_unsafe_step = allow_unsafe_step or problem.smoothness == "average"
        for name in ("tau", "L", "beta", "pi"):
            values = np.atleast_1d(np.asarray(1.0 if self.parameters()[name] is None else self.parameters()[name]))
            if len(values) not in (1, problem.n) or not np.all(np.isfinite(values)) or values.min() < 0:
                raise InputError(f"{name} must be one positive number, or one for each of the {problem.n} clients.")
        if np.min(self.tau) <= 0 or np.min(self.L) <= self.mu:
            raise InputError("tau must be positive, and L must exceed mu.")
        if not isinstance(cohorts, Everyone):
            self._check_cohorts(cohorts, problem.n)
        return self._unsafe(problem, allow_unsafe_step)

    def _unsafe(self, problem: Problem, allow_unsafe_step: bool) -> list[str]:
        L, tau, pi = self._numbers(problem)
        sigma = theory.local_sigma(self.gamma, tau, problem.weights, pi, self.rho)
        Lbar = float(problem.weights @ L)
        # the theorem covers solves to an accuracy, and without mu every radius is 1
        few_steps = self.theta is None and self.mu > 0
        notes = []
        if sigma > 1 + 1e-9:
            notes.append(f"tau is {sigma:.4g} times its bound for this gamma, so 5gcs can diverge; use a smaller tau")
        elif few_steps and theory.local_radius(self.gamma, self.mu, Lbar, float(problem.weights @ tau), self.K) >= 1:
            notes.append(
                f"gamma = {self.gamma:g} with K = {self.K} diverges on quadratics; use another K or a smaller c"
            )
        if notes and not allow_unsafe_step:
            raise InputError(notes[0] + ".")
        few = 0.9 * math.sqrt(1.0 + self.gamma * Lbar)
        c = self.gamma * math.sqrt(self.mu * float(problem.weights @ (L / pi)))
        if not notes and c > 1 + 1e-9 and sigma > 0.5 + 1e-9 and few > self.K and self.theta is None:
            notes.append(f"c = {c:.3g} is above 1 with K = {self.K} below {few:.3g}, so 5gcs may be unstable")
        if problem.mu is not None and self.mu > problem.mu * (1 + 1e-9):
            notes.append(f"mu = {self.mu:g} exceeds the problem's {problem.mu:g}, so no theorem holds")
        return [note + "." for note in notes]

    def _check_cohorts(self, cohorts: Participation, n: int) -> None:
        """It must have been made for these cohorts, because tau_m depends on the probabilities."""
        pi, rho = cohorts.inclusion(n)
        mine = np.ones(n) if self.pi is None else np.asarray(self.pi)
        if len(mine) != n or not np.allclose(pi, mine, rtol=1e-9) or (self.pi and not math.isclose(rho, self.rho)):
            raise InputError("this 5gcs was made for other cohorts; make it by FiveGCS.theory(problem, cohort=...).")

    def slowest_rate(self, problem: Problem) -> float | None:
        """The exact theorem's rate per iteration, without its factors of 2."""
        L, tau, pi = self._numbers(problem)
        dual = float(np.min(pi * tau / (L + tau)))
        return min(self.gamma * self.mu / (1.0 + self.gamma * self.mu), dual) / self.K

    # -- what is claimed -----------------------------------------------------------------------------------------------
    def _numbers(self, problem: Problem) -> tuple[Array, Array, Array]:
        """L_m - mu, tau_m and pi_m of every client."""
        parameters = np.asarray(self.L) - self.mu, self.tau, 1.0 if self.pi is None else self.pi
        L, tau, pi = (np.broadcast_to(np.asarray(v, dtype=np.float64), (problem.n,)) for v in parameters)
        return L, tau, pi

    def claims(self, problem: Problem) -> Claims:
        """The inexact theorem's, where it covers these local solves; per round."""
        L, tau, pi = self._numbers(problem)

        def psi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float:
            far = np.sum((memory["v"] - (s.h - self.mu * s.x)) ** 2, axis=1)
            dual = problem.weights / pi * (1.0 / tau + 1.0 / L)
            return float(np.sum((server["z"] - s.x) ** 2) / self.gamma + dual @ far)

        theta = max(self.theta or 0.0, theory.local_accuracy(L, tau, self.K))
        sigma = theory.local_sigma(self.gamma, tau, problem.weights, pi, self.rho)
        fits = problem.mu is not None and self.mu <= problem.mu * (1 + 1e-9)
        fits = fits and bool(np.all(np.asarray(self.L) >= problem.L_i * (1 - 1e-9)))
        fits = fits and bool(np.allclose(np.asarray(self.beta), theory.local_momentum(L, tau), rtol=1e-6))
        rate = theory.inexact_rate(self.gamma, self.mu, L, tau, pi, sigma, theta) if fits else None
        return Claims(None if rate is None else 1.0 - rate, from_solution(problem, psi), per_round=True)


def _either(given: T | None, default: T) -> T:
    """The value that was given, or the default."""
    return default if given is None else given


def _each(name: str, values: float | tuple[float, ...], n: int) -> Array:
    """One number for each of the n clients."""
    numbers = np.atleast_1d(np.asarray(values, dtype=np.float64))
    if len(numbers) not in (1, n):
        raise InputError(f"{name} must be one positive number, or one for each of the {n} clients.")
    return np.broadcast_to(numbers, (n,))


def _one(values: Array) -> float | tuple[float, ...]:
    """One number if all are equal."""
    return float(values[0]) if np.ptp(values) <= 1e-15 * abs(values[0]) else tuple(values.tolist())


def _with_inclusion(w: Array, pi: tuple[float, ...] | None) -> Array:
    """w_m, and w_m/pi_m."""
    return np.stack([w, w / np.asarray(pi or 1.0)])
