"""Figure 1a: every method tuned with the same budget on the same grid, and the bias of LocalGD by step size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from proxskip.experiments import claims, claims_fig1
from proxskip.experiments.curves_from_runs import panel, series
from proxskip.experiments.successive_halving import grid_table, tune, winners_table
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.report.figures import Claim, Experiment, Panel, Series
from proxskip.report.method_styles import title
from proxskip.tune import Candidate, grid, local_steps_flag

METHODS = ("local-gd", "scaffold", "fedlin", "s-local-gd", "scaffnew", "gd", "accelerated")
NOT_SHOWN = ("title", "shows", "must_show", "notes", "share", "l2", "l2_relative", "L")
"""Entries of the preset that are no parameters of the experiment, or are shown otherwise."""


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Tune, run the winners, and run LocalGD with several step sizes to show its bias."""
    asked, flags = workspace.preset, problem_flags(workspace)
    problem = workspace.problem(**flags)
    tried: dict[str, list[Candidate]] = {}
    left: dict[str, list[Candidate]] = {}
    for k, name in enumerate(METHODS):
        more = {"q": asked["q"]} if name == "s-local-gd" else {}
        tried[name] = grid(name, problem.L_global, asked["powers"], asked["steps"], **more)
        left[name] = tune(workspace, problem, name, tried[name], asked["rungs"], 0.5 * (k + 1) / len(METHODS))
    # the finalists run to the end: the best after few rounds need not be the first at eps
    finals = [(name, c) for name in METHODS for c in left[name]]
    runs = workspace.runs([_job(workspace, name, c) for name, c in finals], 0.85)
    pairs = [(m, r, c) for r, (m, c) in zip(runs, finals, strict=True)]
    best = partial(_order, eps=asked["eps"])
    won = {name: min(((r, c) for m, r, c in pairs if m == name), key=best) for name in METHODS}
    drawn = [series(title(m), [r], gamma_L=c.times, local_steps=c.steps) for m, (r, c) in won.items()]
    tables = [
        winners_table("winners", tried, won, asked["eps"]),
        grid_table("grid", tried, {m: c for m, (_, c) in won.items()}),
    ]
    parameters = {"lambda": problem.l2, "L (global)": problem.L_global}
    parameters |= {k: v for k, v in asked.items() if k not in NOT_SHOWN}
    panels = [
        panel("tuned", "each method with its best parameters of the grid", drawn),
        _tradeoff(workspace, flags, problem.L_global),
    ]
    experiment = workspace.experiment("fig1a", parameters, panels, tables)
    experiment = replace(experiment, notes=[*experiment.notes, *_seen(drawn, problem.L_max, asked)])
    return claims.with_findings(experiment, claims_fig1.fig1a(experiment, workspace.asserted))


def _seen(drawn: Sequence[Series], L_max: float, asked: Mapping[str, Any]) -> list[str]:
    """Remarks on these curves that no claim makes."""
    notes, eps = [], asked["eps"]
    # at an end, the best step size may lie outside the grid
    ends = {2.0 ** min(asked["powers"]), 2.0 ** max(asked["powers"])}
    if edge := [s.label for s in drawn if s.about["gamma_L"] in ends]:
        notes.append(f"Best at an end of the grid, and possibly better beyond it: {', '.join(edge)}.")
    beyond = [s.label for s in drawn if local_steps_flag(s.method) and s.about["gamma"] > 1 / L_max]
    if beyond:
        notes.append(f"Tuned step sizes above 1/max_i L_i, which no theorem covers: {', '.join(beyond)}.")
    for s in drawn:
        back = claims.relapses(s, eps)
        if back is not None and back > 0.05:
            notes.append(
                f"{s.label} does not stay below {eps:g}: after its first record below, {back:.0%} of the records are "
                f"above, and it ends at {claims.number(s.y[-1])}. This step size is at the edge of stability."
            )
    return notes


def problem_flags(workspace: Workspace) -> dict[str, Any]:
    """The flags of the problem, from the preset."""
    return {k: workspace.preset[k] for k in ("l2", "l2_relative", "L")}


def _order(final: tuple[CachedRun, Candidate], eps: float) -> tuple[float, float]:
    """Fewest rounds to eps; if no run gets there, the smallest f - f* at the end."""
    run, _ = final
    return (run.first(eps) or math.inf, run.summary["gap"] or math.inf)


def _job(workspace: Workspace, name: str, winner: Candidate) -> RunRequest:
    stop = {"rounds": workspace.preset["local_gd_rounds" if name == "local-gd" else "rounds"]}
    if name != "local-gd" and local_steps_flag(name):
        stop["target"] = workspace.preset["target"]
    return RunRequest(title(name), name, winner.flags, problem_flags(workspace), stop)


def _tradeoff(workspace: Workspace, flags: dict[str, Any], L: float) -> Panel:
    """LocalGD with a fixed number of local steps: the larger the step size, the sooner and the higher it stalls."""
    asked = workspace.preset
    stop = {"rounds": asked["tradeoff_rounds"]}
    jobs = []
    for k in asked["tradeoff_powers"]:
        given = {"gamma": 2.0**k / L, "K": asked["tradeoff_K"]}
        label = f"gamma L = 1/{2**-k}" if k < 0 else f"gamma L = {2**k}"
        jobs.append(RunRequest(label, "local-gd", given, flags, stop))
    runs = workspace.runs(jobs, 1.0)
    drawn = [series(r.job.label, [r], gamma_L=2.0**k) for r, k in zip(runs, asked["tradeoff_powers"], strict=True)]
    return panel("tradeoff", f"LocalGD, K = {asked['tradeoff_K']}: larger steps stall higher", drawn)
