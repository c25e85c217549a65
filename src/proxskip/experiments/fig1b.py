"""Figure 1b: every method with its theoretical step size, with the figure's constants and with the proofs' own."""

from __future__ import annotations

from typing import Any

from proxskip.experiments import claims, claims_fig1
from proxskip.experiments.curves_from_runs import panel, series
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.report.figures import Claim, Experiment, Panel, Table
from proxskip.report.method_styles import title
from proxskip.tuning import local_steps_flag

METHODS = ("local-gd", "scaffold", "fedlin", "s-local-gd", "gd", "accelerated", "scaffnew")
HEADINGS = {"figure": "the figure's constants, L of the average", "theorem": "the theorems' constants, L = max L_i"}
FAST_METHODS = ("scaffnew", "accelerated")
"""Methods that stop at the target; the others run for all rounds, because the figure is about their slow progress."""


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Run both panels."""
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
    return claims.with_findings(experiment, claims_fig1.fig1b(experiment, workspace.asserted))


def _panel(workspace: Workspace, name: str, upto: float) -> tuple[Panel, Table]:
    runs = workspace.runs([_job(workspace, name, method) for method in METHODS], upto)
    heading = HEADINGS[name]
    drawn = panel(name, heading, [series(title(m), [r]) for m, r in zip(METHODS, runs, strict=True)])
    return drawn, _steps(name, heading, runs)


def _job(workspace: Workspace, name: str, method: str) -> RunRequest:
    """The request for one method: the K or p that it takes, and the name of its step size."""
    asked = workspace.preset[name]
    flag = local_steps_flag(method)
    flags: dict[str, Any] = {flag: asked[flag]} if flag is not None and flag in asked else {}
    flags["gamma"] = None if asked["gamma"] == "theory" else asked["gamma"]
    stop = {"rounds": asked["rounds"]} | ({"target": asked["target"]} if method in FAST_METHODS else {})
    return RunRequest(title(method), method, flags, _flags(workspace, name), stop)


def _flags(workspace: Workspace, name: str) -> dict[str, Any]:
    return {k: workspace.preset[k] for k in ("l2", "l2_relative")} | {"L": workspace.preset[name]["L"]}


def _steps(name: str, heading: str, runs: list[CachedRun]) -> Table:
    rows: list[list[Any]] = []
    for r in runs:
        s = r.summary
        steps = s["K"] if s["K"] is not None else round(1 / s["p"], 1) if s["p"] else 1
        rows.append([title(s["method"]), s["gamma"], s["gamma"] * s["L"], steps, s["rounds"], s["exchanges"], s["gap"]])
    columns = ["method", "gamma", "gamma L", "local steps per round", "rounds run", "exchanges", "f - f* at the end"]
    return Table(f"{name}-steps", f"Step sizes: {heading}", columns, rows)
