"""Figures as data: a TOML file names the curves, their problem and limits, the axes and the claims.

    title = "Local steps on our data"
    shows = "Scaffnew needs fewer rounds."   # the sentence of the page, if all claims hold
    rounds = 300                             # a value: "$rounds" stands for it, and texts contain it as {rounds}

    [run]                                    # flags of every run, as on the command line
    l2 = 1e-3
    l2_relative = true

    [[panels]]
    id = "theory"
    title = "steps by theory"
    run = { rounds = "$rounds", K = 10, p = 0.1 }
    curves = ["gd", { method = "scaffnew", label = "Scaffnew, 2/L", gamma = "2/L", target = 1e-8 }]

    [[claims]]
    id = "fewer"
    kind = "ratio"                           # one of ``claims.KINDS``; the other entries are its arguments
    panel = "theory"
    text = "Scaffnew needs at most half the rounds of gradient descent."
    of = ["scaffnew"]
    to = ["gd"]
    eps = 1e-2
    at_most = 0.5

    [quick]                                  # what --quick replaces
    rounds = 50

A curve inherits the flags of its panel and of ``[run]`` that its method takes. ``each`` makes one curve for each entry
of its lists; ``seeds`` draws the median over several seeds; ``tune`` searches the step size (with ``steps`` also the
local steps) of every curve of a panel; ``like`` copies the rounds (or what ``copies`` lists) of another curve;
``times_best`` multiplies the rounds in which the best of the curves before it reaches eps. A panel with ``of`` and
``against`` draws costs to eps, against a value of ``each`` or another cost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from proxskip import theory
from proxskip.experiments import claims, settings
from proxskip.experiments.curves_from_runs import AXES, panel, series, with_seeds
from proxskip.experiments.successive_halving import beyond, final_gaps, grid_table
from proxskip.experiments.workspace import RunRequest, Workspace
from proxskip.problems.federated import Problem
from proxskip.registry import named, title
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table, first_below
from proxskip.report.plots import X_AXES
from proxskip.results.result import RunResult
from proxskip.tuning import Candidate, grid, halve, local_steps_flag
from proxskip.types import InputError

ENTRIES = ("title", "shows", "must_show", "notes", "share", "run", "panels", "claims")
"""Entries of a file that are not values."""
_OF_A_PANEL = ("id", "title", "run", "curves", "x", "axes", "tune", "of", "against", "costs", "label")
_OF_A_CURVE = ("method", "label", "each", "like", "copies", "times_best")
_OF_A_PROBLEM = (*settings.PROBLEM_FLAGS, "spread")
"""``spread`` scales the rows of the clients, so that their L_i differ by this factor."""
_OF_A_STOP = (*settings.LIMITS, "every")
_OF_A_BATCH = ("batch_share", "batch_clients", "batch_total", "L_clients")
"""For small clients, the batch is this share of the smallest client's rows; the number of clients of which the smallest
is taken; whether all clients share one batch; and the number of clients for the L of a step size."""
_FRACTION = re.compile(r"([\d.e-]+)/\(?([\d.e-]*)( ?L)?\)?")


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve to run: its request, its entry in the file, and its values of ``each``."""

    request: RunRequest
    entry: Mapping[str, Any]
    values: Mapping[str, Any]


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Run all curves, draw the panels, and judge the claims."""
    figure = resolved(workspace.preset)
    values = values_of(figure)
    panels, tables = [], []
    for entry in (p for p in figure["panels"] if "curves" in p):
        curves, grids = curves_of(workspace, figure, entry), list[Table]()
        about = [dict(c.values) for c in curves]
        if "tune" in entry:
            curves, about, grids = _tuned(workspace, entry, curves, figure.get("eps"))
        runs = _runs(workspace, curves, figure)
        lines = [series(c.request.label, r, axes=entry.get("axes", AXES), **a)
                 for c, r, a in zip(curves, runs, about, strict=True)]  # fmt: skip
        heading = entry["title"].format(**values)
        panels.append(panel(entry["id"], heading, lines, entry.get("x", "rounds"), entry.get("axes", AXES)))
        tables += [_table(entry["id"], heading, lines, runs, figure), *grids]
    for entry in figure["panels"]:
        if "of" in entry:
            source = next(p for p in panels if p.id == entry["of"])
            panels += _costs(entry, source, values["eps"])
    problem = workspace.problem(**curves[0].request.problem)
    experiment = workspace.experiment(figure["id"], parameters(problem) | values, panels, tables)
    return claims.with_findings(experiment, claims.judged(experiment, figure.get("claims", []), workspace.data))


# -- the file ----------------------------------------------------------------------------------------------------------
def resolved(preset: Mapping[str, Any]) -> dict[str, Any]:
    """The figure with its values put in."""
    values = values_of(preset)

    def put_in(node: Any) -> Any:
        if isinstance(node, str) and node.startswith("$"):
            if node[1:] not in values:
                raise InputError(f'"{node}" is not a value of the figure, which has {", ".join(values) or "none"}.')
            return values[node[1:]]
        if isinstance(node, Mapping):
            return {k: put_in(v) for k, v in node.items()}
        return [put_in(v) for v in node] if isinstance(node, list) else node

    return {k: put_in(v) for k, v in preset.items()}


def values_of(preset: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are values."""
    return {k: v for k, v in preset.items() if k not in (*ENTRIES, "id")}


def check(figure: Mapping[str, Any]) -> None:
    """Refuse missing and unknown entries before anything runs."""
    for key in ("title", "panels"):
        if not figure.get(key):
            raise InputError(f"the figure has no {key}.")
    values, curves = list(values_of(figure)), dict[str, Any]()
    for entry in figure["panels"]:
        _known(entry, _OF_A_PANEL, f"panel {entry.get('id', '?')}")
        for key in ("id", "title", *(("against",) if "of" in entry else ("curves",))):
            if key not in entry:
                raise InputError(f"panel {entry.get('id', '?')} has no {key}.")
        claims.check_text(entry["title"], values)
        if "of" in entry:
            curves[entry["id"]] = None
            continue
        for axis in (entry.get("x", "rounds"), *entry.get("axes", ())):
            if axis not in X_AXES:
                raise InputError(f'panel {entry["id"]} has the unknown axis "{axis}"; choose from {", ".join(X_AXES)}.')
        for curve in map(_as_entry, entry["curves"]):
            method = str(named(curve.get("method", "")).name)
            _known(curve, (*_OF_A_CURVE, *_flags_of(method)), f"the curve of {method}")
            claims.check_text(curve.get("label", ""), [*values, *curve.get("each", {})])
            lists = list(curve.get("each", {}).values())
            if not all(isinstance(v, list) and len(v) == len(lists[0]) for v in lists):
                raise InputError(f"`each` of the curve of {method} must have lists of one length.")
        labels = [label for _, _, _, label in _expanded(figure, entry)]
        if repeated := [label for k, label in enumerate(labels) if label in labels[:k]]:
            raise InputError(f'panel {entry["id"]} has two curves "{repeated[0]}"; give each its own label.')
        curves[entry["id"]] = [*labels, *(method for _, method, _, _ in _expanded(figure, entry))]
    claims.check(figure.get("claims", []), values, curves)


def _known(entry: Mapping[str, Any], keys: Sequence[str], whose: str) -> None:
    if unknown := [k for k in entry if k not in keys]:
        raise InputError(f"{whose} has the unknown entry {unknown[0]}; it may have {', '.join(keys)}.")


def _as_entry(curve: str | dict[str, Any]) -> dict[str, Any]:
    return {"method": curve} if isinstance(curve, str) else curve


def _flags_of(method: str) -> tuple[str, ...]:
    return (*_OF_A_PROBLEM, *_OF_A_BATCH, *_OF_A_STOP, *settings.flags_taken(method), "cohort", "decay")


# -- curves ------------------------------------------------------------------------------------------------------------
def _expanded(
    figure: Mapping[str, Any], panel: Mapping[str, Any]
) -> list[tuple[dict[str, Any], str, dict[str, Any], str]]:
    """The entry, the method, the values of ``each`` and the label of every curve."""
    rows, values = [], values_of(figure)
    for entry in map(_as_entry, panel["curves"]):
        method, lists = str(named(entry["method"]).name), entry.get("each", {})
        for own in [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)] or [{}]:
            label = entry["label"].format(**values | own) if "label" in entry else title(method)
            rows.append((entry, method, own, label))
    return rows


def curves_of(workspace: Workspace, figure: Mapping[str, Any], panel: Mapping[str, Any]) -> list[Curve]:
    """The curves of a panel."""
    values, curves = values_of(figure), []
    common = figure.get("run", {}) | panel.get("run", {})
    for entry, method, own, label in _expanded(figure, panel):
        entries = {k: v for k, v in common.items() if _inherits(method, k)}
        entries |= {k: v for k, v in (entry | own).items() if k in _flags_of(method)}
        entries = {k: v.format(**values | own) if isinstance(v, str) else v for k, v in entries.items()}
        curves.append(Curve(_request(workspace, label, method, entries), entry, own))
    return curves


def _inherits(method: str, flag: str) -> bool:
    """Whether a curve takes this flag of its panel; of p and K, the one that sets its local steps."""
    return flag == local_steps_flag(method) if flag in ("p", "K") else flag in _flags_of(method)


def _request(workspace: Workspace, label: str, method: str, entries: Mapping[str, Any]) -> RunRequest:
    problem = problem_flags(workspace, entries)
    stop = {k: v for k, v in entries.items() if k in _OF_A_STOP}
    of_gamma = (
        problem_flags(workspace, {**entries, "clients": entries["L_clients"]}) if "L_clients" in entries else problem
    )
    others = (*_OF_A_PROBLEM, *_OF_A_BATCH, *stop)
    flags = {k: _number(v, workspace, of_gamma) for k, v in entries.items() if k not in others}
    return RunRequest(label, method, flags, problem, stop)


def problem_flags(workspace: Workspace, entries: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of the problem, with the batch that ``_OF_A_BATCH`` gives."""
    flags = {k: v for k, v in entries.items() if k in _OF_A_PROBLEM and k != "batch"}
    if "batch" not in entries:
        return flags
    among = {"clients": entries["batch_clients"]} if "batch_clients" in entries else {}
    smallest, batch = min(workspace.problem(**flags | among).sizes or [0]), entries["batch"]
    if "batch_share" in entries and smallest < batch:
        batch = max(1, int(entries["batch_share"] * smallest))
    return flags | {"batch": max(1, batch // flags["clients"]) if entries.get("batch_total") else batch}


def _number(value: Any, workspace: Workspace, problem: Mapping[str, Any]) -> Any:
    """The number of a fraction such as "1/30" or "1/(100 L)", where L is ``smoothness``."""
    parts = _FRACTION.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        return value
    top, bottom, with_L = parts.groups()
    L = smoothness(workspace.problem(**problem)) if with_L else 1.0
    return float(top) / (float(bottom or 1.0) * L)


def smoothness(problem: Problem) -> float:
    """L of the average; with minibatches L_b made from it instead of the clients' L, as in the notebook."""
    if problem.batch is None:
        return problem.L_global
    assert problem.sizes is not None
    rows = max(float(f.L_rows) for f in problem.clients)  # type: ignore[attr-defined]
    return theory.minibatch_smoothness(min(problem.sizes), problem.batch, problem.L_global, rows)


# -- runs --------------------------------------------------------------------------------------------------------------
def _runs(workspace: Workspace, curves: Sequence[Curve], figure: Mapping[str, Any]) -> list[list[RunResult]]:
    """The runs of every curve: first those that depend on no other."""
    later = [k for k, c in enumerate(curves) if "like" in c.entry or "times_best" in c.entry]
    first = [k for k in range(len(curves)) if k not in later]
    runs = dict(zip(first, with_seeds(workspace, [curves[k].request for k in first]), strict=True))
    for k in later:
        known = {curves[j].request.label: r for j, r in runs.items()}
        (runs[k],) = with_seeds(workspace, [_after(curves[k], known, figure)])
    return [runs[k] for k in range(len(curves))]


def _after(curve: Curve, known: Mapping[str, Sequence[RunResult]], figure: Mapping[str, Any]) -> RunRequest:
    """The request of a curve that depends on others."""
    request, entry = curve.request, curve.entry
    if "times_best" in entry:
        curves = [series("", r) for r in known.values()]
        needed = [first_below(s.x["rounds"], s.y, figure["eps"]) for s in curves]
        best = min((r for r in needed if r is not None), default=None)
        rounds = request.stop["rounds"] if best is None else math.ceil(entry["times_best"] * best)
        return replace(request, stop={**request.stop, "rounds": rounds})
    if entry["like"] not in known:
        raise InputError(f'{request.label} is like "{entry["like"]}", which is not a curve before it.')
    other = known[entry["like"]][0].summary
    copied = {k: other[k] for k in entry.get("copies", ["rounds"])}
    stop = {**request.stop, **{k: v for k, v in copied.items() if k in _OF_A_STOP}}
    return replace(request, stop=stop, flags={**request.flags, **{k: v for k, v in copied.items() if k not in stop}})


def _tuned(
    workspace: Workspace, panel: Mapping[str, Any], curves: Sequence[Curve], eps: float | None
) -> tuple[list[Curve], list[dict[str, Any]], list[Table]]:
    """Every curve with the best parameters of its grid, these parameters for the page, and the table of the grid.

    With ``most_steps`` a grid grows where its winner lies at an end, up to that many local steps.
    """
    rules, requests = panel["tune"], {c.request.method: c.request for c in curves}
    problem = curves[0].request.problem
    L = smoothness(workspace.problem(**problem))
    grids = {name: _grid(request, L, rules) for name, request in requests.items()}
    winners: dict[str, Candidate] = {}
    growing = list(requests)
    while growing:
        tried = {name: grids[name] for name in growing}
        finalists = halve(tried, rules["rungs"], partial(final_gaps, workspace, problem))
        # the finalists run to the end: the best after few rounds need not be the first at eps
        finals = [(name, c) for name, left in finalists.items() for c in left]
        runs = workspace.runs([replace(requests[name], flags=c.flags) for name, c in finals])
        for name in growing:
            own = [(_order(run, eps), c) for run, (method, c) in zip(runs, finals, strict=True) if method == name]
            winners[name] = min(own, key=lambda pair: pair[0])[1]
        growing = [name for name in growing if _grow(name, grids[name], winners[name], L, rules)]
    best = [winners[c.request.method] for c in curves]
    curves = [replace(c, request=replace(c.request, flags=b.flags)) for c, b in zip(curves, best, strict=True)]
    about = [{"gamma_L": b.times, "local_steps": b.steps} for b in best]
    return curves, about, [grid_table(f"{panel['id']}-grid", grids, winners)]


def _grid(request: RunRequest, L: float, rules: Mapping[str, Any]) -> list[Candidate]:
    own = request.flags.get("K") or 1 / request.flags.get("p", 1.0)
    return grid(request.method, L, rules["powers"], rules.get("steps", [round(own)]), **request.flags)


def _grow(name: str, tried: list[Candidate], winner: Candidate, L: float, rules: Mapping[str, Any]) -> bool:
    """Extend a grid whose winner lies at an end; whether there was anything to add."""
    new = beyond(name, tried, winner, L, rules["most_steps"]) if "most_steps" in rules else []
    tried += new
    return bool(new)


def _order(run: RunResult, eps: float | None) -> tuple[float, float]:
    """By rounds to eps; if no run gets there, by f - f* at the end."""
    rounds = None if eps is None else first_below(run.trace["round"], run.trace["gap"], eps)
    return rounds or math.inf, run.summary["gap"] or math.inf


# -- what is shown -----------------------------------------------------------------------------------------------------
def parameters(problem: Problem) -> dict[str, Any]:
    """The constants of a problem that the page shows."""
    shown: dict[str, Any] = {"lambda": problem.l2, "L (global)": problem.L_global, "max_i L_i": problem.L_i.max()}
    if problem.batch is not None:
        shown |= {"L_b": smoothness(problem), "batch": problem.batch, "A": problem.es_A, "C": problem.es_C}
        shown["rows of the smallest client"] = min(problem.sizes or [0])
    return shown


def _table(id: str, heading: str, drawn: Sequence[Series], runs: Sequence[Sequence[RunResult]], figure: Any) -> Table:
    """The parameters of every curve, its costs to eps, and where it ends."""
    eps, costs = figure.get("eps"), figure.get("costs", ["rounds"]) if "eps" in figure else []
    columns = ["curve", "gamma", "gamma L", "local steps per round", "rounds run", *(f"{a} to {eps:g}" for a in costs)]
    columns += ["f - f* at the end", "smallest", "largest", "seeds"]
    rows: list[list[Any]] = []
    for s, (first, *_) in zip(drawn, runs, strict=True):
        steps = s.about.get("K") or round(1 / s.about.get("p", 1.0), 1)
        gamma = first.summary["gamma"]
        rows.append([s.label, gamma, gamma * first.summary["L"], steps, s.x["rounds"][-1]])
        rows[-1] += [first_below(s.x[axis], s.y, eps) for axis in costs]
        rows[-1] += [s.y[-1], (s.low or s.y)[-1], (s.high or s.y)[-1], s.about.get("seeds", 1)]
    return Table(id, heading, columns, rows)


def _tradeoff(entry: Mapping[str, Any], source: Panel, eps: float) -> Panel:
    """One cost to eps against another, a point for each curve that got there."""
    x, y = entry["against"], entry["costs"]
    points = [
        Series(s.label, {x: [across]}, [up], s.method, kind="points", about=s.about)
        for s in source.series
        if (across := first_below(s.x[x], s.y, eps)) is not None and (up := first_below(s.x[y], s.y, eps)) is not None
    ]
    label = f"{X_AXES[y][1]} to {eps:g}"
    return Panel(entry["id"], entry["title"].format(eps=eps), points, x, {x: X_AXES[x][1]}, label, "log", "log")


def _costs(entry: Mapping[str, Any], source: Panel, eps: float) -> list[Panel]:
    """Rounds to eps against a value of ``each`` if two curves reached eps; for the others, the rounds they ran."""
    x = entry["against"]
    if x in X_AXES:
        return [_tradeoff(entry, source, eps)]
    costs = [(float(s.about[x]), *claims.cost(s, eps)) for s in source.series]
    reached = [(k, low) for k, low, high in costs if low == high < math.inf]
    short = [(k, low) for k, low, high in costs if low < high]
    if len(reached) < 2:
        return []
    method = source.series[0].method
    lines = [(title(method), reached), *([("not reached within this many rounds", short)] if short else [])]
    points = [
        Series(label, {x: [k for k, _ in line]}, [low for _, low in line], method, kind="points")
        for label, line in lines
    ]
    heading = entry["title"].format(eps=eps)
    return [Panel(entry["id"], heading, points, x, {x: entry.get("label", x)}, "communication rounds", "log", "log")]
