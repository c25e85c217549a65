"""Gossip: rounds to eps against the spectral gap, in both regimes of the theorem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.closed_form_quadratics import AffineMap, filling, rounds_to
from proxskip.experiments.workspace import Workspace
from proxskip.links.graphs import Graph, graph
from proxskip.methods import EXTRA, DecentralizedScaffnew, DIGing
from proxskip.problems.federated import Problem
from proxskip.registry import step_limits, title
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table

MAX_ROUNDS = 1_000_000
SLOPE_TOLERANCE = 0.15
LARGEST_CANDIDATE = 0.95
"""The largest step size of the grid, as a share of the step at which equal quadratics diverge."""
OURS = "decentralized-scaffnew"


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """With the smaller kappa, the theorem's p is 1 on badly connected graphs; with the larger it is below 1."""
    q = workspace.preset
    about = {key: q[key] for key in ("clients", "d", "eps", "candidates", "seeds", "graph_seed")}
    parameters = [about | {"graph": name, "kappa": kappa} for kappa in q["kappa"] for name in q["graphs"]]
    rows = iter(workspace.cached_values("gossip", parameters, _measure))
    panels, tables = [], []
    for kappa in q["kappa"]:
        measurements = [next(rows) for _ in q["graphs"]]
        panels.append(_panel(kappa, measurements, q["eps"]))
        tables.append(_table(kappa, measurements))
    shown = {key: q[key] for key in ("clients", "d", "eps", "seeds", "candidates")}
    experiment = workspace.experiment("decentralized", shown, panels, tables)
    return claims.with_findings(experiment, judged(experiment))


# -- measuring ---------------------------------------------------------------------------------------------------------
def _measure(workspace: Workspace, q: Mapping[str, Any]) -> dict[str, Any]:
    link = graph(q["graph"], q["clients"], seed=q["graph_seed"])
    problem, eps = filling(q["clients"], q["d"], q["kappa"]), q["eps"]
    ours = DecentralizedScaffnew.theory(problem, link)
    rounds = [rounds_to(ours, problem, eps, MAX_ROUNDS, seed) for seed in range(q["seeds"])]
    return {
        **{"graph": link.name, "edges": link.edges, "delta": link.delta, "lmax": link.lmax},
        **{"p": ours.p, "zeta": ours.zeta(problem)},
        OURS: {"rounds": rounds},
        **{kind.name: tune(kind, problem, link, eps, q["candidates"]) for kind in (EXTRA, DIGing)},
    }


def tune(kind: Any, problem: Problem, link: Graph, eps: float, candidates: int) -> dict[str, Any]:
    """The best of the proved step size and of powers of two times the largest candidate."""
    limits = step_limits(kind.name, problem.L, lmax=link.lmax, sigma=link.sigma, mu=problem.mu)
    proved = kind.theory(problem, link).gamma
    grid = [*(LARGEST_CANDIDATE * limits.refuse_at * 2.0**-k for k in range(candidates)), proved]
    needed = {gamma: AffineMap(kind(gamma, link), problem).rounds_to(eps)[0] for gamma in grid}
    rounds, gamma = min((r, g) for g, r in needed.items() if r is not None)
    return {"rounds": [rounds], "gamma": gamma, "proved": needed[proved]}


# -- showing -----------------------------------------------------------------------------------------------------------
def _panel(kappa: float, measurements: Sequence[Mapping[str, Any]], eps: float) -> Panel:
    ordered = sorted(measurements, key=lambda r: float(r["delta"] / r["lmax"]))
    x = {"delta/lmax": [r["delta"] / r["lmax"] for r in ordered], "delta": [r["delta"] for r in ordered]}
    about: dict[str, Any] = {"graphs": [r["graph"] for r in ordered], "p": [r["p"] for r in ordered]}
    drawn = []
    for method in (OURS, "extra", "diging"):
        rounds = [float(np.median(r[method]["rounds"])) for r in ordered]
        label = title(method) + (", theory" if method == OURS else ", tuned")
        drawn.append(Series(label, x, rounds, method, kind="points", about=about if method == OURS else {}))
    bound = [r["p"] / r["zeta"] * math.log(1.0 / eps) for r in ordered]
    drawn.append(Series("p/zeta log(1/eps), the theorem's bound", x, bound, kind="bound"))
    xs = {"delta/lmax": "spectral gap delta, relative to lmax(I \N{MINUS SIGN} W)", "delta": "spectral gap delta"}
    where = ", ".join(f"{r['graph']} {r['delta']:.3g}" for r in ordered)
    note = f"Graphs from left to right, with their delta: {where}."
    id, heading = f"kappa-{kappa:g}", f"kappa = {kappa:g}"
    return Panel(id, heading, drawn, "delta/lmax", xs, "gossip steps to eps", "log", "log", note=note)


def _table(kappa: float, measurements: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[list[Any]] = []
    for r in measurements:
        ours = float(np.median(r[OURS]["rounds"]))
        extra, diging = r["extra"], r["diging"]
        row = [r["graph"], r["edges"], r["delta"], r["lmax"], r["p"], ours, ours / r["p"]]
        rows.append(row + [v for m in (extra, diging) for v in (m["rounds"][0], m["gamma"], m["proved"])])
    columns = ["graph", "edges", "delta", "lmax", "p", "gossip steps", "gradients (about)", "EXTRA tuned", "at gamma",
               "EXTRA, proved step", "DIGing tuned", "at gamma", "DIGing, proved step"]  # fmt: skip
    return Table(f"graphs-{kappa:g}", f"Gossip steps to eps, kappa = {kappa:g}, L = 1", columns, rows)


# -- judging -----------------------------------------------------------------------------------------------------------
def judged(experiment: Experiment) -> list[Claim]:
    """Both regimes, and the comparison with EXTRA and DIGing."""
    panels = [p for p in experiment.panels if p.id.startswith("kappa-")]
    points = [
        (panel.id, x, s.y[k], s.about["p"][k], [t.y[k] for t in panel.series if t.method in ("extra", "diging")])
        for panel in panels
        for s in [claims.curve(panel, OURS)]
        for k, x in enumerate(s.x["delta/lmax"])
    ]
    # p < 1 with the largest kappa, p = 1 with the smallest
    skips = [(x, y) for id, x, y, p, _ in points if p < 1 and id == panels[-1].id]
    always = [(x, y) for id, x, y, p, _ in points if p == 1 and id == panels[0].id]
    regimes = [
        _regime("decentralized-skip", skips, -0.5, "Where p < 1, gossip steps grow like sqrt(1/delta)"),
        _regime("decentralized-always", always, -1.0, "Where p = 1, gossip steps grow like 1/delta"),
    ]
    gains = [min(others) / y for _, _, y, p, others in points if p < 1]
    text = "Where p < 1, decentralized Scaffnew needs fewer gossip steps than tuned EXTRA and tuned DIGing."
    holds = bool(gains) and min(gains) > 1
    measured = f"The better of the two needs {min(gains):.1f} to {max(gains):.1f} times as many." if gains else ""
    numbers: dict[str, float | None] = {"least": min(gains, default=None), "most": max(gains, default=None)}
    rest = [min(others) / y for _, _, y, p, others in points if p == 1]
    note = f"where p = 1, {min(rest):.1f} to {max(rest):.1f} times as many" if rest else ""
    return [*regimes, claims.claim("decentralized-gain", text, holds, measured, numbers, note=note)]


def _regime(id: str, points: Sequence[tuple[float, float]], power: float, text: str) -> Claim:
    # a slope needs at least three graphs
    fitted = claims.slope(*zip(*points, strict=True)) if len(points) > 2 else None
    holds = None if fitted is None else abs(fitted - power) <= SLOPE_TOLERANCE
    full = f"{text}: log-log slope within {SLOPE_TOLERANCE} of {power:g}."
    measured = f"Slope {fitted:.2f} over {len(points)} graphs." if fitted is not None else "Too few graphs."
    return claims.claim(id, full, holds, measured, {"slope": fitted})
