"""Stopping rules of ``run``, ``minimize`` and federations: limits, and tolerances that must all hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from proxskip import theory
from proxskip.problems import accuracy, prox_check
from proxskip.problems.federated import Problem
from proxskip.results.result import Status
from proxskip.types import Array, InputError

RUN_RULES = ("rounds", "iterations", "seconds", "tol", "target")
"""The rules of a run, as named in run folders."""
MAX_ROUNDS = 1_000_000
"""The limit for runs that only have a tolerance."""
MAX_GRADIENTS = 10_000_000
"""The same for ``minimize``."""


class Verdict(NamedTuple):
    """Why a run ends."""

    status: Status
    message: str


class Spent(Protocol):
    """What limits are compared with: a run's ledger, or a minimization under way."""

    @property
    def iterations(self) -> int: ...
    @property
    def local_steps(self) -> int: ...
    @property
    def prox_evals(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Unproved(NamedTuple):
    """A measure that seems to meet its tolerance, but rounding or the user's prox leaves it undecided."""

    sentence: str
    hopeless: bool
    """Whether rounding or the error of the prox alone exceeds the tolerance."""
    status: Status = Status.PRECISION
    """How the run ends if nothing changes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """When to stop: at the first limit reached, or once all tolerances hold.

    Args:
        rounds, iterations, seconds: limits.
        tol, target: tolerances for the gradient norm (or the certificate of ``minimize``), and for f - f*.
        gradients, proxes: limits of ``minimize`` alone; a gradient is a local step of its only client.
    """

    rounds: int | None = None
    iterations: int | None = None
    seconds: float | None = None
    tol: float | None = None
    target: float | None = None
    gradients: int | None = None
    proxes: int | None = None

    @classmethod
    def for_minimize(
        cls, tol: float, max_iter: int | None, max_grad: int | None, max_prox: int | None, seconds: float | None
    ) -> Stop:
        """The rules of ``minimize``, checked under its argument names."""
        for name, value in (("max_iter", max_iter), ("max_grad", max_grad), ("max_prox", max_prox)):
            if value is not None:
                theory.whole(name, value)
        if seconds is not None:
            theory.positive("seconds", seconds)
        return cls(
            iterations=max_iter,
            seconds=seconds,
            tol=theory.positive("tol", tol),
            gradients=max_grad or MAX_GRADIENTS,
            proxes=None if max_prox is None else max_prox - 1,  # one is reserved for the certificate
        )

    @property
    def rules(self) -> dict[str, Any]:
        """The rules of a run by name, None for missing ones."""
        return {name: getattr(self, name) for name in RUN_RULES}

    def check(self, problem: Problem) -> None:
        """Refuse a run without a rule, and rules that are not positive."""
        if self.gradients is not None or self.proxes is not None:
            raise InputError("gradients= and proxes= are only for minimize; use rounds= or iterations=.")
        rules = {k: v for k, v in self.rules.items() if v is not None}
        if not rules:
            names = [f"{name}=" for name in RUN_RULES]
            raise InputError(f"no stopping rule: pass {', '.join(names[:-1])} or {names[-1]}.")
        for name, v in rules.items():
            counted = name in ("rounds", "iterations")
            kinds: Any = (int, np.integer) if counted else (int, float, np.number)
            if isinstance(v, bool) or not isinstance(v, kinds):
                raise InputError(f"{name} = {v!r} must be a {'whole ' if counted else ''}number.")
            if not 0 < v < np.inf and not (name == "rounds" and v == 0):
                raise InputError(f"{name} = {v} must be positive and finite.")
        if self.target is not None and problem.solution is None:
            raise InputError("target= needs the solution, which is unknown here; use tol= instead.")

    @property
    def has_tolerance(self) -> bool:
        """Whether there is a tolerance."""
        return self.tol is not None or self.target is not None

    def reached(self, row: dict[str, float]) -> bool:
        """Whether all tolerances hold at this record."""
        good = self.tol is None or row["grad_norm"] <= self.tol
        return self.has_tolerance and good and (self.target is None or row["gap"] <= self.target)

    def unproved(self, problem: Problem, x: Array, y: Array | None) -> Unproved | None:
        """The first tolerance that may fail at x because of rounding or the user's prox; None if all hold."""
        if self.tol is not None:
            probed = prox_check.of_operator(problem.psi)
            residual = accuracy.residual(problem, x, y, probed)
            if not residual.most <= self.tol:
                return _unproved("the gradient norm", residual, self.tol)
            if probed is not None:
                room = self.tol - residual.most
                doubt = probed.doubt(room, self.tol)
                # a smaller residual leaves more room for the error of the prox
                falls_short = room < probed.spoils < self.tol
                if doubt is not None:
                    return Unproved(doubt, hopeless=not falls_short, status=Status.INEXACT)
        if self.target is not None:
            gap = accuracy.gap(problem, x)
            if not gap.most <= self.target:
                return _unproved("f - f*", gap, self.target)
        return None

    def limit(self, round: int, counts: Spent) -> str | None:
        """The limit that is reached, such as ``400 rounds``, or None."""
        endless = self.iterations is None and self.seconds is None and self.gradients is None
        rounds = MAX_ROUNDS if self.rounds is None and endless else self.rounds
        if rounds is not None and round >= rounds:
            return f"{round} rounds"
        if self.iterations is not None and counts.iterations >= self.iterations:
            return f"{counts.iterations} iterations"
        if self.gradients is not None and counts.local_steps >= self.gradients:
            return f"{counts.local_steps} gradients"
        if self.proxes is not None and counts.prox_evals >= self.proxes:
            # one more was kept back for the certificate
            return f"{counts.prox_evals + 1} proxes"
        if self.seconds is not None and counts.seconds >= self.seconds:
            return f"{counts.seconds:.3g} seconds"
        return None

    def converged(self, round: int, doubt: str | None = None) -> Verdict:
        """The verdict on a run whose tolerances hold, unless that is in doubt."""
        reached = f"reached the tolerance after {round} rounds"
        if doubt is None:
            return Verdict(Status.CONVERGED, f"{reached}.")
        return Verdict(Status.INEXACT, f"{reached}, which proves nothing: {doubt}")

    def exhausted(self, round: int, counts: Spent) -> Verdict | None:
        """The verdict on a run that has reached a limit; None if it has not."""
        if self.rounds is not None and round > self.rounds:  # resumed with a smaller limit
            done = f"the run already has {round} rounds, more than the limit of {self.rounds}"
            return Verdict(Status.LIMIT, f"nothing to do: {done}.")
        limit = self.limit(round, counts)
        if limit is None:
            return None
        missed = " without reaching the tolerance" if self.has_tolerance else ""
        return Verdict(Status.LIMIT, f"reached the limit of {limit}{missed}.")


def _unproved(name: str, measured: accuracy.Bounded, tolerance: float) -> Unproved:
    sentence = (
        f"the tolerance {tolerance:.3g} is below what rounding can confirm: {name} is {measured.value:.3g} with a "
        f"rounding error of up to {measured.error:.2g},"
    )
    return Unproved(sentence, hopeless=not measured.error < tolerance)
