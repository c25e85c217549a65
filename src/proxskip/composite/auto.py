"""``method="auto"``: a run that measures what its gradients and proxes cost, and changes its method while it runs.

It begins with FISTA with restart, which needs nothing to be known and takes a prox at every gradient. After a few
iterations the seconds of a prox and of a gradient are known. If a prox is expensive, APDA goes on from there: it takes
2 to 15 times fewer proxes and 1.5 to 4 times more gradients.

For psi(D x) see ``turns``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.composite.descent import Descent, Task
from proxskip.composite.functions import Smooth
from proxskip.composite.setup import apda, method_maker
from proxskip.interfaces import Method
from proxskip.methods import Fista
from proxskip.problems.federated import Problem
from proxskip.types import Array

WARM_UP, FIRST_CHOICE = 2, 6
"""Rounds that fill caches and are not measured, and rounds before the first choice."""
EXPENSIVE = 2.5
"""A prox that costs more gradients than this is skipped; if it turns out to cost less than half of it, no longer."""
HARDER = 2.5
"""An inner solver that takes this many times more iterations at APDA's steps than at FISTA's outweighs fewer proxes."""

Choice = tuple[int, str]
"""The number of rounds done, and the method that goes on from there; the last one is the end of the run."""


def _capped_fista(problem: Problem, f: Smooth) -> Method:
    """FISTA with restart, and with no more momentum than a known mu asks for."""
    # the momentum of a known mu is (1 - sqrt(mu/L)) / (1 + sqrt(mu/L)); without mu the cap is 1, which is none
    root = math.sqrt(min(1.0, (f.mu or 0.0) / problem.L))
    return Fista(1.0 / problem.L, (1.0 - root) / (1.0 + root))


class AutoDescent(Descent):
    """A minimization that chooses its method while it runs."""

    arms: tuple[str, ...] = ("fista-restart", "apda")
    """The methods to choose from."""

    def __init__(self, task: Task, x0: Array, **settings: Any) -> None:
        # without a D, a dual variable to start from is of use to APDA alone
        self.arm = self.arms[0] if task.D is not None or settings.get("dual") is None else self.arms[1]
        self.apda_step: float | None = None
        super().__init__(task, self._maker(self.arm), x0, **settings)
        self.choices: list[Choice] = [(0, self.arm)]
        self.effort: dict[str, float] = {}  # iterations of a prox's inner solver
        self.last_effort = (0, 0)
        self.next_choice: float = WARM_UP
        self._measure_anew()

    def _maker(self, name: str) -> Callable[[Problem, Smooth], Method]:
        if name == "apda":
            step = self.apda_step  # it goes on with the step that it had found
            return lambda problem, f: apda(problem, step)
        return _capped_fista if name == "fista-restart" else method_maker(name)

    def advance(self) -> bool:
        """One round, after which the method may change."""
        known = super().advance()
        if self.round >= self.next_choice and known:
            self._reconsider()
        return known

    # -- the choice ----------------------------------------------------------------------------------------------------
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
        if self.task.psi is None:  # there is no prox to skip
            self.next_choice = math.inf
            return
        if self.round < FIRST_CHOICE:  # the first rounds have filled caches
            self.next_choice = FIRST_CHOICE
            self._measure_anew()
            return
        # choices become rarer as the run goes on, so that they cost next to nothing
        self.next_choice = self.round + max(4, self.round // 20)
        fista, apda = self.arms
        cost = self.prox_cost()
        if self._is_harder():
            self._take(fista)
            self.next_choice = math.inf
        elif self.arm == fista and cost > EXPENSIVE:
            self._take(apda)
        elif self.arm == apda and cost < EXPENSIVE / 2:
            self._take(fista)

    def _is_harder(self) -> bool:
        """Whether an inner solver, which starts where it ended, has much farther to go at APDA's large steps."""
        if self.solo.inner is None:
            return False
        fista, apda = self.arms
        done, proxes = self.last_effort
        self.last_effort = (self.solo.inner_iterations, self.solo.proxes)
        self.effort[self.arm] = 1.0 + (self.solo.inner_iterations - done) / max(self.solo.proxes - proxes, 1)
        # later calls are for a higher accuracy, and no longer comparable
        since = self.choices[-1][0]
        soon = self.arm == apda and self.round - since <= max(16, since // 5)
        return soon and self.effort[apda] > HARDER * self.effort.get(fista, math.inf)

    def _take(self, name: str) -> None:
        """Go on with this method."""
        if self.arm == "apda":
            self.apda_step = float(self.server["step"][0])
        self.arm = name
        self.switch(self._maker(name))
        self.choices.append((self.round, name))
        self._measure_anew()
