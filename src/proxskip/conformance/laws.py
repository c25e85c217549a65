"""Laws, whether they hold, and the laws that can be read off a trajectory alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import random_quadratics
from proxskip.types import Array


@dataclass(frozen=True, slots=True)
class Law:
    """One law: the measured error, the bound on it that rounding explains, and the law in words."""

    name: str
    holds: bool
    measured: float
    bound: float
    says: str


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results for all laws."""

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


# -- what can be seen from outside -------------------------------------------------------------------------------------
def unlike_clients(n: int) -> Problem:
    """Small quadratics with different minimizers, so that client drift shows."""
    return Problem(random_quadratics(n=n, d=5, L=1.0, mu=0.2, seed=3))


def like_clients(n: int) -> Problem:
    """The same quadratic for everybody."""
    return Problem(random_quadratics(n=1, d=5, L=1.0, mu=0.2, seed=4) * n)


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """What somebody who looks on sees: the common points, and the corrections that the local steps applied.

    Args:
        points: the point that all clients had in common at the beginning of each round, and after the last one.
        corrections: for some of the rounds, the h_i that a first local step  y_i = x - lr (grad f_i(x) - h_i)  added
            to minus the gradient, one row per client. They are read off the steps, so that nobody has to name h.
    """

    problem: Problem
    points: Sequence[Array]
    corrections: Sequence[Array] = ()

    def error(self) -> float:
        """The distance of the last point from the solution, relative to its norm; infinite if there is no point."""
        assert self.problem.solution is not None
        x = self.problem.solution.x
        if len(self.points) < 2 or not np.isfinite(self.points[-1]).all():
            return float("inf")
        return float(np.linalg.norm(self.points[-1] - x) / np.linalg.norm(x))


def law(name: str, measured: float, bound: float, says: str) -> Law:
    """A law holds if what was measured is within the bound; nan never is."""
    return Law(name, bool(measured <= bound), float(measured), bound, says)


def sign(run: ObservedRun) -> Law:
    """The first round goes downhill."""
    measured = float("inf")
    if len(run.points) > 1:
        moved, slope = run.points[1] - run.points[0], run.problem.gradient(run.points[0])
        # a run that does not move has the cosine 0, which breaks the law
        measured = float(moved @ slope / (np.linalg.norm(moved) * np.linalg.norm(slope) + 1e-300))
    # a step against the gradient has cosine -1, one along it +1
    return law("sign", measured, -0.1, "the first round goes downhill (cosine of its step with the gradient)")


def total(run: ObservedRun) -> Law:
    """The corrections sum to zero at the beginning of every round."""
    # what rounding explains, also where the points are far away
    scale = 1.0 + max((float(np.abs(v).max()) for v in (*run.corrections, *run.points)), default=0.0)
    worst = max((float(np.abs(h.sum(axis=0)).max()) for h in run.corrections), default=float("inf"))
    return law("sum", worst, 1e-9 * scale, "the corrections of all clients sum to zero in every round")


def controls(run: ObservedRun, tol: float) -> Law:
    """The corrections become the gradients at the solution."""
    assert run.problem.solution is not None
    h, measured = run.problem.solution.h, float("inf")
    if run.corrections:
        measured = float(np.linalg.norm(run.corrections[-1] - h) / np.linalg.norm(h))
    return law("controls", measured, tol, "the corrections become grad f_i(x*); 1 means that there are none")


def fixed_point(run: ObservedRun, tol: float) -> Law:
    """On unlike clients, the solution is where it ends."""
    return law("fixed point", run.error(), tol, "on unlike clients it ends at the solution")


def like(run: ObservedRun, tol: float) -> Law:
    """On like clients too, so that a failure there is not client drift."""
    return law("like clients", run.error(), tol, "on clients with the same function it ends at the solution")
