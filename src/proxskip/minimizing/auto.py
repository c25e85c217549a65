"""``method="auto"``: a run that measures what its gradients and proxes cost, and changes its method while it runs.

For psi(x) it begins with FISTA with restart, which needs nothing to be known and takes a prox at every gradient. After
a few iterations the seconds of a prox and of a gradient are known. If a prox is expensive, APDA goes on from there: it
takes 2 to 15 times fewer proxes and 1.5 to 4 times more gradients.

For psi(D x) it begins with APDA.

Where APDA gets no further, such as with a prox that is inexact and does not say so, the method that takes a prox at
every gradient finishes the run: FISTA, or PAPC for psi(D x).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.core.method import Method
from proxskip.methods import Fista
from proxskip.minimizing.descent import Descent, Task
from proxskip.minimizing.functions import Smooth
from proxskip.minimizing.setup import apda, method_maker
from proxskip.problems import prox_check
from proxskip.problems.federated import Problem
from proxskip.types import Array

WARM_UP, FIRST_CHOICE = 2, 6
"""Rounds that fill caches and are not measured, and rounds before the first choice."""
EXPENSIVE = 2.5
"""A prox that costs more gradients than this is skipped; if it turns out to cost less than half of it, no longer."""
HARDER = 2.5
"""An inner solver that takes this many times more iterations at APDA's steps than at FISTA's outweighs fewer proxes."""
FIRST_DOUBT = 16
"""Rounds of APDA without progress after which a prox of unknown accuracy is tested."""
DOUBTED = 0.1
"""The share of the bound that the error of this prox may explain."""

Choice = tuple[int, str]
"""The number of rounds done, and the method that goes on from there; the last one is the end of the run."""


def _capped_fista(problem: Problem, f: Smooth) -> Method:
    """FISTA with restart, and with no more momentum than a known mu asks for."""
    # the momentum of a known mu is (1 - sqrt(mu/L)) / (1 + sqrt(mu/L)); without mu the cap is 1, which is none
    root = math.sqrt(min(1.0, (f.mu or 0.0) / problem.L))
    return Fista(1.0 / problem.L, (1.0 - root) / (1.0 + root))


class AutoDescent(Descent):
    """A minimization that chooses its method while it runs."""

    def __init__(self, task: Task, x0: Array, **settings: Any) -> None:
        self.plain = "fista-restart" if task.D is None else "papc"
        """The method that takes a prox at every gradient."""
        # a dual variable to start from is of use to APDA alone
        self.arm = self.plain if task.D is None and settings.get("dual") is None else "apda"
        self.apda_step: float | None = None
        super().__init__(task, self._maker(self.arm), x0, **settings)
        self.choices: list[Choice] = [(0, self.arm)]
        self.effort: dict[str, float] = {}  # iterations of a prox's inner solver
        self.last_effort = (0, 0)
        # with a D there is no choice by cost, and without psi no prox to skip
        self.next_choice: float = WARM_UP if task.D is None and task.psi is not None else math.inf
        self.next_doubt = FIRST_DOUBT
        self._measure_anew()

    def _maker(self, name: str) -> Callable[[Problem, Smooth], Method]:
        if name == "apda":
            step = self.apda_step  # it goes on with the step that it had found
            return lambda problem, f: apda(problem, step)
        return _capped_fista if name == "fista-restart" else method_maker(name)

    def advance(self) -> bool:
        """One round, after which the method may change."""
        known = super().advance()
        if known and self.arm == "apda" and self._is_stuck():
            self._finish_without_skipping()
            return False
        if known and self.round >= self.next_choice:
            self._reconsider()
        return known

    # -- where APDA gets no further ------------------------------------------------------------------------------------
    def _is_stuck(self) -> bool:
        """Whether APDA diverges, stalls, or is held up by a prox whose error counts for more at its large steps."""
        if self.watch.diverged(self.bound) or super().stalled:
            return not self.is_rounding(self.best.bound)
        checked, L = self.solo.checked, self.f.L or 1.0
        if checked is not None and checked.error * L > self.bound:
            return True
        if self.watch.since < self.next_doubt or self.probed is None or self.solo.call is None:
            return False
        self.next_doubt = 2 * self.watch.since
        return 2 * L * prox_check.error_of(self.solo.last_prox, self.solo.call) > DOUBTED * self.bound

    def _finish_without_skipping(self) -> None:
        self.arm = self.plain
        self.switch(self._maker(self.plain), self.best.x, self.best.dual)
        self.choices.append((self.round, self.plain))
        self.next_choice = math.inf

    # -- the choice by cost --------------------------------------------------------------------------------------------
    def prox_cost(self) -> float:
        """The seconds of a prox over those of a gradient with the loop around it, since the last measurement."""
        times, (spent, calls) = self.solo.prox_times or [0.0], self.measured
        gradient = max(self.spent - spent - math.fsum(times), 1e-9) / max(self.client.calls - calls, 1)
        cost = float(np.median(times)) / gradient
        self._measure_anew()
        return cost

    def _measure_anew(self) -> None:
        self.measured = (self.spent, self.client.calls)
        self.solo.prox_times = []

    def _reconsider(self) -> None:
        if self.round < FIRST_CHOICE:  # the first rounds have filled caches
            self.next_choice = FIRST_CHOICE
            self._measure_anew()
            return
        # choices become rarer as the run goes on, so that they cost next to nothing
        self.next_choice = self.round + max(4, self.round // 20)
        cost = self.prox_cost()
        if self._is_harder():
            self._take(self.plain)
            self.next_choice = math.inf
        elif self.arm != "apda" and cost > EXPENSIVE:
            self._take("apda")
        elif self.arm == "apda" and cost < EXPENSIVE / 2:
            self._take(self.plain)

    def _is_harder(self) -> bool:
        """Whether an inner solver, which starts where it ended, has much farther to go at APDA's large steps."""
        if self.solo.inner is None:
            return False
        done, proxes = self.last_effort
        self.last_effort = (self.solo.inner_iterations, self.solo.proxes)
        self.effort[self.arm] = 1.0 + (self.solo.inner_iterations - done) / max(self.solo.proxes - proxes, 1)
        # later calls are for a higher accuracy, and no longer comparable
        since = self.choices[-1][0]
        soon = self.arm == "apda" and self.round - since <= max(16, since // 5)
        return soon and self.effort["apda"] > HARDER * self.effort.get(self.plain, math.inf)

    def _take(self, name: str) -> None:
        """Go on with this method from here."""
        if self.arm == "apda":
            self.apda_step = float(self.server["step"][0])
        self.arm = name
        self.switch(self._maker(name), self.x, self.dual)
        self.choices.append((self.round, name))
        self._measure_anew()
