"""``method="auto"`` for psi(D x): PAPC and APDA take turns, each from where its last turn ended.

Which of them is faster depends on the solution: PAPC where D x has many zeros, APDA by far where it has few. The one
that will be done first, if both go on as they did, has six sevenths of the time. A method that stalls or diverges has
no more turns. PDHG, which is PAPC with half its step, has its turn where both did. APDA takes fewer proxes, and goes
first where a prox is expensive.
"""

from __future__ import annotations

import math
from typing import Any

from proxskip.composite.auto import EXPENSIVE, AutoDescent
from proxskip.composite.descent import Descent, Task
from proxskip.types import Array, Vectors

FIRST_TURN = {"papc": 300, "apda": 100}
"""Rounds before the other method has its first turn."""
TURN, SHORTEST = 0.1, 1 / 3
"""The length of a turn, relative to the seconds until then, and the least, relative to the first turn."""
AHEAD = 6.0
"""How many times longer the turns are of the method that is ahead."""


class TurnsDescent(AutoDescent):
    """A minimization of f(x) + psi(D x) that chooses its method while it runs."""

    arms = ("papc", "apda", "pdhg")

    def __init__(self, task: Task, x0: Array, **settings: Any) -> None:
        self.y0 = settings.get("dual")
        self.kept: dict[str, tuple[float | None, Vectors, Vectors, float]] = {}
        self.retired: set[str] = set()
        self.turn_began = self.first_turn = 0.0
        self.own = dict.fromkeys(self.arms, 0.0)  # seconds
        self.lowest = dict.fromkeys(self.arms, math.inf)  # bounds
        self.past: dict[str, list[tuple[float, float]]] = {name: [] for name in self.arms}  # both, now and then
        super().__init__(task, x0, **settings)

    def advance(self) -> bool:
        """One round, after which the other method's turn may begin."""
        known = Descent.advance(self)
        if known:
            self._note()
        lost = known and self.arm in self.retired and not self.stalled
        if lost or (known and self.bound > self.tol and self._is_over()):
            turns = [name for name in ("papc", "apda") if name not in self.retired] or ["pdhg"]
            self._take(next((name for name in turns if name != self.arm), self.arm))
        return known and not lost

    def _note(self) -> None:
        arm, past = self.arm, self.past[self.arm]
        self.own[arm] += self.spent - self.turn_began
        self.turn_began = self.spent
        self.lowest[arm] = min(self.lowest[arm], self.bound)
        if not past or self.own[arm] > 1.02 * past[-1][0]:
            past.append((self.own[arm], self.lowest[arm]))
        if super().stalled or self.watch.diverged(self.bound):
            self.retired.add(arm)

    @property
    def stalled(self) -> bool:
        """Whether all three methods have stalled, or one of them at the level of rounding."""
        return self.retired == set(self.arms) or (self.arm in self.retired and self.is_rounding(self.best.bound))

    def _is_over(self) -> bool:
        if self.first_turn:
            return self.spent >= self.until
        return self.round >= FIRST_TURN[self.arm] or self._is_expensive()

    def _is_expensive(self) -> bool:
        """Whether a prox was expensive in PAPC's first rounds; measured once."""
        if self.solo.prox_times is None:
            return False
        cost = self.prox_cost()
        self.solo.prox_times = None
        return cost > EXPENSIVE

    def _take(self, name: str) -> None:
        if not self.first_turn and self.round >= FIRST_TURN.get(self.arm, 0):
            self.first_turn = self.spent
        length = max(SHORTEST * self.first_turn, TURN * self.spent)
        if self._remaining(name) < min(self._remaining(other) for other in self.arms if other != name):
            length *= AHEAD
        self.until = self.spent + length
        if name != self.arm:
            self.kept[self.arm] = (self.f.L, self.server, self.solo.memory, self.solo.hope)
            self.arm = name
            self.choices.append((self.round, name))
            self.switch(self._maker(name))
            self._restore()

    def _restore(self) -> None:
        """The state in which this method's last turn ended; x0 at its first, and for PDHG the best point so far."""
        L, server, memory, hope = self.kept.get(self.arm, (None, {}, {}, 0.0))
        if not server:
            self._begin(*((self.best.x, self.best.dual) if self.arm == "pdhg" else (self.x0, self.y0)))
        elif L == self.f.L:
            self.server, self.solo.memory, self.solo.hope = server, memory, hope
        else:  # backtracking has raised L meanwhile, on which steps depend
            self._begin(memory.get("x", server["x"]), server["y"])

    def _remaining(self, name: str) -> float:
        """Seconds until tol, at the pace of the second half of this method's own time."""
        now, bound = self.own[name], self.lowest[name]
        then, before = next((seen for seen in self.past[name] if seen[0] >= 0.5 * now), (now, bound))
        fell = math.log(before / bound) if 0.0 < bound < before < math.inf else 0.0
        return math.log(max(bound / self.tol, 1.0)) * (now - then) / fell if fell > 0.0 else math.inf
