"""FISTA with adaptive restart: acceleration where the strong convexity is not known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxskip.methods import steps
from proxskip.problems.federated import Problem
from proxskip.seam import Client, Exchange
from proxskip.types import Array, Vectors


@dataclass(frozen=True, slots=True)
class Fista:
    """Accelerated proximal gradient with growing momentum, which starts anew when it leads uphill.

    A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm for linear inverse problems, 2009; the
    restart is the gradient scheme of B. O'Donoghue, E. Candes, Adaptive restart for accelerated gradient schemes, 2015.

        x+ = prox_{gamma psi}(y - gamma grad f(y))
        t+ = (1 + sqrt(1 + 4 t^2))/2,     y+ = x+ + ((t - 1)/t+) (x+ - x)
        t+ = 1, y+ = x+     where  <y - x+, x+ - x> > 0
    """

    gamma: float

    name: ClassVar[str] = "fista"
    handles: ClassVar[frozenset[str]] = frozenset({"clients", "psi"})
    remembers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def theory(cls, problem: Problem) -> Fista:
        """gamma = 1/L with the smoothness of the average."""
        return cls(gamma=1.0 / problem.L_global)

    def check(self, problem: Problem, insist: bool = False) -> list[str]:
        """gamma <= 1/L; from 4/(3 L) on momentum near one diverges."""
        return steps.check_steps("fista", self.gamma, problem, insist, L=problem.L_global)

    def start(self, problem: Problem, x0: Array) -> Vectors:
        """x, the point y ahead of it, and the momentum's t."""
        return {"x": x0, "y": x0, "t": np.ones(1)}

    def local(self, client: Client, memory: Vectors, K: int, y: Array) -> tuple[tuple[Array, ...], Vectors]:
        """One plain step from y."""
        return (client.descend(y, 0.0, self.gamma, K),), {}

    def round(self, server: Vectors, exchange: Exchange) -> Vectors:
        """A step of the mean from y, then the look ahead or the restart."""
        y, old, t = server["y"], server["x"], float(server["t"][0])
        (x,) = exchange(self.local, y, K=1)
        if exchange.problem.psi is not None:
            x = exchange.prox(x, self.gamma)
        step = x - old
        if (y - x).dot(step) > 0:
            return {"x": x, "y": x, "t": np.array([1.0])}
        ahead = (1.0 + math.sqrt(1.0 + 4.0 * t * t)) / 2.0
        return {"x": x, "y": x + ((t - 1.0) / ahead) * step, "t": np.array([ahead])}

    def zeta(self, problem: Problem) -> float | None:
        """None: linear convergence is observed, the theorem is f - f* = O(1/k^2)."""
        return None

    def lyapunov(self, problem: Problem, x: Array, server: Vectors, memory: Vectors) -> float | None:
        """Not of the paper's form."""
        return None
