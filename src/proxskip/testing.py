"""Is this round function Scaffold or Scaffnew? Check it against laws that every correct one obeys, on small quadratics.

>>> def scaffnew(x, h, gradients, cohort, gamma, K):
...     xhat = {i: x for i in cohort}
...     for i in cohort:
...         for _ in range(K):
...             xhat[i] = xhat[i] - gamma * (gradients[i](xhat[i]) - h[i])
...     x = sum(xhat[i] for i in cohort) / len(cohort)
...     h = h.copy()
...     for i in cohort:
...         h[i] += (x - xhat[i]) / (K * gamma)
...     return x, h
>>> check(scaffnew).ok
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import random_quadratics
from proxskip.support.randomness import generator
from proxskip.types import Array, Indices, InputError

__all__ = ["ConformanceReport", "Law", "check", "scaffold"]

Round = Callable[..., tuple[Any, Any]]
"""``round(x, state, gradients, cohort, gamma, K) -> (x, state)``"""


@dataclass(frozen=True, slots=True)
class Law:
    """One law: the measured error, the bound that rounding explains, and the law in words."""

    name: str
    holds: bool
    measured: float
    bound: float
    says: str


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of all laws."""

    laws: tuple[Law, ...]

    @property
    def ok(self) -> bool:
        """Whether all laws hold."""
        return all(law.holds for law in self.laws)

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the laws that do not hold."""
        return tuple(law.name for law in self.laws if not law.holds)

    def __str__(self) -> str:
        return "\n".join(
            f"{'holds ' if law.holds else 'BROKEN'}  {law.name:<16} {law.measured:9.2e}  {law.says}"
            for law in self.laws
        )


def check(
    round: Round,
    place: Callable[[Array], Any] = np.copy,
    controls: Callable[[Any, Array], Array] = lambda state, x: state,
    extra: int = 0,
    cohorts: bool = True,
) -> ConformanceReport:
    """Check a round function against the laws.

    Args:
        round: ``round(x, state, gradients, cohort, gamma, K) -> (x, state)``: one round from the server's x, with
            ``gradients[i](y)`` for the clients i of the cohort, K local steps of size gamma, equal weights.
        place: ``place(h)`` returns a state whose corrections are h (rows sum to zero); by default h itself.
        controls: ``controls(state, x)`` returns the corrections h that a local step adds to minus the gradient, once
            every client knows the round's outcome. For Scaffold with c_i and c these are c_i - c.
        extra: gradients that a client may take besides its K local steps (1 for Scaffold's option I).
        cohorts: False skips the laws for rounds with only some clients.
    """
    on = _RoundChecker(round, place, controls)
    # exact laws first, each of which names one mistake; the rate only shows that something is wrong
    laws = [on.local_steps(extra), on.fixed_point(), on.reduction(), on.learning(), on.total(False), on.rate(False)]
    if cohorts:
        laws += [on.outsiders(), on.total(True), on.rate(True)]
    return ConformanceReport(tuple(laws))


def scaffold(
    round: Callable[..., tuple[Any, Any, Any]],
) -> tuple[Round, Callable[[Array], Any], Callable[[Any, Array], Array]]:
    """Adapts a round ``(x, c_i, c, gradients, cohort, gamma, K) -> (x, c_i, c)``, for ``check(*scaffold(round))``."""

    def act(x: Array, state: Any, *rest: Any) -> tuple[Array, Any]:
        x, c_i, c = round(x, state[0].copy(), state[1].copy(), *rest)
        return x, (c_i, c)

    return act, lambda h: (h.copy(), np.zeros(h.shape[1])), lambda state, x: state[0] - state[1]


def _law(name: str, measured: float, bound: float, says: str) -> Law:
    """A law holds if the measured error is within the bound; nan never is."""
    return Law(name, bool(measured <= bound), float(measured), bound, says)


class _RoundChecker:
    """The round function on six quadratics with different minimizers."""

    def __init__(self, round: Round, place: Callable[[Array], Any], controls: Callable[[Any, Array], Array]) -> None:
        self.round = round
        self.place = place
        self.controls = controls
        # small for speed, heterogeneous so that client drift shows
        self.problem = Problem(random_quadratics(n=6, d=5, L=1.0, mu=0.1, seed=3))
        self.rng = generator(11)
        self.calls = np.zeros(6, dtype=np.int64)
        self.everybody = np.arange(6)
        assert self.problem.solution is not None
        self.x, self.h = self.problem.solution.x, self.problem.solution.h
        self.scale = 1.0 + float(np.abs(self.h).max())

    def gradient(self, i: int, y: Array) -> Array:
        """The gradient of client i, counted."""
        self.calls[i] += 1
        return self.problem.clients[i].gradient(np.array(y, dtype=np.float64))

    def play(self, x: Array, state: Any, cohort: Indices | list[int], gamma: float, K: int) -> tuple[Array, Any]:
        # copies and a fresh list, so that the function under test cannot change its judge
        self.calls[:] = 0
        gradients = [partial(self.gradient, i) for i in range(6)]
        x, state = self.round(np.copy(x), state, gradients, np.array(cohort), gamma, K)
        x = np.asarray(x, dtype=np.float64)
        if x.shape != (5,):
            raise InputError(f"the round returned an x of shape {x.shape}; it must be (5,).")
        return x, state

    def random_state(self) -> tuple[Array, Array]:
        """A random x, and corrections that sum to zero."""
        h = self.rng.standard_normal((6, 5))
        return self.rng.standard_normal(5), h - h.mean(axis=0)

    # -- the laws ------------------------------------------------------------------------------------------------------
    def local_steps(self, extra: int) -> Law:
        """Each client of the cohort computes K gradients, the others none."""
        worst = 0
        for K, cohort in ((1, self.everybody), (4, self.everybody), (3, np.array([0, 2, 5]))):
            x, h = self.random_state()
            self.play(x, self.place(h), cohort, 0.1, K)
            steps = np.where(np.isin(self.everybody, cohort), K, 0)
            # too few, or too many beyond the extra ones; outside the cohort every gradient is too many
            wrong = np.maximum(np.maximum(steps - self.calls, self.calls - steps - extra), 0)
            off = np.where(steps > 0, wrong, self.calls)
            worst = max(worst, int(off.max()))
        return _law("local steps", worst, 0.0, "each client of the cohort takes K gradients, the others none")

    def fixed_point(self) -> Law:
        """x* with h_i = grad f_i(x*) does not move."""
        x, state = self.play(self.x, self.place(self.h), self.everybody, 0.2, 4)
        miss = max(np.abs(x - self.x).max(), np.abs(self.controls(state, x) - self.h).max())
        return _law("fixed point", miss, 1e-12 * self.scale, "x* with h_i = grad f_i(x*) does not move")

    def reduction(self) -> Law:
        """One local step of all clients is gradient descent, for any h."""
        x, h = self.random_state()
        new, _ = self.play(x, self.place(h), self.everybody, 0.3, 1)
        right = x - 0.3 * self.problem.gradient(x)
        return _law("reduction", np.abs(new - right).max(), 1e-12 * self.scale, "K = 1 is gradient descent")

    def learning(self) -> Law:
        """After one local step of all clients, h_i is the gradient of client i minus the mean gradient."""
        x, h = self.random_state()
        new, state = self.play(x, self.place(h), self.everybody, 0.3, 1)
        g = self.problem.client_gradients(x)
        miss = np.abs(self.controls(state, new) - (g - g.mean(axis=0))).max()
        return _law("learning", miss, 1e-11 * self.scale, "K = 1 learns h_i = grad f_i(x) - grad f(x)")

    def total(self, cohorts: bool) -> Law:
        """The corrections sum to zero after every round."""
        x, h = self.random_state()
        state, worst = self.place(h), 0.0
        for _ in range(12):
            cohort = np.sort(self.rng.permutation(6)[:3]) if cohorts else self.everybody
            x, state = self.play(x, state, cohort, 0.1, 3)
            worst = max(worst, float(np.abs(np.sum(self.controls(state, x), axis=0)).max()))
        name = "sum on cohorts" if cohorts else "sum"
        return _law(
            name, worst, 1e-11 * self.scale, "sum_i h_i = 0 after every round" + " of half the clients" * cohorts
        )

    def outsiders(self) -> Law:
        """Clients outside the cohort learn nothing: their h all change by the same vector."""
        x, h = self.random_state()
        new, state = self.play(x, self.place(h), [1, 4], 0.1, 3)
        moved = (self.controls(state, new) - h)[[0, 2, 3, 5]]
        miss = np.abs(moved - moved[0]).max()
        return _law("outsiders", miss, 1e-12 * self.scale, "clients outside the cohort learn nothing")

    def rate(self, cohorts: bool) -> Law:
        """The error goes to zero without a bias."""
        x, state = np.zeros(5), self.place(np.zeros((6, 5)))
        # half of the clients learn h_i half as often: shorter steps and more rounds
        rounds, K, gamma = (1500, 3, 0.1) if cohorts else (400, 4, 0.2)
        with np.errstate(all="ignore"):
            for _ in range(rounds):
                cohort = np.sort(self.rng.permutation(6)[:3]) if cohorts else self.everybody
                x, state = self.play(x, state, cohort, gamma, K)
            miss = float(np.linalg.norm(x - self.x) / np.linalg.norm(self.x))
        name = "rate on cohorts" if cohorts else "rate"
        return _law(name, miss, 1e-6, f"the error vanishes in {rounds} rounds" + " with half the clients" * cohorts)
