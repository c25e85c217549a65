"""Figure 1c: Scaffnew with different p at the step size 1/L."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from proxskip.experiments import claims, claims_fig1
from proxskip.experiments.claims import first_below
from proxskip.experiments.curves_from_runs import panel, series, with_seeds
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table

COLUMNS = ["1/p", "rounds", "local steps per client", "rounds run", "f - f* at the end", "seeds"]
TWICE = 2.02
"""The last p runs for this many times the rounds of the best of the others."""


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """One curve per p, each up to the same accuracy or its own limit of rounds."""
    asked = workspace.preset
    flags = {k: asked[k] for k in ("l2", "l2_relative", "L")}
    jobs = []
    for k, rounds in zip(asked["inverse_p"], asked["rounds"], strict=True):
        stop = {"rounds": rounds, "target": asked["target"]}
        jobs.append(RunRequest(f"1/p = {k}", "scaffnew", {"gamma": asked["gamma"], "p": 1 / k}, flags, stop))
    runs = with_seeds(workspace, jobs[:-1], 0.5)
    runs += with_seeds(workspace, [_long_enough(jobs[-1], runs, asked["eps"])], 1.0)
    drawn = [series(r[0].job.label, r, inverse_p=k) for r, k in zip(runs, asked["inverse_p"], strict=True)]
    problem = workspace.problem(**flags)
    parameters = {"lambda": problem.l2, "L (global)": problem.L_global, "gamma": 1 / problem.L_global}
    parameters |= {k: asked[k] for k in ("inverse_p", "rounds", "target", "eps", "seeds", "seeds_of_long_runs")}
    heading, rows = f"Cost of reaching {asked['eps']:g} for each p", [_row(s, asked["eps"]) for s in drawn]
    panels = [panel("p", "gamma = 1/L", drawn), *_needed(drawn, asked["eps"])]
    experiment = workspace.experiment("fig1c", parameters, panels, [Table("needed", heading, COLUMNS, rows)])
    return claims.with_findings(experiment, claims_fig1.fig1c(experiment, workspace.asserted))


def _long_enough(job: RunRequest, others: Sequence[Sequence[CachedRun]], eps: float) -> RunRequest:
    """The request with a little more than twice the rounds of the best of the others, which decides the claim."""
    needed = [first_below(series("", found), eps) for found in others]
    best = min((r for r in needed if r is not None), default=None)
    return job if best is None else replace(job, stop={**job.stop, "rounds": math.ceil(TWICE * best)})


def _row(s: Series, eps: float) -> list[str | float | int | None]:
    rounds, steps = (claims.first_below(s, eps, axis) for axis in ("rounds", "iterations"))
    return [s.about["inverse_p"], rounds, steps, s.x["rounds"][-1], s.y[-1], s.about.get("seeds", 1)]


def _needed(drawn: list[Series], eps: float) -> list[Panel]:
    """Rounds to eps against 1/p if at least two runs reached eps; for the other runs, the rounds they had."""
    found = [(float(s.about["inverse_p"]), claims.first_below(s, eps), claims.at_least(s, eps)) for s in drawn]
    reached = [(k, r) for k, r, _ in found if r is not None]
    short = [(k, low) for k, r, low in found if r is None and math.isfinite(low)]
    if len(reached) < 2:
        return []
    points = [_points("Scaffnew", reached)]
    points += [_points("not reached within this many rounds", short)] if short else []
    axis = {"inverse_p": "1/p, the mean number of local steps per round"}
    return [Panel("needed", f"rounds to {eps:g}", points, "inverse_p", axis, "communication rounds", "log", "log")]


def _points(label: str, found: list[tuple[float, float]]) -> Series:
    return Series(label, {"inverse_p": [k for k, _ in found]}, [r for _, r in found], "scaffnew", kind="points")
