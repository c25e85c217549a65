"""Figure 1b: every method at its theoretical step size, once with the figure's constants and once with the proofs'."""

from __future__ import annotations

from typing import Any

from proxskip.experiments import claims, claims_fig1
from proxskip.experiments.curves_from_runs import panel, series
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.report.figures import Claim, Experiment, Panel, Table
from proxskip.report.plots import NAMES

METHODS = ("local-gd", "scaffold", "fedlin", "s-local-gd", "gd", "accelerated", "scaffnew")
FAST = ("scaffnew", "accelerated")
"""Methods that are stopped at the target; the others run for all rounds, which is what the figure is about."""


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Both panels."""
    made = {name: _panel(workspace, name, upto) for name, upto in (("figure", 0.55), ("theorem", 1.0))}
    problem = workspace.problem(**_flags(workspace, "figure"))
    worst = workspace.problem(**_flags(workspace, "theorem"))
    parameters = {
        "lambda": problem.l2,
        "L (global)": problem.L_global,
        "max_i L_i": worst.L_max,
        "max_i L_i / L": worst.L_max / problem.L_global,
        **{f"{part}.{k}": v for part in made for k, v in workspace.preset[part].items()},
    }
    panels, tables = zip(*made.values(), strict=True)
    experiment = workspace.experiment("fig1b", parameters, panels, tables)
    return claims.said(experiment, claims_fig1.fig1b(experiment, workspace.asserted))


def _panel(workspace: Workspace, name: str, upto: float) -> tuple[Panel, Table]:
    runs = workspace.runs([_job(workspace, name, method) for method in METHODS], upto)
    title = {"figure": "the figure's constants, L of the average", "theorem": "the theorems' constants, L = max L_i"}
    drawn = panel(name, title[name], [series(NAMES[m], [r]) for m, r in zip(METHODS, runs, strict=True)])
    return drawn, _steps(name, title[name], runs)


def _job(workspace: Workspace, name: str, method: str) -> RunRequest:
    """What a method takes of K and p, and the step size by name."""
    asked = workspace.preset[name]
    takes: dict[str, tuple[str, ...]] = {"gd": (), "accelerated": (), "scaffnew": ("p",), "s-local-gd": ("p",)}
    flags: dict[str, Any] = {k: asked[k] for k in takes.get(method, ("K",)) if k in asked}
    flags["gamma"] = None if asked["gamma"] == "theory" else asked["gamma"]
    stop = {"rounds": asked["rounds"]} | ({"target": asked["target"]} if method in FAST else {})
    return RunRequest(NAMES[method], method, flags, _flags(workspace, name), stop)


def _flags(workspace: Workspace, name: str) -> dict[str, Any]:
    return {
        "l2": workspace.preset["l2"],
        "l2_relative": workspace.preset["l2_relative"],
        "L": workspace.preset[name]["L"],
    }


def _steps(name: str, title: str, runs: list[CachedRun]) -> Table:
    rows: list[list[Any]] = []
    for r in runs:
        s = r.summary
        steps = s["K"] if s["K"] is not None else round(1 / s["p"], 1) if s["p"] else 1
        rows.append([NAMES[s["method"]], s["gamma"], s["gamma"] * s["L"], steps, s["rounds"], s["exchanges"], s["gap"]])
    columns = ["method", "gamma", "gamma L", "local steps a round", "rounds run", "exchanges", "f - f* at the end"]
    return Table(f"{name}-steps", f"Step sizes: {title}", columns, rows)
