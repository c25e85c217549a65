"""The family on two axes: what each method costs in rounds and in gradients, tuned for each of the two.

``AXES`` lists the costs, ``CLAIMS`` the claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip import experiments
from proxskip.data.datasets import NotDownloaded
from proxskip.experiments import claims
from proxskip.experiments.workspace import CachedRun, RunRequest, Workspace
from proxskip.problems.federated import Problem
from proxskip.registry import METHODS
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table
from proxskip.report.method_styles import title
from proxskip.types import InputError

AXES: dict[str, tuple[str, str]] = {
    "rounds": ("round", "communication rounds"),
    "gradients": ("passes", "full gradients per client"),
}
"""Costs: the column of the trace, and the label."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate that was run: its costs to eps (None if it did not get there), and whether a theorem covers it."""

    method: str
    label: str
    costs: Mapping[str, float | None]
    proved: bool
    flags: Mapping[str, Any]

    def cost(self, axis: str) -> float:
        """Infinite if it did not get there."""
        cost = self.costs[axis]
        return math.inf if cost is None else cost


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """All methods on all data sets that are on this machine."""
    preset = workspace.preset
    panels: list[Panel] = []
    tables: list[Table] = []
    verdicts: list[Claim] = []
    missing = []
    # the others accompany the first
    names = preset["data"] if workspace.data == preset["data"][0] else [workspace.data]
    for data in names:
        try:
            tried = on_data(workspace, data)
        except NotDownloaded:  # it is named on the page
            missing.append(data)
            continue
        best = {axis: winners(tried, axis) for axis in AXES}
        panels.append(draw(data, best, preset["eps"]))
        tables.append(costs_table(data, best, preset["eps"]))
        verdicts += [claim(data, best) for claim in CLAIMS]
    parameters = {k: preset[k] for k in ("eps", "candidates", "rounds", "iterations", "l2", "l2_relative")}
    experiment = workspace.experiment("family", parameters | {"not on this machine": missing}, panels, tables)
    return claims.with_findings(experiment, verdicts)


# -- what is run -------------------------------------------------------------------------------------------------------
def members() -> list[str]:
    """Every method for clients with a server that reaches the solution."""
    plain = [name for name, kind in METHODS.items() if "clients" in kind.handles and "graph" not in kind.handles]
    # with full gradients scaffnew-vr is scaffnew
    return [name for name in plain if name not in ("proxgd", "local-gd", "scaffnew-vr")]


def grid(name: str, problem: Problem, most: int) -> list[dict[str, Any]]:
    """At most this many settings: the theorem's first, then others in and outside of it."""
    times, steps = (1.0, 2.0, 4.0, 8.0), (10, 30, 100)
    if name == "5gcs":
        own: list[dict[str, Any]] = [{"K": 2}, {"c": 3.0, "K": 5}, {"c": 3.0, "K": 10}, {"K": 1}]
        own += [{"K": 5}, {"c": 2.0, "K": 3}, {"c": 3.0, "K": 20}, {"c": 5.0, "K": 30}, {"K": 3}]
        return [{}, *own][:most]
    if name in ("gd", "accelerated", "fista"):
        return [{}, *({"gamma": t / problem.L_global} for t in (1.2, 1.5, 1.9))][:most]
    if name in ("scaffnew", "gradskip", "tamuna", "locodl"):
        pairs = [(2.0, 30), (4.0, 30), (8.0, 30), (1.0, 30), (2.0, 10), (4.0, 100), (8.0, 10), (1.0, 10), (8.0, 100)]
        own = [{"gamma": t / problem.L_max, "p": 1 / K} for t, K in pairs]
        # the average may be much smoother than its clients
        return [{}, *own, *({"gamma": t / problem.L_global, "p": 1 / 30} for t in (8.0, 4.0))][:most]
    flag = "p" if "p" in METHODS[name].flags() else "K"
    # the steps of these methods have to shrink like 1/(K L), so that gamma K is what is varied
    pairs = [(t / K, K) for K in steps for t in times]
    return [{"gamma": t / problem.L_max, flag: 1 / K if flag == "p" else K} for t, K in pairs][:most]


def on_data(workspace: Workspace, data: str) -> list[Tried]:
    """Every candidate of every method on one data set."""
    preset = workspace.preset
    bases = experiments.preset("data")
    flags = {"data": data, "l2": preset["l2"], "l2_relative": preset["l2_relative"]}
    flags |= bases.get(data, bases["default"])
    problem = workspace.problem(**flags)
    stop = {"rounds": preset["rounds"], "iterations": preset["iterations"], "target": preset["eps"]}
    jobs = [
        RunRequest(f"{title(name)} on {data}", name, candidate, flags, stop)
        for name in members()
        for candidate in grid(name, problem, preset["candidates"])
        if fits(workspace, name, problem, candidate)
    ]
    return [judged(workspace, problem, run, preset["eps"]) for run in workspace.runs(jobs)]


def fits(workspace: Workspace, name: str, problem: Problem, candidate: Mapping[str, Any]) -> bool:
    """Whether the method can run with these flags at all."""
    if METHODS[name].about.equal_weights and float(np.ptp(problem.weights)) > 0:
        return False
    # flags that a method refuses are left out before the runs begin
    try:
        workspace.method(name, problem, **candidate).check(problem, insist=True)
    except InputError:
        return False
    return True


def judged(workspace: Workspace, problem: Problem, run: CachedRun, eps: float) -> Tried:
    """What a run cost, and whether a theorem covers it."""
    method = workspace.method(run.job.method, problem, **run.job.flags)
    costs = {axis: run.first(eps, column) for axis, (column, _) in AXES.items()}
    # a method without a linear rate is inside its theorem at the theorem's own parameters
    proved = not run.summary["warnings"] and (method.zeta(problem) is not None or not run.job.flags)
    setting = ", ".join(f"{k} = {v:.3g}" if isinstance(v, float) else f"{k} = {v}" for k, v in run.job.flags.items())
    return Tried(run.job.method, setting or "theory", costs, proved, run.job.flags)


def winners(tried: Sequence[Tried], axis: str) -> dict[tuple[str, bool], Tried]:
    """The best on this axis by method, inside and outside its theorem, of those that reached eps."""
    best: dict[tuple[str, bool], Tried] = {}
    for t in tried:
        now = best.get((t.method, t.proved))
        if math.isfinite(t.cost(axis)) and (now is None or t.cost(axis) < now.cost(axis)):
            best[t.method, t.proved] = t
    return best


Best = Mapping[str, Mapping[tuple[str, bool], Tried]]


def least(best: Best, method: str, axis: str) -> float:
    """The least cost of a method on an axis, tuned for it, in or outside its theorem."""
    return min((t.cost(axis) for (name, _), t in best[axis].items() if name == method), default=math.inf)


# -- what is shown -----------------------------------------------------------------------------------------------------
def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats on both axes."""
    # with x rising, a point is on the front if its y is the least so far
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points)):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def draw(data: str, best: Best, eps: float) -> Panel:
    """One mark for each winner, and the Pareto front of all of them."""
    (x, (_, x_label)), (y, (_, y_label)) = AXES.items()
    drawn, every = [], []
    for key in sorted({key for axis in (x, y) for key in best[axis]}, key=lambda key: (key[0], not key[1])):
        name, proved = key
        # one mark, or two where tuning for the other axis found something else
        mine = sorted({(t.cost(x), t.cost(y)) for axis in (x, y) if (t := best[axis].get(key)) is not None})
        every += mine
        label = title(name) if proved else f"{title(name)}, outside its theorem"
        points = {x: [a for a, _ in mine]}, [b for _, b in mine]
        drawn.append(Series(label, *points, name, kind="points", hollow=not proved))
    front = pareto(every)
    drawn.append(Series("Pareto front", {x: [a for a, _ in front]}, [b for _, b in front], kind="bound"))
    return Panel(f"{data}-{x}-{y}", f"{data}, to {eps:g}", drawn, x, {x: x_label}, y_label, "log", "log")


def costs_table(data: str, best: Best, eps: float) -> Table:
    """The winners, with their costs on all axes."""
    rows: list[list[str | float | int | None]] = []
    for axis, winners in best.items():
        for (name, proved), t in sorted(winners.items(), key=lambda pair: pair[1].cost(axis)):
            inside = "inside" if proved else "outside"
            rows.append([axis, title(name), inside, t.label, *(t.costs[a] for a in AXES)])
    return Table(
        f"costs-{data}", f"Costs to {eps:g} on {data}", ["tuned for", "method", "theorem", "setting", *AXES], rows
    )


# -- claims ------------------------------------------------------------------------------------------------------------
def fewer(data: str, best: Best, a: str, b: str, axis: str) -> Claim:
    """a needs less than b on this axis, each tuned for it."""
    mine, theirs = least(best, a, axis), least(best, b, axis)
    ok = mine < theirs if math.isfinite(min(mine, theirs)) else None
    numbers = {k: v if math.isfinite(v) else None for k, v in ((a, mine), (b, theirs))}
    said = f"On {data}, {mine:.0f} {axis} against {theirs:.0f}."
    said = said if math.isfinite(theirs) else f"{mine:.0f} {axis}; {title(b)} did not get there"
    text = f"On {data}, tuned for {axis}, {title(a)} needs fewer {axis} than {title(b)}."
    return Claim(f"family-{data}-{axis}", "family", text, claims.judge(ok, True), said, numbers, holds=ok)


def on_front(data: str, best: Best) -> Claim:
    """5gcs is on the Pareto front of rounds and gradients."""
    points = [(t.cost("rounds"), t.cost("gradients"), t.method) for winners in best.values() for t in winners.values()]
    front = pareto([(a, b) for a, b, _ in points])
    mine = [(a, b) for a, b, name in points if name == "5gcs" and (a, b) in front]
    ok = bool(mine) if points else None
    said = ", ".join(f"{a:.0f} rounds with {b:.0f} gradients" for a, b in sorted(set(mine))) or "not on it"
    text = f"On {data}, 5gcs is on the Pareto front of rounds and gradients."
    return Claim(f"family-{data}-front", "family", text, claims.judge(ok, True), said, holds=ok)


CLAIMS: tuple[Callable[[str, Best], Claim], ...] = (
    lambda data, best: fewer(data, best, "5gcs", "accelerated", "rounds"),
    lambda data, best: fewer(data, best, "5gcs", "scaffnew", "gradients"),
    on_front,
)
"""One claim of each for every data set."""
