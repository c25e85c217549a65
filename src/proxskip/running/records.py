"""The records of a run: what is measured at a communicated x, and what that has shown so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from proxskip.participation import Everyone
from proxskip.problems.federated import Problem
from proxskip.prox import conjugate_prox
from proxskip.results.trace import Trace
from proxskip.running.audit import Audit
from proxskip.running.ledger import Ledger
from proxskip.running.promise import Promise
from proxskip.running.run_spec import RunSpec
from proxskip.running.simulated_time import SIM_COLUMNS
from proxskip.running.stop import Unproved
from proxskip.types import AnyArray, Array, InputError, Vectors

COLUMNS = (
    "round",
    *Ledger.__dataclass_fields__,
    *("passes", "f", "gap", "grad_norm", "sum_h", "lyapunov", "lyapunov_bound"),
)
"""The columns of every trace."""


def columns_of(problem: Problem, timed: bool = False) -> tuple[str, ...]:
    """The columns of a run's trace, with simulated times if ``timed``; the clients' metrics come last."""
    columns = COLUMNS + (SIM_COLUMNS if timed else ())
    taken = [name for name in problem.metrics if name in columns]
    if taken:
        raise InputError(f"the metric {taken[0]} has the name of a trace column; rename it.")
    return columns + problem.metrics


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Server, clients and counts after one and the same round, in numpy arrays of this process."""

    round: int
    server: Vectors
    memory: Vectors
    counts: dict[str, Any]
    """As ``Meter.state`` gives it."""
    clock: dict[str, Any] | None


class Best(NamedTuple):
    """The record with the smallest f."""

    f: float
    round: int
    x: Array


class Records:
    """The trace of a run, and what its records have shown.

    Args:
        problem: computes the measurements.
        unit: the unit roundoff of the clients' memory.
    """

    def __init__(self, spec: RunSpec, problem: Problem, promise: Promise, unit: float) -> None:
        self.spec = spec
        self.problem = problem
        self.promise = promise
        self.unit = unit
        self.trace = Trace(columns_of(problem, spec.network is not None))
        self.row: dict[str, float] = {}
        """The last record."""
        self.y: Array | None = None
        """The dual vector of psi(D x) at the last record."""
        self.first_lyapunov: float | None = None
        self.best: Best | None = None
        """Kept where L is unknown: there a step that is too large shows only later."""
        self.missed: Unproved | None = None
        """The tolerance that rounding left undecided at the last record."""
        self.undecided: set[int] = set()
        """The rounds of all such records."""
        self.audit = Audit()
        self.corrupted: str | None = None
        """Why the answer would be wrong."""
        self.repaired: str | None = None
        """The first fault that the method repaired."""

    @property
    def round(self) -> int:
        """The round of the last record; -1 before the first."""
        return int(self.row.get("round", -1))

    def add(self, seen: Snapshot, x: Array, costs: Mapping[str, float]) -> dict[str, float]:
        """Measure x, which came of this snapshot, and append a record; returns what is known of it.

        Args:
            costs: the counts so far, by column.
        """
        excess = self.spec.method.excess(self.problem, x, seen.server, seen.memory)
        row = {**costs, **measured(self.problem, x, seen.server)}
        # with psi the sum tends to minus a subgradient of psi, and one client has no sum
        if self.problem.psi is None and excess is not None:
            row["sum_h"] = excess
        lyapunov = self.promise.lyapunov(x, seen.server, seen.memory)
        row["lyapunov"] = np.nan if lyapunov is None else lyapunov
        # a resumed run keeps the value of its own start
        if self.first_lyapunov is None and seen.round == 0 and np.isfinite(row["lyapunov"]):
            self.first_lyapunov = row["lyapunov"]
        bound = self.promise.bound(self.first_lyapunov, seen.round, row["iterations"])
        if bound is not None:
            row["lyapunov_bound"] = bound
        self.trace.append(row)
        self.row = self.trace.last()
        self._keep_best(x)
        self._look_at_sum(seen, x, excess)
        self.prove(x, seen.server)
        return row

    def prove(self, x: Array, server: Vectors) -> None:
        """Compute whether the tolerances that seem to hold at the last record hold despite rounding."""
        self.y = None if self.problem.D is None else server["y"]
        self.missed = None
        if self.spec.stop.reached(self.row):
            with np.errstate(all="ignore"):
                self.missed = self.spec.stop.unproved(self.problem, x, self.y)
        if self.missed is not None:
            self.undecided.add(self.round)

    def _keep_best(self, x: Array) -> None:
        # A resumed run makes no record where the run before it ended, so such a record is not compared.
        if self.problem.knows_L or not self.spec.is_recorded(self.round):
            return
        lowest = np.inf if self.best is None else self.best.f
        if self.row["f"] < lowest:
            self.best = Best(self.row["f"], self.round, x.copy())

    def _look_at_sum(self, seen: Snapshot, x: Array, excess: float | None) -> None:
        """Audit: a wrong sum of h ends the run, or is noted if the method repairs it."""
        method = self.spec.method
        most = self.audit.limit(method, seen.round, x, method.audited(seen.server, seen.memory), self.unit)
        if excess is None or not excess > most:
            return
        if "h" not in method.remembers:
            what = "sum_i w_i v_i - v"
        elif self.problem.psi is None:
            what = "sum_i w_i h_i"
        else:
            what = "the sum of the h_i plus a subgradient of psi"
        fault = (
            f"{what} is {excess:.3g} after round {seen.round}, but rounding explains at most {most:.3g}: an update was "
            "lost, applied twice or changed"
        )
        if not method.about.heals or not isinstance(self.spec.asked, Everyone):
            self.corrupted = f"{fault}, so the answer would be wrong."
        elif self.repaired is None:
            self.repaired = f"{fault}; the method repairs that."

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The arrays and the plain data that a resumed run needs."""
        arrays = self.trace.to_arrays("trace.")
        meta: dict[str, Any] = {"psi0": self.first_lyapunov, "scale": self.audit.scale, "best": None}
        meta["unproved"] = sorted(self.undecided)
        if self.best is not None:
            meta["best"] = [self.best.f, self.best.round]
            arrays["best"] = self.best.x
        return arrays, meta

    def restore(self, arrays: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> None:
        """Restore ``state``, but for a record that was only made because the run ended there.

        An uninterrupted run has no such record.
        """
        trace = Trace.from_arrays(arrays, "trace.")
        if len(trace) and not self.spec.is_recorded(int(trace.last()["round"])):
            trace = Trace.from_arrays({name: column[:-1] for name, column in trace.to_arrays().items()})
        self.trace = trace
        self.row = trace.last() if len(trace) else {}
        self.first_lyapunov = meta["psi0"]
        self.audit.scale = float(meta["scale"])
        if meta["best"] is not None:
            f, round = meta["best"]
            self.best = Best(float(f), int(round), arrays["best"])
        self.undecided = {round for round in meta["unproved"] if self.spec.is_recorded(round)}


# -- measurements ------------------------------------------------------------------------------------------------------
def residual(problem: Problem, x: Array, server: Vectors) -> float:
    """How far x is from optimal: |grad f|; with psi the prox-gradient residual, with D that of (x, y)."""
    if problem.D is None:
        return problem.residual(x, 1.0 / problem.L_average if problem.knows_L else 1.0)
    assert problem.psi is not None
    y = server["y"]
    primal = problem.gradient(x) + problem.D.T @ y
    dual = y - conjugate_prox(problem.psi, y + problem.D @ x, 1.0)
    return float(np.linalg.norm(primal) + np.linalg.norm(dual))


def measured(problem: Problem, x: Array, server: Vectors | None = None) -> dict[str, float]:
    """f, gap, gradient norm and the clients' metrics at x; without the server's y no norm for psi(D x)."""
    row = {"f": problem.value(x)}
    if problem.solution is not None:
        row["gap"] = row["f"] - problem.solution.f
    if problem.D is None or server is not None:
        row["grad_norm"] = residual(problem, x, server or {})
    return row | problem.measured(x)
