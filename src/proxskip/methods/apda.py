"""APDA: one prox, then as many accelerated gradient steps as its large step size is worth; also for f(x) + psi(D x)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from proxskip import theory
from proxskip.core.exchange import Client, Exchange, Sent
from proxskip.core.method import About, Method, Style, chosen
from proxskip.methods import steps
from proxskip.methods.splitskip import operator_of
from proxskip.participation import EVERYONE, Participation
from proxskip.problems import operators
from proxskip.problems.federated import Problem
from proxskip.types import Array, InputError, Vectors

ROUNDS_BETWEEN_BALANCES = 5
"""Rounds between two adjustments of gamma."""
MAX_BALANCE = 2.0
"""The largest factor of one adjustment."""
FIRST_STEP = 4.0
"""gamma L at the start, if mu is unknown."""
STABLE_SHARE = 1.1
"""With at least this share of sqrt(gamma L) steps no quadratic diverges; below ln 3 = 1.0986 one can."""
MIN_STEEP = 1e4
"""Up to this gamma L a share of 1 suffices."""
MAX_CHECKED = 1e7
"""The largest gamma L for which a smaller K is examined instead of refused."""


def enough_steps(gamma: float, L: float) -> int:
    """The K that solves the local problem well enough, and with which no quadratic diverges.

    In a mode of curvature s the steps leave the share P of the distance to the local solution, and a round has
    determinant P and trace 2 - (1 - P)(1 + 2 gamma s)/(1 + gamma s). It is stable for large gamma s if P > -1/3, and
    the largest -P is about exp(-K/sqrt(gamma L)).
    """
    size = gamma * L
    return max(2, math.ceil(math.sqrt(size) * (1.0 if size <= MIN_STEEP else STABLE_SHARE)))


def first_step(problem: Problem) -> float:
    """gamma = 1/sqrt(mu L), the best of the theorem for exact local solves; 4/L where mu is unknown."""
    L, mu = problem.L_average, problem.mu
    return FIRST_STEP / L if mu is None else 1.0 / math.sqrt(mu * L)


def accelerated_steps(client: Client, x: Array, h: Array, gamma: float, L: float, K: int) -> Array:
    """Nesterov's method on f(y) - <h, y> + |y - x|^2/(2 gamma), of smoothness L + 1/gamma, strongly convex 1/gamma."""
    q = math.sqrt(1.0 / (1.0 + gamma * L))
    y: Array = client.descend(x, h, gamma / (1.0 + gamma * L), K, pull=(1.0 / gamma, x), momentum=(1.0 - q) / (1.0 + q))
    return y


def balanced(step: Array, dual: Array, primal: Array, most: float = MAX_BALANCE) -> Array:
    """gamma with the two sums and the count; every few rounds a new gamma, changed at most by the factor ``most``."""
    gamma = float(step[0])
    duals, primals = float(step[1]) + math.sqrt(dual.dot(dual)), float(step[2]) + math.sqrt(primal.dot(primal))
    count = float(step[3]) + 1
    if count < ROUNDS_BETWEEN_BALANCES:
        return np.array([gamma, duals, primals, count])
    # In a mode of curvature s, gamma |h+ - h| = |x - y| is gamma s times |x+ - x|. Modes with gamma s far from 1
    # are slow, so the remaining ones tell in which direction gamma has to move.
    if 0 < duals < math.inf and 0 < primals < math.inf:
        gamma *= min(most, max(1.0 / most, math.sqrt(primals / duals)))
    return np.array([gamma, 0.0, 0.0, 0.0])


@dataclass(frozen=True, slots=True, repr=False)
class APDA(Method):
    """The accelerated primal-dual algorithm with an inexact local solver, for an expensive prox.

    A. Sadiev, D. Kovalev, P. Richtarik, Communication Acceleration of Local Gradient Methods via an Accelerated
    Primal-Dual Algorithm with Inexact Prox, NeurIPS 2022, arXiv:2207.03957; M. Grudzien, G. Malinovsky, P. Richtarik,
    Can 5th Generation Local Training Methods Support Client Sampling? Yes!, AISTATS 2023, arXiv:2212.14370. For one
    function with exact local solves the rule is that of Douglas and Rachford (Lions, Mercier, 1979).

        y  = K accelerated gradient steps from x on  f(y) - <h, y> + |y - x|^2/(2 gamma)
        h+ = h + (x - y)/gamma
        x+ = prox_{gamma psi}(y - gamma h+)
        gamma+ = gamma sqrt(sum |x+ - x| / sum |x - y|)     every 5 rounds, by at most a factor of 2

    Args:
        gamma: the first step size of the outer method; any positive number.
        K: steps per round; ceil(sqrt(gamma L)) if not given, which solves the local problem well enough.
        balance: whether gamma follows the iterates (He, Yang, Wang, 2000, for ADMM); its fixed points do not depend on
            gamma, so a wrong start costs time only.
    """

    gamma: float = chosen()
    K: int | None = None
    balance: bool = field(default=True, metadata={"flag": False})

    about = About(
        name="apda",
        title="APDA",
        reference="Sadiev, Kovalev, Richtarik, APDA-Inexact, NeurIPS 2022, arXiv:2207.03957",
        handles=frozenset({"psi"}),
        remembers=("h",),
        heals=True,
        style=Style("#87C387", "--", "s"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        return {"x": x0, "step": np.array([self.gamma, 0.0, 0.0, 0.0])}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        x = server["x"]
        gamma = steps.first_of(server["step"]) if self.balance else self.gamma
        K = enough_steps(gamma, exchange.problem.L_average) if self.K is None else self.K
        y, m = exchange(partial(self.local, gamma=gamma, smoothness=exchange.problem.L_average), x, K=K)
        new = m if exchange.problem.psi is None else exchange.prox(m, gamma)
        return {"x": new, "step": self._balanced(server["step"], x - y, new - x)}

    def local(self, client: Client, memory: Vectors, K: int, x: Array, gamma: float, smoothness: float) -> Sent:
        """K accelerated steps, and the dual step."""
        y = accelerated_steps(client, x, memory["h"], gamma, smoothness, K)
        h = memory["h"] + (x - y) / gamma
        return (client.send(y), client.send(y - gamma * h)), {"h": h}

    def known_sum(self, problem: Problem, server: Vectors) -> None:
        """None: h is what it should be only in the limit."""
        return

    def _balanced(self, step: Array, dual: Array, primal: Array) -> Array:
        return balanced(step, dual, primal) if self.balance else step

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> APDA:
        """gamma = 1/sqrt(mu L), the best of the theorem for exact local solves; 4/L where mu is unknown."""
        return replace(self, gamma=first_step(problem) if self.gamma is None else self.gamma)

    def smoothness(self, problem: Problem) -> float:
        """That of the average."""
        return problem.L_average

    def slowest_rate(self, problem: Problem) -> float | None:
        """None: gamma moves, and for few local steps no rate is known with which a run could be called stalled."""
        return None

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """gamma > 0 and K >= 1; a K with which a quadratic diverges is refused."""
        notes = self.check_steps(problem, allow_unsafe_step)
        if self.K is None:
            return notes
        L = problem.L_average
        size, enough = self.gamma * L, enough_steps(self.gamma, L)
        # without psi a round is one of 5GCS for one client, with mu = 0 and tau = 1/gamma
        if enough <= self.K or (
            size <= MAX_CHECKED and theory.local_radius(self.gamma, 0.0, L, 1 / self.gamma, self.K) <= 1 + 1e-9
        ):
            return notes
        too_few = f"K = {self.K} is too small for gamma L = {size:.4g}, so apda can diverge; use K >= {enough}"
        if not allow_unsafe_step:
            raise InputError(f"{too_few}, or leave it out.")
        return [*notes, f"{too_few}."]


SETTLING = 0.95
"""The ratio, in logarithms, of the largest changes of gamma in a row."""


@dataclass(frozen=True, slots=True, repr=False)
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

    gamma: float = chosen()

    about = About(
        name="apda",
        title="APDA",
        reference="Sadiev, Kovalev, Richtarik, APDA-Inexact, NeurIPS 2022, arXiv:2207.03957; Chambolle, Pock, 2011",
        handles=frozenset({"psi", "D"}),
        remembers=("h",),
        style=Style("#87C387", "--", "s"),
    )

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x, the point ahead of it, y = 0, the step with what balances it, how often it was balanced, and |D|."""
        D = operator_of(problem)
        norm = np.sqrt(np.array([operators.operator_norm2(D)]))
        step = np.array([self.gamma, 0.0, 0.0, 0.0])
        return {"x": x0, "xbar": x0, "y": np.zeros(D.shape[0]), "step": step, "balances": np.zeros(1), "norm": norm}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """The dual step, K local steps, the look ahead."""
        D = operator_of(exchange.problem)
        x = server["x"]
        gamma = steps.first_of(server["step"])
        norm = steps.first_of(server["norm"])
        tau = 1.0 / (gamma * norm**2)
        y = exchange.prox_conjugate(server["y"] + tau * (D @ server["xbar"]), tau)
        L = exchange.problem.L_average
        half = partial(self.local, gamma=gamma, L=L)
        (new,) = exchange(half, x, -np.asarray(D.T @ y), K=enough_steps(gamma, L))
        most = MAX_BALANCE ** (SETTLING ** steps.first_of(server["balances"]))
        step = balanced(server["step"], (gamma * norm) * (y - server["y"]), new - x, most)
        step[0] = max(step[0], 1.0 / L)
        balances = server["balances"] + (step[3] == 0.0)
        return {**server, "x": new, "xbar": 2.0 * new - x, "y": y, "step": step, "balances": balances}

    def local(self, client: Client, memory: Vectors, K: int, x: Array, h: Array, gamma: float, L: float) -> Sent:
        """K accelerated steps with the shift h = -D'y."""
        return (client.send(accelerated_steps(client, x, h, gamma, L, K)),), {"h": h}

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> SplitAPDA:
        return replace(self, gamma=first_step(problem) if self.gamma is None else self.gamma)

    def slowest_rate(self, problem: Problem) -> float | None:
        """None: gamma moves, and no rate is known for few local steps."""
        return None
