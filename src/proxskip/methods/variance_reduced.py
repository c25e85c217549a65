"""Scaffnew-VR and ProxSkip-VR: minibatches whose noise vanishes at the solution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Claims, Method, Style, chosen, from_solution
from proxskip.core.parameters import check_probability
from proxskip.methods import steps
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.solve import Solution
from proxskip.theory.step_sizes import Setting, StepLimits, check_limits
from proxskip.types import Array, Vectors

PAPER = "Malinovsky, Yi, Richtarik, Variance Reduced ProxSkip, NeurIPS 2022, arXiv:2207.04338"


@dataclass(frozen=True, slots=True, repr=False)
class ScaffnewVR(Method):
    """Scaffnew with the gradients of L-SVRG: exact with minibatches.

    G. Malinovsky, K. Yi, P. Richtarik, Variance Reduced ProxSkip: Algorithm, theory and application to federated
    learning, NeurIPS 2022, arXiv:2207.04338, with the estimator of D. Kovalev, S. Horvath, P. Richtarik (2020). We read
    its abstract; step size and rate were derived again (``theory.lsvrg_constants``). w_i is an anchor with its full
    gradient gw_i; g_j is the mean gradient of a minibatch j, the same one at y and w_i. K ~ Geom(p).

        xhat_i = K times  y <- y - gamma (g_j(y) - g_j(w_i) + gw_i - h_i)   from y = x,
                          and with probability q  w_i becomes the y before this step, gw_i = grad f_i(w_i)
        x+     = prox_{(gamma/p) psi}( sum_i w_i (xhat_i - (gamma/p) h_i) )
        h_i+   = h_i + (p/gamma) (x+ - xhat_i)

    Args:
        gamma: the step size.
        p: the probability of communicating after a step; a round has 1/p steps on average.
        q: the probability that a step moves the anchor, which costs a full gradient.
    """

    gamma: float = chosen()
    p: float = chosen()
    q: float = chosen()

    about = About(
        name="scaffnew-vr",
        title="Scaffnew-VR",
        reference=PAPER,
        handles=frozenset({"batch", "clients", "weights", "psi"}),
        remembers=("h", "xhat", "w", "gw"),
        heals=True,
        style=Style("#87693C", "-", "h"),
        at_p_one="gd",
    )

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        half = self.local if exchange.round else self.first
        (x,) = exchange(half, server["x"], K=steps.geometric(exchange.rng, self.p))
        if exchange.problem.psi is not None:
            x = exchange.prox(x, self.gamma / self.p)
        exchange.settle(self.settle, x)
        return {"x": x}

    def first(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """The anchors begin at x0."""
        return self.local(client, {"h": memory["h"], "w": x, "gw": client.gradient(x)}, K, x)

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """Local steps, which also move the anchor."""
        anchor = (memory["w"], memory["gw"], self.q)
        xhat, w, gw = client.descend(x, memory["h"], self.gamma, K, anchor=anchor)
        up = xhat - (self.gamma / self.p) * memory["h"]
        sent = client.send(up)
        return (sent,), {"xhat": as_sent(xhat, up, sent), "w": w, "gw": gw}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        return {"h": memory["h"] + (self.p / self.gamma) * (x - memory["xhat"])}

    def check_parameters(self) -> None:
        Method.check_parameters(self)
        if self.q is not None:
            check_probability("q", self.q)

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Self:
        """gamma = 1/((4 + e) L_b) by ``theory.lsvrg_step``, p = sqrt(gamma mu), q by ``theory.lsvrg_q``.

        gamma = 1/L with full gradients. Where mu is unknown gamma = 1/(6 L_b), and q = batch/m moves an anchor once per
        pass.
        """
        gamma = self.gamma
        p = self.p
        q = self.q
        if gamma is None:
            gamma = _best_step(problem)
        if p is None:
            p = theory.best_p(gamma, steps.known_mu(problem, "p"))
        if q is None and problem.mu is None:
            q = _share(problem)
        if q is None:
            q = theory.lsvrg_q(gamma, _smoothness(problem), problem.mu)
        return replace(self, gamma=gamma, p=p, q=q)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma below 1/(4 L_b), or at most 1/L with full gradients."""
        if not problem.checks_steps:
            return self.check_steps(problem, allow_unsafe_step)
        if problem.batch is None:
            exact = StepLimits.one_over_L(problem.L_max, PAPER)
            return check_limits(
                self.name, self.gamma, exact, problem.L_max, allow_unsafe_step or problem.smoothness == "average"
            )
        L = _smoothness(problem)
        return check_limits(self.name, self.gamma, self.limits(Setting.of(L)), L, allow_unsafe_step)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """Below 1/(4 L) with L = L_b of the minibatches a rate is known; the paper has 1/(6 L)."""
        return StepLimits(1 / (4 * s.L), 1 / (6 * s.L), 1 / (4 * s.L), 2 / s.L, PAPER + ", rederived")

    def claims(self, problem: Problem) -> Claims:
        """Psi of Scaffnew plus gamma^2 W sum_i w_i sigma_i, with sigma_i = E |g_j(w_i) - g_j(x*)|^2: no noise ball."""
        full = problem.batch is None
        if not full and not problem.checks_steps:
            return Claims()
        W, rate = (0.0, 1.0) if full else theory.lsvrg_constants(self.gamma, _smoothness(problem), self.q)

        def psi(s: Solution, x: Array, server: Vectors, memory: Vectors) -> float | None:
            spread = 0.0 if full else _spread(problem, s, x, memory)
            if spread is None:
                return None
            scaffnew = theory.scaffnew_lyapunov(problem.weights, self.gamma, self.p, x, memory["h"], s.x, s.h)
            return self.gamma * scaffnew + self.gamma**2 * W * spread

        zeta = None
        if problem.mu is not None and rate > 0:
            zeta = min(theory.zeta(self.gamma, problem.mu, self.p), rate)
        return Claims(zeta, from_solution(problem, psi), ball=False)


@dataclass(frozen=True, slots=True, repr=False)
class ProxSkipVR(ScaffnewVR):
    """ScaffnewVR under the name that it has for one function: SProxSkip without its ball.

    xhat = K times  y <- y - gamma (g_j(y) - g_j(w) + gw - h)   from y = x,
                    and with probability q  w becomes the y before this step, gw = grad f(w)
    x+   = prox_{(gamma/p) psi}(xhat - (gamma/p) h)
    h+   = h + (p/gamma) (x+ - xhat)

    Args:
        gamma: the step size.
        p: the probability of taking the prox after a step; a round has 1/p steps on average.
        q: the probability that a step moves the anchor, which costs a full gradient.
    """

    about = replace(
        ScaffnewVR.about,
        name="proxskip-vr",
        title="ProxSkip-VR",
        handles=frozenset({"batch", "psi"}),
        style=Style("#5A694B", "-", "h"),
        at_p_one="proxgd",
    )


def _best_step(problem: Problem) -> float:
    """The theorem's best; 1/L with full gradients, 1/(6 L_b) if mu is unknown."""
    L = _smoothness(problem)
    if problem.batch is None or problem.mu is None:
        return theory.largest_step(L if problem.batch is None else 6.0 * L)
    return theory.lsvrg_step(L, problem.mu, _share(problem))


def _smoothness(problem: Problem) -> float:
    """L_b, or L with full gradients."""
    return problem.L if problem.batch is None else float(problem.L_batch_i.max())


def _share(problem: Problem) -> float:
    """The share of the largest client's rows in a minibatch."""
    return 1.0 if problem.batch is None or problem.sizes is None else problem.batch / max(problem.sizes)


def _spread(problem: Problem, s: Solution, x: Array, memory: Vectors) -> float | None:
    """sum_i w_i sigma_i if the clients' rows are at hand; anchors not set yet are at x."""
    total = 0.0
    for i, f in enumerate(problem.clients):
        if not isinstance(f, LinearModel):
            return None
        w, gw = memory["w"][i], memory["gw"][i]
        if not gw.any():
            w = np.broadcast_to(x, memory["w"].shape)[i]
            gw = f.gradient(w)
        noise = theory.minibatch_variance(f.N, problem.batch or f.N, f.gradient_variance(w, s.x))
        total += float(problem.weights[i]) * (float(np.sum((gw - s.h[i]) ** 2)) + noise)
    return total
