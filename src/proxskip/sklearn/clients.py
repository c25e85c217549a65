"""What the federated estimators share: a client for each group, a method that is chosen, a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxskip.networks import Network
from proxskip.problems.federated import Problem
from proxskip.problems.split import split
from proxskip.results.result import RunResult, Status
from proxskip.running.run import run
from proxskip.sklearn.conventions import Engines, Networks, Solver, SparseEstimator, seed_of, warn_unless
from proxskip.types import Array

NEWTON_ROUNDS = 10
"""About as many rounds as Newton's method needs from zero, whatever the accuracy."""
FLOPS = 1e9
"""Operations a second that a client is trusted with."""


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
        # no tolerance helps where there is no minimizer
        advice = "" if result.status is Status.INEXACT else " Raise max_iter or tol, or scale the features."
        warn_unless(result.success, result.message + advice)
        return result.x


def chosen(problem: Problem, tol: float, network: Networks, cohort: Any) -> tuple[str, str]:
    """The name of a method, and a sentence that says why.

    Newton's method needs few rounds, in which each client computes a Hessian and sends the half of it. Scaffnew needs
    about sqrt(L/mu) log(1/tol) rounds, with sqrt(L/mu) gradients and one vector each (its theorem).

    Args:
        problem: with its constants.
        tol: the gradient to reach, relative to that at the start.
        network: that the time is for, or the name of one.
        cohort: who takes part in a round; None for everyone.
    """
    if cohort is not None:
        return "scaffnew", "scaffnew, since newton needs every client in every round"
    if not problem.knows_L or problem.kappa is None:
        return "newton", "newton, since no theorem gives scaffnew its parameters without L and mu"
    if not isinstance(network, Network):
        network = Network.named(network)
    d, rows, root = problem.d, int(problem.rows_each.max()), math.sqrt(problem.kappa)
    rounds = max(1, math.ceil(root * math.log(1.0 / tol)))
    triangle = 8.0 * (d * (d + 3) / 2 + 1)
    newton = NEWTON_ROUNDS * (network.exchange(8.0 * d, triangle) + (rows * d**2 + d**3) / FLOPS)
    scaffnew = rounds * (network.exchange(8.0 * d, 8.0 * d) + root * 4.0 * rows * d / FLOPS)
    told = {
        "newton": f"newton takes about {NEWTON_ROUNDS} rounds and {newton:.2g} s",
        "scaffnew": f"scaffnew takes about {rounds} rounds and {scaffnew:.2g} s",
    }
    names = sorted(told, key={"newton": newton, "scaffnew": scaffnew}.__getitem__)
    return names[0], f"{names[0]}: over this network {told[names[0]]}, {told[names[1]]}"
