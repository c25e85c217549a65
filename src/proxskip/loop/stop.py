"""When to stop: limits, and tolerances that must all hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip.loop.line import Ledger
from proxskip.problems.federated import Problem
from proxskip.types import InputError

MANY_ROUNDS = 1_000_000
"""Where a run with nothing but a tolerance gives up."""


@dataclass(frozen=True, slots=True)
class Stop:
    """When to stop: whichever comes first of the limits, or all of the tolerances together."""

    rounds: int | None = None
    iterations: int | None = None
    seconds: float | None = None
    tol: float | None = None
    target: float | None = None

    @property
    def rules(self) -> dict[str, Any]:
        """All rules by name, None for those that were not given."""
        return {k: getattr(self, k) for k in self.__slots__}

    def check(self, problem: Problem) -> None:
        """At least one rule, each of them positive."""
        given = {k: v for k, v in self.rules.items() if v is not None}
        if not given:
            raise InputError("nothing says when to stop; give rounds, iterations, seconds, tol or target.")
        for name, v in given.items():
            counted = name in ("rounds", "iterations")
            kinds: Any = (int, np.integer) if counted else (int, float, np.number)
            if isinstance(v, bool) or not isinstance(v, kinds):
                raise InputError(f"{name} = {v!r} must be a {'whole ' if counted else ''}number.")
            if not v > 0 and not (name == "rounds" and v == 0):
                raise InputError(f"{name} = {v} must be positive.")
        if self.target is not None and problem.solution is None:
            raise InputError("a target for f - f* needs the solution, which is unknown here; give tol instead.")

    @property
    def asked(self) -> bool:
        """Whether a tolerance was asked for."""
        return self.tol is not None or self.target is not None

    def reached(self, row: dict[str, float]) -> bool:
        """All tolerances hold at this record."""
        good = self.tol is None or row["grad_norm"] <= self.tol
        return self.asked and good and (self.target is None or row["gap"] <= self.target)

    def limit(self, round: int, ledger: Ledger) -> str | None:
        """Which limit is reached, in words."""
        unbounded = self.rounds is None and self.iterations is None and self.seconds is None
        if round >= (np.inf if self.rounds is None else self.rounds) or (unbounded and round >= MANY_ROUNDS):
            return f"after {round} rounds"
        if self.iterations is not None and ledger.iterations >= self.iterations:
            return f"after {ledger.iterations} iterations"
        if self.seconds is not None and ledger.seconds >= self.seconds:
            return f"after {ledger.seconds:.3g} seconds"
        return None
