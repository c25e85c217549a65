"""A step size that falls from round to round, for any method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proxskip import theory
from proxskip.core.exchange import Exchange
from proxskip.core.method import About, Method, chosen
from proxskip.participation import EVERYONE, Participation
from proxskip.problems.federated import Problem
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True, repr=False)
class Decaying(Method):
    """A method whose step size in round k is ``1/(1/gamma + decay k)``; everything else is the method's own.

    The paper's stochastic experiments use ``decay = 100 lambda/2``, 100 being the number of local steps; no theorem of
    the paper covers it. It bears the method's name, and ``decay`` stands among its parameters.

    Args:
        method: a method with the step size of the first round.
        decay: how fast the step size falls; 0 keeps it. By default that of the experiments, K lambda/2 with K (or 1/p)
            local steps a round.

    >>> import proxskip as ps
    >>> falling = ps.Decaying(ps.GD(0.5), decay=2.0)
    >>> [falling.at(k).gamma for k in (0, 1, 2)]
    [0.5, 0.25, 0.16666666666666666]
    """

    method: Method
    decay: float = chosen()

    def __post_init__(self) -> None:
        if isinstance(self.method, Decaying):
            raise InputError("the step size of this method already decays; pass decay once.")
        if not isinstance(self.method, Method):
            raise InputError("Decaying takes a method object, such as GD(0.5).")
        if self.decay is not None:
            theory.nonnegative("decay", self.decay)

    def complete(self, problem: Problem, cohorts: Participation = EVERYONE, figure: bool = False) -> Decaying:
        """The method's own parameters, and the decay of the paper's Figure 2."""
        method = self.method.complete(problem, cohorts, figure)
        return Decaying(method, self._decay(method, problem) if self.decay is None else self.decay)

    def _decay(self, method: Method, problem: Problem) -> float:
        """K lambda/2."""
        if problem.l2 is None:
            raise InputError("this problem has no l2 term for the decay of the paper's experiments; give decay.")
        counts = method.parameters().get("K")
        K = sum(counts) / len(counts) if isinstance(counts, tuple) else 1.0 / method.pace
        return K * problem.l2 / 2

    @property
    def about(self) -> About:  # type: ignore[override]
        return self.method.about

    @property
    def gamma(self) -> Any:
        return self.method.gamma

    def at(self, k: int) -> Any:
        """The method with the step size of round k."""
        method: Any = self.method
        if isinstance(method.gamma, tuple):
            return replace(method, gamma=tuple(theory.falling_step(k, g, self.decay) for g in method.gamma))
        return replace(method, gamma=theory.falling_step(k, method.gamma, self.decay))

    def check(self, problem: Problem, allow_unsafe_step: bool = False, cohorts: Participation = EVERYONE) -> list[str]:
        """The first step size is the method's to judge; refused where the server keeps it among its vectors."""
        x0 = np.zeros(problem.d)
        now, later = self.at(0).start(problem, x0), self.at(1).start(problem, x0)
        if any(np.any(now[name] != later[name]) for name in now):
            raise InputError(f"{self.name} chooses its step size in every round itself; leave out decay.")
        return self.method.check(problem, allow_unsafe_step, cohorts)

    def dual_step(self, round: int) -> float:
        """It grows as the step size falls."""
        step: float = self.at(round).dual_step(round)
        return step

    def slowest_rate(self, problem: Problem) -> float | None:
        """None: the rate falls with the step size, so a slow run has not stalled."""
        return None

    def known_sum(self, problem: Problem, server: Vectors) -> Array | None:
        return self.method.known_sum(problem, server)

    def start(self, problem: Problem, x0: Array) -> Vectors:
        return self.method.start(problem, x0)

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        vectors: Vectors = self.at(exchange.round).round(server, exchange)
        return vectors

    def parameters(self) -> dict[str, Any]:
        return self.method.parameters() | {"decay": self.decay}

    def doubt(self, problem: Problem, x: Array, is_claimed: bool = True) -> str | None:
        return self.method.doubt(problem, x, is_claimed)

    def better_than(self, f: float, server: Vectors) -> Array | None:
        return self.method.better_than(f, server)

    def controls(self, server: Vectors, memory: Vectors) -> Array | None:
        return self.method.controls(server, memory)

    def audited(self, server: Vectors, memory: Vectors) -> Array | None:
        return self.method.audited(server, memory)

    def excess(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        return self.method.excess(problem, x, server, memory)
