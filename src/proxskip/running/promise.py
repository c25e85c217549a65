"""What a theorem promises for one run: how fast its Lyapunov function falls, and how low."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxskip.core.method import Claims, Lyapunov
from proxskip.participation import Given
from proxskip.running.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Promise:
    """The Lyapunov function is at most ``(1 - zeta)^t`` of its first value, plus ``noise``, in expectation.

    Args:
        lyapunov: of (x, server, memory) at a communication.
        zeta: the contraction; None if nothing is promised.
        per_round: t counts rounds, and not iterations.
        noise: what minibatches leave.
    """

    lyapunov: Lyapunov
    zeta: float | None = None
    per_round: bool = False
    noise: float = 0.0

    @staticmethod
    def of(spec: RunSpec, claims: Claims) -> Promise:
        """Of a run for whose method and problem the theorem has these claims."""
        if claims.zeta is None or spec.unsafe or not draws_cohorts(spec):
            return Promise(claims.lyapunov)
        noise = 0.0
        if spec.problem.batch is not None and claims.ball:
            noise = float(np.max(spec.method.gamma)) ** 2 * spec.problem.es_C / claims.zeta
        return Promise(claims.lyapunov, claims.zeta, claims.per_round, noise)

    def bound(self, first: float | None, rounds: float, iterations: float) -> float | None:
        """The promised bound where the Lyapunov function began at ``first``, if anything is promised."""
        if self.zeta is None or first is None:
            return None
        done = rounds if self.per_round else iterations
        return float((1.0 - self.zeta) ** done * first + self.noise)


def draws_cohorts(spec: RunSpec) -> bool:
    """Whether the cohorts are random as theorems need them: not those of a list, nor what a network leaves."""
    return not isinstance(spec.asked, Given) and (spec.network is None or spec.network.reliable)
