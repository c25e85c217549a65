"""Newton's method: the clients send their Hessians, which takes few rounds for few unknowns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from proxskip.core.exchange import Client, Exchange, Sent
from proxskip.core.method import About, Method, Style
from proxskip.participation import EVERYONE, Participation
from proxskip.problems import information
from proxskip.problems.clients import expansion_length
from proxskip.problems.federated import Problem
from proxskip.types import Array, InputError, Vectors

MOST_UNKNOWNS = 5000
"""Beyond, the answer of one client is larger than 100 MB, and a step takes a minute."""
MOST_BYTES = 1 << 33
"""The server holds the answers of all clients at once."""
ENOUGH = 1e-4
"""The share of the promised decrease with which a step is accepted (Armijo)."""
AT_ROUNDING = 1e-10
"""A promised decrease below this share of |f| is lost in the rounding of f; there the gradients judge the step."""
OVERFLOWN = 700.0
"""Where the curvature is not finite, it has grown by exp(700) or more."""
FORGETTING = 0.5
"""What is left of the steepness after a step that does not show it."""
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, repr=False)
class Newton(Method):
    """Newton's method; globally convergent on convex f, by a line search whose trials are rounds.

    S. Boyd, L. Vandenberghe, Convex Optimization, 2004, Section 9.5. The length of a damped step is that of F. Bach,
    Self-concordant analysis for logistic regression, 2010, with a constant that failed trials show.

        each client sends  f_i(x), grad f_i(x), Hess f_i(x)
        x+ = x - t H^{-1} g         with the means g and H, and t = gamma
        x+ = x_good - t H^{-1} g    with a smaller t from the last good point, if f did not fall enough

    A round sends d numbers down and  1 + d (d + 3)/2  up for each client. x is where the next round evaluates f, so a
    trial that fails is visible in the trace for one round.

    Args:
        gamma: the largest t.
    """

    gamma: float = 1.0

    about = About(
        name="newton",
        title="Newton",
        reference="Boyd, Vandenberghe, Convex Optimization, 2004; Bach, Self-concordant analysis, 2010",
        handles=frozenset({"clients", "weights"}),
        needs_hessians=True,
        style=Style("#8424FC", "-", "d"),
    )

    def check_parameters(self) -> None:
        Method.check_parameters(self)
        if np.ndim(self.gamma) or self.gamma > 1:
            raise InputError(f"gamma = {self.gamma} of newton must be one number of at most 1.")

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """Refuse functions without a Hessian, and Hessians that are too large to be sent."""
        self.check_parameters()
        if not problem.has_hessian:
            raise InputError("newton needs the Hessian of every client: give its function hessian(x), or use scaffnew.")
        numbers = expansion_length(problem.d)
        if problem.d > MOST_UNKNOWNS or 8 * numbers * problem.n > MOST_BYTES:
            size = f"{numbers:,} numbers ({8e-6 * numbers:,.0f} MB)"
            raise InputError(
                f"newton would send {size} from each of {problem.n:,} clients in every round, for {problem.d:,} "
                "unknowns; use scaffnew or accelerated."
            )
        return []

    def slowest_rate(self, problem: Problem) -> None:
        """Unknown far from the solution."""
        return None

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x, the last good point and what is known there (nothing yet), and the pace of the search."""
        return {"x": x0, "good": x0, "known": np.zeros(expansion_length(problem.d)), "pace": Pace(0.0, 0.0).vector()}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        x = server["x"]
        (known,) = exchange(self.expand, x, K=1)
        pace, here = Pace(*server["pace"].tolist()), Expansion.of(known, len(x))
        if pace.t > 0:
            good = Expansion.of(server["known"], len(x))
            step = good.newton_step()
            if not is_accepted(good, here, step, pace.t):
                shorter = pace.after_failure(good, here, step)
                return server | {"x": server["good"] + shorter.t * step, "pace": shorter.vector()}
            pace = pace.after_success(good, here, step)
        step = here.newton_step()
        next_pace = pace.before(step, self.gamma)
        return {"x": x + next_pace.t * step, "good": x, "known": known, "pace": next_pace.vector()}

    def doubt(self, problem: Problem, x: Array, is_claimed: bool = True) -> str | None:
        """Where a likelihood grows for ever, the gradient vanishes on the way to infinity: say so, and along what."""
        if problem.mu or problem.N is None or problem.elsewhere is not None:
            return None
        reason = information.endless(problem, x, is_claimed)
        return None if reason is None else f"{reason}."

    def better_than(self, f: float, server: Vectors) -> Array | None:
        """The last good point, if the trial at x fails."""
        t, good = server["pace"][0], Expansion.of(server["known"], len(server["x"]))
        slope, _ = good.along(good.newton_step()) if t > 0 else (0.0, 0.0)
        is_visible = -slope > AT_ROUNDING * abs(good.value)
        return server["good"] if is_visible and not fell(good, f, t * slope) else None

    def expand(self, client: Client, memory: Vectors, K: int, x: Array) -> Sent:
        return (client.send(client.expansion(x)),), {}


class Expansion(NamedTuple):
    """f, its gradient and its Hessian at a point."""

    value: float
    gradient: Array
    hessian: Array

    @staticmethod
    def of(known: Array, d: int) -> Expansion:
        """From the vector of ``Client.expansion``."""
        H = np.zeros((d, d))
        H[np.triu_indices(d)] = known[1 + d :]
        return Expansion(float(known[0]), known[1 : 1 + d], H + np.triu(H, 1).T)

    def newton_step(self) -> Array:
        """-H^{-1} g; in directions without curvature a gradient step, which suits the steepest direction."""
        diagonal = np.diag(self.hessian)
        # in units in which every unknown has the curvature 1, since the columns of data may have any scale
        unit = 1.0 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        H, g = unit[:, None] * self.hessian * unit, unit * self.gradient
        if not (np.isfinite(H).all() and np.isfinite(g).all()):
            return np.full(len(g), np.nan)
        return -unit * _solved(H, g)

    def along(self, step: Array) -> tuple[float, float]:
        """The slope and the curvature in this direction."""
        return float(self.gradient @ step), float(step @ self.hessian @ step)


def _solved(H: Array, g: Array) -> Array:
    """H^{-1} g, by a Cholesky factorization unless H is singular up to rounding."""
    try:
        factor = scipy.linalg.cho_factor(H)
        if np.diag(factor[0]).min() ** 2 > len(g) * EPS:
            return np.asarray(scipy.linalg.cho_solve(factor, g))
    except np.linalg.LinAlgError:
        pass
    curvatures, directions = np.linalg.eigh(H)
    steepest = max(float(curvatures[-1]), EPS)
    is_flat = curvatures <= len(g) * EPS * steepest
    return np.asarray(directions @ ((directions.T @ g) / np.where(is_flat, steepest, curvatures)))


def is_accepted(good: Expansion, here: Expansion, step: Array, t: float) -> bool:
    """Whether f fell enough from the good point to here, t steps further."""
    slope, _ = good.along(step)
    if -slope <= AT_ROUNDING * abs(good.value):
        return bool(np.linalg.norm(here.gradient) < np.linalg.norm(good.gradient))
    return fell(good, here.value, t * slope)


def fell(good: Expansion, value: float, promised: float) -> bool:
    """Whether f fell to this value by enough of what the slope promised."""
    return value <= good.value + ENOUGH * promised


class Pace(NamedTuple):
    """How far the search goes.

    Args:
        t: the share of the Newton step that is tried; 0 before the first.
        steepness: the logarithm by which the curvature grows per unit of length; 0 as long as full steps succeed.
    """

    t: float
    steepness: float

    def vector(self) -> Array:
        """As a vector of the server."""
        return np.array(self)

    def before(self, step: Array, most: float) -> Pace:
        """Before a new step.

        Where the curvature grows by exp(m t) along a Newton step, f falls up to  t = log(1 + m)/m.  A whole step is
        nearer to the end, and for  m <= 1  f still falls by  1 - (e - 2) = 0.28  of what the slope promises.
        """
        m = self.steepness * float(np.linalg.norm(step))
        return Pace(min(most, math.log1p(m) / m) if m > 1 else most, self.steepness)

    def after_failure(self, good: Expansion, here: Expansion, step: Array) -> Pace:
        """A shorter step, as steep as the failure shows."""
        growth = _growth(good, here, step)
        m = growth / self.t
        length = float(np.linalg.norm(step))
        if not (growth > 0 and length > 0):
            return Pace(self.t / 2, self.steepness)
        slope, curvature = here.along(step)
        # where the trial sees the minimum on the line, which is closer than that if it went very far
        seen = self.t - slope / curvature if 0 < curvature < math.inf else math.inf
        shorter = min(self.t / 2, math.log1p(m) / m, seen if seen > 0 else math.inf)
        return Pace(shorter, m / length)

    def after_success(self, good: Expansion, here: Expansion, step: Array) -> Pace:
        """The steepness that is left: what the step shows, or half of what was known."""
        length = self.t * float(np.linalg.norm(step))
        if not (self.steepness > 0 and length > 0):
            return self
        shown = abs(_growth(good, here, step)) / length
        return Pace(self.t, max(shown, FORGETTING * self.steepness))


def _growth(good: Expansion, here: Expansion, step: Array) -> float:
    """The logarithm by which the curvature in this direction grew from the good point to here."""
    (_, before), (_, after) = good.along(step), here.along(step)
    if not 0 < before < math.inf:
        return 0.0
    return math.log(after / before) if 0 < after < math.inf else OVERFLOWN
