"""``method="auto"``: a run that measures what its gradients and proxes cost, and changes its method while it runs.

It begins with FISTA with restart, which needs nothing to be known and takes a prox at every gradient. After a few
iterations the seconds of a prox and of a gradient are known. If a prox is cheap, nothing can be saved. If it is
expensive, APDA goes on from there: it takes 2 to 15 times fewer proxes and 1.5 to 4 times more gradients. In between,
what decides is how fast the bound on the certificate falls per second. Each method is tried for as long as the run has
taken so far, and goes on if it was not slower than the other one when that was last tried. A trial is not lost: it
starts from the best iterate and moves it.

For psi(D x) see ``turns``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from proxskip.methods import Fista
from proxskip.problems.federated import Problem
from proxskip.seam import Method
from proxskip.solo.descent import Descent, Task
from proxskip.solo.functions import Smooth
from proxskip.solo.setup import apda, method_maker
from proxskip.types import Array, InputError

WARM_UP, FIRST_LOOK = 2, 6
"""Rounds that fill caches and that nobody measures, and rounds before the first choice."""
MAX_CHEAP = 1.0
"""A prox that costs fewer gradients than this is not worth skipping."""
MIN_EXPENSIVE = 2.5
"""A prox that costs more gradients than this is skipped at once."""
FIRST_TRIAL = 200
"""Rounds of FISTA, over the cost of a prox in gradients, before APDA is tried."""
TRIAL = 0.5
"""The length of the first trial, relative to the seconds until then."""
SETTLED, SMALL_STEP = 30, 16.0
"""Rounds after which the step of APDA has settled, and gamma L up to which it counts as small."""
LONG_ROUND = 12.0
"""FISTA is tried where a round of APDA takes more gradients than this many times those that a prox costs."""
HARDER = 2.5
"""An inner solver that takes this many times more iterations at APDA's steps than at FISTA's outweighs fewer proxes."""
SHORT_TRIAL = 0.1
"""The length of ProxSkip's trial: APDA's pace, to which it is compared, is often slow only in the beginning."""
CLEARLY = 1.5
"""How much faster the other method must have been for a change."""

Choice = tuple[int, str]
"""The number of rounds done, and the method that goes on from there; the last one is the end of the run."""


NO_MOMENTUM, PLAIN_ROUNDS = 0.5, 50
"""From this mu/L on ProxGD begins, since momentum cannot help; if it is not done after these rounds, mu was wrong."""


def _capped_fista(problem: Problem, f: Smooth) -> Method:
    """FISTA with restart, and with no more momentum than a known mu asks for."""
    # the momentum of a known mu is (1 - sqrt(mu/L)) / (1 + sqrt(mu/L)); without mu the cap is 1, which is none
    root = math.sqrt(min(1.0, (f.mu or 0.0) / problem.L))
    return Fista(1.0 / problem.L, (1.0 - root) / (1.0 + root))


class AutoDescent(Descent):
    """A minimization that chooses its method while it runs, or repeats the choices of an earlier one.

    Args:
        replay: the choices to repeat.
    """

    arms: tuple[str, ...] = ("fista-restart", "apda", "proxskip", "proxgd")
    """The methods to choose from. The first two are tried; ProxSkip and ProxGD go where their rates are known."""

    def __init__(self, task: Task, x0: Array, *, replay: tuple[Choice, ...] = (), **given: Any) -> None:
        self.replay = tuple((int(r), str(name)) for r, name in replay)
        if replay and not ({name for _, name in self.replay} <= {*self.arms, "end"} and self.replay[0][0] == 0):
            raise InputError(f"these choices are not those of a run on a problem like this one: {replay!r}.")
        # a dual variable to start from is of use to APDA alone
        first = self.replay[0][1] if self.replay else self._first(task, given.get("dual"))
        self.arm, self.steps = first, dict[str, float]()
        super().__init__(task, self._maker(first), x0, **given)
        self.choices: list[Choice] = [(0, first)]
        self.solo.prox_times = None if self.replay else []
        self.rates: dict[str, float] = {}
        self.effort: dict[str, float] = {}  # iterations of a prox's inner solver
        self.last_effort = (0, 0)
        self.look = WARM_UP
        self.until = 0.0  # seconds up to which nothing is reconsidered
        self.promise = 0.0  # ProxSkip's rate by its theorem
        self._mark()

    def _first(self, task: Task, dual: Array | None) -> str:
        if dual is not None:
            return self.arms[1]
        even = (task.f.mu or 0.0) >= NO_MOMENTUM * (task.f.L or math.inf)
        return "proxgd" if even else self.arms[0]

    def _maker(self, name: str) -> Callable[[Problem, Smooth], Method]:
        gamma = self.steps.get(name)
        if gamma is not None:
            return lambda problem, f: apda(problem, gamma)  # goes on with the step that it had found
        return _capped_fista if name == "fista-restart" else method_maker(name)

    def advance(self) -> bool:
        """One round, and now and then a look at the clock."""
        known = super().advance()
        if self.replay:
            self._repeat()
        elif self.round >= self.look and known:
            self._reconsider()
        return known

    def _repeat(self) -> None:
        done = len(self.choices)
        if done < len(self.replay) and self.round >= self.replay[done][0] and self.replay[done][1] != "end":
            self._take(self.replay[done][1])

    # -- the choice ----------------------------------------------------------------------------------------------------
    def cost(self) -> tuple[float, float]:
        """Seconds of a prox, and of a gradient with the loop around it, since the last look."""
        times, (spent, calls) = self.solo.prox_times or [0.0], self.last_look
        steps = max(self.client.calls - calls, 1)
        found = float(np.median(times)), max(self.spent - spent - math.fsum(times), 1e-9) / steps
        self._looked()
        return found

    def _looked(self) -> None:
        self.last_look = (self.spent, self.client.calls)
        if self.solo.prox_times is not None:
            self.solo.prox_times.clear()

    def _reconsider(self) -> None:
        # without a prox there is nothing to skip, and nothing is looked at again
        if self.task.psi is None:
            self.look = sys.maxsize
            return
        # the first rounds have filled caches: their times are thrown away
        if self.round < FIRST_LOOK:
            self.look = FIRST_LOOK
            self._looked()
            return
        # looks become rarer as the run goes on, so that they cost next to nothing
        self.look = self.round + max(4, self.round // 20)
        here = self.arm
        other = self.arms[1] if here in (self.arms[0], "proxskip") else self.arms[0]
        call, step = self.cost()
        ratio = call / step
        self.seen.append((self.spent, self.best.bound))
        if here == "proxgd":
            if self.round >= PLAIN_ROUNDS:
                self._take(other, 1.0)
        elif self._harder():
            # with the rate zero it will not be chosen again
            self.rates[here] = 0.0
            self._take(other, math.inf)
        elif here == "proxskip" and self.spent >= self.until and self._rate() < self.promise / 2:
            self.rates[here] = self._rate()
            self._take("apda", math.inf)
        elif self._promises_more(call, step):
            self.rates[here] = self._rate()
            self._take("proxskip", SHORT_TRIAL)
        elif other in self.rates:
            self.rates[here] = self._rate()
            if self.spent >= self.until and self.rates[other] > CLEARLY * self.rates[here]:
                self._take(other, 1.0)
        elif here == self.arms[0]:
            if ratio > MIN_EXPENSIVE:
                self._take(other, math.inf)  # the rate of a few rounds says nothing: the beginning is fast
            elif ratio > MAX_CHEAP and self.round * ratio >= FIRST_TRIAL:
                self.rates[here] = self._rate()
                self._take(other, TRIAL)
        elif self.spent >= self.until and (ratio < MIN_EXPENSIVE / 2 or self._doubtful(ratio)):
            self.rates[here] = self._rate()
            self._take(other, TRIAL)

    def _harder(self) -> bool:
        """Whether an inner solver, which starts where it ended, has much farther to go at APDA's large steps."""
        if self.solo.inner is None:
            return False
        first, second = self.arms[:2]
        done, proxes = self.last_effort
        self.last_effort = (self.solo.inner_iterations, self.solo.proxes)
        self.effort[self.arm] = 1.0 + (self.solo.inner_iterations - done) / max(self.solo.proxes - proxes, 1)
        # later calls are for a higher accuracy, and no longer comparable
        since = self.choices[-1][0]
        soon = self.arm == second and self.round - since <= max(16, since // 5)
        return soon and self.effort[second] > HARDER * self.effort.get(first, math.inf)

    def _promises_more(self, call: float, step: float) -> bool:
        """Whether ProxSkip's theorem is sure of a faster pace than APDA has, once that has settled.

        In Theorem 3.6 of arXiv:2202.09357 with gamma = 1/L and p = 1/sqrt(kappa) the squared distance shrinks by
        1 - 1/kappa an iteration, which costs a gradient and p proxes.
        """
        mu, settled = self.f.mu, self.round - self.choices[-1][0] >= 3 * SETTLED
        if self.arm != "apda" or "proxskip" in self.rates or self.solo.inner_failures or not (mu and settled):
            return False
        kappa = (self.f.L or 1.0) / mu
        self.promise = 1.0 / (2.0 * kappa * (step + call / math.sqrt(kappa)))
        return self.promise > CLEARLY * self._rate()

    def _doubtful(self, ratio: float) -> bool:
        """Whether APDA has settled at a small step, where FISTA may need no more proxes, or takes very long rounds."""
        if self.arm != "apda" or self.round - self.choices[-1][0] < SETTLED:
            return False
        size = float(self.server["step"][0]) * (self.f.L or 1.0)
        return size <= SMALL_STEP or math.sqrt(size) > LONG_ROUND * ratio

    def _rate(self) -> float:
        """How fast the logarithm of the best bound has fallen per second, in the second half since the last change."""
        (now, bound), begin = self.seen[-1], self.seen[0][0]
        # soon after a change the pace is not yet the method's own: that part is left out
        then, before = next(seen for seen in self.seen if seen[0] >= begin + 0.4 * (now - begin))
        return math.log(before / max(bound, 1e-300)) / (now - then) if now > then else 0.0

    def _take(self, name: str, share: float = 1.0) -> None:
        if self.arm == "apda":
            self.steps[self.arm] = float(self.server["step"][0])
        self.arm = name
        self.switch(self._maker(name))
        self.choices.append((self.round, name))
        self._mark()
        # even a change without a trial is looked at again, after twice the time so far
        self.until = (1.0 + share) * self.spent if share < math.inf else 3.0 * self.spent

    def _mark(self) -> None:
        self._looked()
        self.seen = [(self.spent, self.best.bound)] if self.best.bound < math.inf else []

    def all_choices(self) -> tuple[Choice, ...]:
        """The choices with the end of the run."""
        return (*self.choices, (self.round, "end"))
