"""Clients that sleep: GradSkip against Scaffnew where the L_i differ, in as many rounds with fewer gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.curves_from_runs import column
from proxskip.experiments.workspace import Workspace
from proxskip.methods import GradSkip, Scaffnew
from proxskip.problems.federated import Problem
from proxskip.problems.glm import Logistic
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table
from proxskip.report.method_styles import title
from proxskip.report.plots import Y_AXES
from proxskip.running import run as run_method

METHODS: dict[str, Any] = {"scaffnew": Scaffnew, "gradskip": GradSkip}
AXES = {"local-steps": "local gradient steps, all clients", "rounds": "communication rounds"}


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Both methods by their theorems on the scaled problem."""
    q = workspace.preset
    about = {k: q[k] for k in ("spread", "eps", "rounds", "clients", "l2")}
    parameters = [{"method": name, "seed": seed, **about} for name in METHODS for seed in range(q["seeds"])]
    measurements = workspace.cached_values("sleeping", parameters, measure)
    seeds = len(measurements) // len(METHODS)
    curves = {name: measurements[k * seeds : (k + 1) * seeds] for k, name in enumerate(METHODS)}
    drawn = [
        Series(title(name), first["x"], first["gap"], name, about={"status": first["status"]})
        for name, (first, *_) in curves.items()
    ]
    heading = f"{q['clients']} clients whose L_i differ by {q['spread']:g}"
    label, floor = Y_AXES["gap"]
    panel = Panel("sleeping", heading, drawn, "local-steps", AXES, label, y_floor=floor)
    means = {name: [_mean(group, key) for key in ("rounds", "passes")] for name, group in curves.items()}
    rows: list[list[Any]] = [[title(name), *costs] for name, costs in means.items()]
    columns = ["method", "rounds", "full gradients per client"]
    table = Table("sleeping-costs", f"To {q['eps']:g}: {heading}", columns, rows, "Means over the seeds.")
    rounds, gradients = (a / b for a, b in zip(means["gradskip"], means["scaffnew"], strict=True))
    text = f"Where the L_i differ by {q['spread']:g}, GradSkip needs fewer gradients than Scaffnew in as many rounds."
    measured = f"GradSkip needs {gradients:.2f} of the gradients and {rounds:.2f} of the rounds"
    # as many rounds: within a tenth, since both methods draw their local steps
    have_arrived = all(c["status"] == "converged" for c in measurements)
    holds = gradients < 1 and 0.9 <= rounds <= 1.1 if have_arrived else None
    numbers = {"rounds": rounds, "gradients": gradients}
    is_asserted = workspace.data in ("w8a", "digits")
    claim = claims.claim("sleeping-gradients", text, holds, measured, numbers, is_asserted, undecided="too few rounds")
    shown = {k: q[k] for k in ("eps", "spread", "clients", "l2", "seeds")}
    return claims.with_findings(workspace.experiment("sleeping", shown, [panel], [table]), [claim])


def scaled(problem: Problem, spread: float) -> Problem:
    """The rows of client i scaled, so that the L_i fall from the largest to a part ``spread`` of it."""
    factors = np.geomspace(1.0, 1.0 / spread, problem.n)
    parts: list[Any] = list(problem.clients)
    # L of a logistic loss without l2 grows with the square of its rows
    largest = max(f.L0 for f in parts)
    clients = [
        Logistic(f.A * np.sqrt(t * largest / f.L0), f.b, l2=f.l2, classes=(-1.0, 1.0))
        for t, f in zip(factors, parts, strict=True)
    ]
    return Problem(clients, problem.weights)


def measure(workspace: Workspace, q: Mapping[str, Any]) -> dict[str, Any]:
    """One run on the scaled problem as plain data."""
    flags = {k: workspace.preset[k] for k in ("l2", "l2_relative", "split", "weights", "clients")}
    problem = scaled(workspace.problem(**flags), q["spread"])
    result = run_method(
        METHODS[q["method"]].theory(problem), problem, target=q["eps"], rounds=q["rounds"], seed=q["seed"], every=1,
        engine=workspace.engine, threads=workspace.threads,
    )  # fmt: skip
    return {
        "x": {a: [float(v) for v in column(result.trace, a)] for a in ("rounds", "local-steps", "passes")},
        # infinities are not JSON
        "gap": [float(v) if np.isfinite(v) else None for v in result.trace["gap"]],
        "rounds": result.rounds,
        "status": result.status.name.lower(),
        "passes": float(result.summary()["passes"]),
    }


def _mean(curves: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(np.mean([c[name] for c in curves]))
