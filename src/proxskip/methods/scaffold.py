"""Scaffold, options I and II, with a global step size and client sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from proxskip.core.exchange import Client, Exchange, Sent, as_sent
from proxskip.core.method import About, Method, Style, chosen
from proxskip.methods import steps
from proxskip.methods.gradient import LocalMethod
from proxskip.participation import EVERYONE, Everyone, Participation
from proxskip.problems.federated import Problem
from proxskip.theory.step_sizes import Setting, StepLimits
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class Scaffold(LocalMethod):
    """Local steps corrected by  h_i = c_i - c,  where c_i estimates the client's gradient and c their mean.

    S. P. Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020,
    arXiv:1910.06378, Algorithm 1. S is the cohort, N all clients.

        y_i = K times  y <- y - gamma (g_i(y) - c_i + c)   from y = x
        c_i+ = grad f_i(x)                         (option I)
        c_i+ = c_i - c + (x - y_i)/(K gamma)       (option II)
        x+ = x + eta_g mean_S(y_i - x),    c+ = c + sum_S w_i (c_i+ - c_i)

    Option II with everybody needs no c: the client learns  h_i+ = h_i + (ybar - y_i)/(K gamma)  from x+, so one vector
    goes each way. With eta_g = 1 that is Scaffnew with a fixed number K = 1/p of local steps.

    Args:
        gamma: the step size of the local steps.
        K: the local steps in a round.
        eta_g: the step size of the server.
        option: how c_i is renewed, "I" (a gradient at x) or "II" (from the local steps).
    """

    gamma: float = chosen()
    K: int = chosen()
    eta_g: float = 1.0
    option: Literal["I", "II"] = "II"

    about = About(
        name="scaffold",
        title="Scaffold",
        reference="Karimireddy et al., SCAFFOLD, ICML 2020, arXiv:1910.06378",
        handles=frozenset({"batch", "clients", "weights", "cohort"}),
        remembers=("h", "x", "y"),
        sends=frozenset({"local"}),
        style=Style("#0072B2", "--", "P"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        return {"x": x0, "c": 0.0 * x0}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """One vector each way where that suffices, otherwise x and c down, y_i - x and c_i+ - c_i up."""
        x, c = server["x"], server["c"]
        if self.option == "II" and exchange.everyone:
            (ybar,) = exchange(self.local, x, K=self.K)
            x = x + self.eta_g * (ybar - x)
            exchange.settle(self.settle, x)
            return {"x": x, "c": c}
        dx, dc = exchange(self.local_with_c, x, c, K=self.K)
        # dc is a mean over the cohort, c a sum over all clients
        share = float(exchange.problem.weights[exchange.cohort].sum())
        return {"x": x + self.eta_g * dx, "c": c + share * dc}

    def local(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        """K steps with the h learned so far."""
        y = client.descend(x, memory["h"], self.gamma, K)
        sent = client.send(y)
        return (sent,), {"x": 0.0 * y + x, "y": as_sent(y, y, sent)}

    def settle(self, client: Client, memory: Vectors, x: Array) -> Vectors:
        """Solve for ybar, and update h."""
        # x+ = x + eta_g (ybar - x), solved for ybar
        ybar = memory["x"] + (x - memory["x"]) / self.eta_g
        return {"h": memory["h"] + (ybar - memory["y"]) / (self.K * self.gamma)}

    def local_with_c(self, client: Client, memory: Vectors, K: int, x: Array, c: Array) -> Sent:
        """K steps with h_i = c_i - c, then the new c_i, which this form keeps in the place of h_i."""
        h = memory["h"] - c
        y = client.descend(x, h, self.gamma, K)
        c_new = client.gradient(x) if self.option == "I" else h + (x - y) / (K * self.gamma)
        up = c_new - memory["h"]
        sent = client.send(up)
        # update c_i by what the server read, so that c stays the mean of the c_i
        return (client.send(y - x), sent), {"h": as_sent(c_new, up, sent)}

    def controls(self, server: Vectors, memory: Vectors) -> Array:
        """h_i = c_i - c; in the one-vector form c stays zero and the clients keep h_i itself."""
        return memory["h"] - server["c"]

    def dual_step(self, round: int) -> float:
        """1/(K gamma), and 1/eta_g times that where the clients solve for ybar."""
        return 1.0 / (self.K * self.gamma * min(1.0, self.eta_g))

    def check_parameters(self) -> None:
        Method.check_parameters(self)
        if self.option not in ("I", "II"):
            raise InputError(f'option "{self.option}" of Scaffold is not known; use "I" or "II".')

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Scaffold:
        """gamma = 1/(81 K L eta_g), Theorem I of the Scaffold paper, and K = sqrt(kappa).

        On cohorts also gamma <= share/(15 mu K eta_g), with the share of the clients that takes part in a round.
        """
        K = steps.local_steps(problem) if self.K is None else self.K
        if self.gamma is not None:
            return replace(self, K=K)
        setting = Setting.of(problem.es_A, K=K, eta_g=self.eta_g)
        if not isinstance(cohorts, Everyone):
            setting = replace(setting, mu=problem.mu, share=cohorts.share(problem.n))
        return replace(self, gamma=self.step(setting, figure), K=K)

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma <= 1/(K L eta_g); from 2/L on it is refused."""
        return self.check_steps(problem, allow_unsafe_step, K=self.K, eta_g=self.eta_g)

    @classmethod
    def limits(cls, s: Setting) -> StepLimits:
        """1/(81 K L eta_g), and on cohorts share/(15 mu K eta_g)."""
        theorem = 1 / (81 * s.K * s.L * s.eta_g)
        if s.mu is not None:
            theorem = min(theorem, s.share / (15 * s.mu * s.K * s.eta_g))
        figure = 1 / (s.K * s.L * s.eta_g)
        source = "Karimireddy et al., SCAFFOLD, ICML 2020; the figure's step converges when measured, without proof"
        return StepLimits(theorem, figure, min(figure, 1 / s.L), 2 / s.L, source)
