"""What the federated estimators share: a client for each group, a method that is chosen, a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.problems.federated import Problem
from proxskip.problems.split import split
from proxskip.results.result import RunResult
from proxskip.running.run import run
from proxskip.sklearn.choice import chosen
from proxskip.sklearn.conventions import Engines, Networks, Solver, SparseEstimator, seed_of, warn_unless
from proxskip.types import Array


class FederatedEstimator(SparseEstimator):
    """An estimator whose rows stay with clients, and which is fitted by ``run``."""

    solver: Solver
    tol: float
    max_iter: int
    engine: Engines
    network: Networks
    cohort: Any = None

    def _solve(self, model: Any, groups: Any, start: Array | None = None) -> Array:
        """The minimizer of the model's rows, one client for each group."""
        owners = np.zeros(model.N, dtype=int) if groups is None else np.asarray(groups)
        if owners.shape != (model.N,):
            raise ValueError(f"groups has shape {owners.shape}; give one group for each of {model.N} rows.")
        self.groups_, clients = np.unique(owners, return_inverse=True)
        problem: Problem = split(model, by="group", groups=clients)
        solver, why = self.solver, "as asked for"
        if isinstance(solver, str) and solver == "auto":
            solver, why = chosen(problem, self.tol, self.network, self.cohort)
        # tol is relative to the gradient at zero, or absolute where that vanishes
        slope = float(np.linalg.norm(problem.gradient(np.zeros(problem.d))))
        result: RunResult = run(
            solver, problem, tol=self.tol * (slope or 1.0), rounds=self.max_iter, seed=seed_of(self),
            cohort=self.cohort, engine=self.engine, x0=start, progress=False,
        )  # fmt: skip
        result.summary["solver"] = why
        self.result_, self._problem = result, problem
        # scikit-learn asks for at least one iteration, also where a warm start was at the solution
        self.n_iter_ = max(1, result.rounds)
        warn_unless(result.success, result.message, "Raise max_iter or tol, or scale the features.")
        return result.x
