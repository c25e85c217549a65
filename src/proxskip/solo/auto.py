"""``method="auto"``: a run that measures what its gradients and proxes cost, and changes its method while it runs.

It begins with FISTA with restart, which needs nothing to be known and takes a prox at every gradient. After a few
iterations the seconds of a prox and of a gradient are known. If a prox is cheap, nothing can be saved. If it is
expensive, APDA goes on from there: it takes 2 to 15 times fewer proxes and 1.5 to 4 times more gradients. In between,
what decides is how fast the bound on the certificate falls per second. Each method is tried for as long as the run has
taken so far, and goes on if it was not slower than the other one when that was last tried. A trial is not lost: it
starts from the best iterate and moves it.

For psi(D x) ``SplitAutoDescent`` lets PAPC and APDA take turns instead.
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
from proxskip.types import Array, InputError, Vectors

WARM_UP, FIRST_LOOK = 2, 6
"""Rounds in which kernels are compiled and which nobody measures, and rounds before the first choice."""
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

FIRST_TURN = 100
"""Rounds of PAPC before APDA has its first turn, which is as long."""
TURN = 0.1
"""The length of later turns, relative to the seconds until then."""
AHEAD = 5.0
"""How many times longer the turns are of the method that will be done first, if both go on as they did."""


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
        # the first rounds have compiled kernels: their times are thrown away
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
        if (
            self.arm != "apda"
            or "proxskip" in self.rates
            or self.solo.inner_failures
            or not (mu and settled)
        ):
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


class SplitAutoDescent(AutoDescent):
    """The same for psi(D x): PAPC and APDA take turns, each from where its last turn ended.

    Which of them is faster depends on the solution: PAPC where D x has many zeros, APDA by far where it has few. So each
    has a fifth of the time at least, and both are as good as new when their turn comes. A method that stalls or
    diverges has no more turns; PDHG, PAPC with half its step, is asked last.
    """

    arms = ("papc", "apda", "pdhg")

    def __init__(self, task: Task, x0: Array, **given: Any) -> None:
        self.start = (x0, given.get("dual"))
        self.kept: dict[str, tuple[float | None, Vectors, Vectors, float]] = {}
        self.out: set[str] = set()
        self.own = dict.fromkeys(self.arms, 0.0)  # seconds
        self.lowest = dict.fromkeys(self.arms, math.inf)  # bounds
        self.history: dict[str, list[tuple[float, float]]] = {name: [] for name in self.arms}
        self.began_turn = self.first_turn = 0.0
        super().__init__(task, x0, **given)
        self.solo.prox_times = None

    def _first(self, task: Task, dual: Array | None) -> str:
        return self.arms[0]

    def advance(self) -> bool:
        """One round; now and then the other method's turn begins."""
        known = Descent.advance(self)
        if known:
            self._note()
        lost = known and self.arm in self.out and not self.stalled
        if self.replay:
            self._repeat()
        elif lost or (known and self.bound > self.tol and self._is_over()):
            self._reconsider()
        return known and not lost

    def _note(self) -> None:
        arm, history = self.arm, self.history[self.arm]
        self.own[arm] += self.spent - self.began_turn
        self.began_turn = self.spent
        self.lowest[arm] = min(self.lowest[arm], self.bound)
        if not history or self.own[arm] > 1.02 * history[-1][0]:
            history.append((self.own[arm], self.lowest[arm]))
        if super().stalled or self.diverged:
            self.out.add(arm)

    @property
    def stalled(self) -> bool:
        """Whether all three methods have stalled, or one of them at the level of rounding."""
        return self.out == set(self.arms) or (self.arm in self.out and self.is_rounding(self.best.bound))

    def _is_over(self) -> bool:
        return self.spent >= self.until if len(self.choices) > 1 else self.round >= FIRST_TURN

    def _reconsider(self) -> None:
        in_turn = [name for name in ("apda", "papc") if name not in self.out] or ["pdhg"]
        self._take(next((name for name in in_turn if name != self.arm), self.arm))

    def _take(self, name: str, share: float = 1.0) -> None:
        if len(self.choices) == 1:
            self.first_turn = self.spent
        length = max(self.first_turn, TURN * self.spent)
        if self._remaining(name) < min(self._remaining(other) for other in self.arms if other != name):
            length *= AHEAD
        self.until = self.spent + share * length
        if name != self.arm:
            self.kept[self.arm] = (self.f.L, self.server, self.solo.memory, self.solo.hope)
            self.arm = name
            self.choices.append((self.round, name))
            self.switch(self._maker(name))
            self._restore()

    def _restore(self) -> None:
        """The state in which this method's last turn ended."""
        L, server, memory, hope = self.kept.get(self.arm, (None, {}, {}, 0.0))
        if not server:
            self._begin(*((self.best.x, self.best.dual) if self.arm == "pdhg" else self.start))
        elif L == self.f.L:
            self.server, self.solo.memory, self.solo.hope = server, memory, hope
        else:  # backtracking has raised L meanwhile, and steps with it
            self._begin(memory.get("x", server["x"]), server["y"])

    def _remaining(self, name: str) -> float:
        """Seconds until tol at the pace of the second half of this method's own time."""
        history, now, bound = self.history[name], self.own[name], self.lowest[name]
        then, before = next((seen for seen in history if seen[0] >= 0.5 * now), (now, bound))
        fell = math.log(before / bound) if 0.0 < bound < before < math.inf else 0.0
        return math.log(max(bound / self.tol, 1.0)) * (now - then) / fell if fell > 0.0 else math.inf
