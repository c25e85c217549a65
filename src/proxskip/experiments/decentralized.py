"""Gossip: rounds to eps against the spectral gap, in both regimes of the theorem."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.bench import Bench
from proxskip.experiments.closed_form_quadratics import AffineMap, filling, rounds_to
from proxskip.experiments.curves import Values, log_log
from proxskip.experiments.figures import Parts, figure
from proxskip.graphs import Graph, graph
from proxskip.methods import EXTRA, DecentralizedScaffnew, DIGing
from proxskip.methods.registry import step_limits, title
from proxskip.problems.federated import Problem
from proxskip.report.figures import Panel, Series, Table

MAX_ROUNDS = 1_000_000
SLOPE_TOLERANCE = 0.15
LARGEST_CANDIDATE = 0.95
"""The largest step size of the grid, as a share of the step at which equal quadratics diverge."""
OURS = "decentralized-scaffnew"


@figure(
    "Decentralized Scaffnew: gossip steps against the spectral gap",
    shows="""
        On a well connected graph, decentralized Scaffnew skips gossip steps and needs about sqrt(kappa/delta)
        of them; on a badly connected graph it is best never to skip one, and about 1/delta are needed.
    """,
    notes="""
        The paper's W is positive semidefinite, so that the largest eigenvalue of I - W is at most 1. Metropolis
        weights need not be; then delta/lmax replaces delta: p = min(1, sqrt(lmax/(kappa delta))).

        DIGing and EXTRA are tuned: their step size is the best of several powers of two (below the step at
        which equal quadratics diverge) and the proved step. The table also lists the gossip steps with the
        proved step size. Decentralized Scaffnew uses the parameters of its theorem and is not tuned.

        An iteration of DIGing and of EXTRA is one gradient and one gossip step; decentralized Scaffnew computes
        1/p gradients per gossip step. DIGing sends two vectors along every edge.

        If kappa is small and the graph badly connected, the theorem's p is 1: no gossip step is skipped, and a
        step size below 1/L can balance the two rates better. Tuned EXTRA may then need fewer gossip steps.
    """,
    share=(60, 12),
    quick={"clients": 25, "kappa": [8.0, 1000.0], "candidates": 6, "seeds": 2},
)
def decentralized(
    bench: Bench,
    graphs: Sequence[str] = ("path", "ring", "grid", "torus", "erdos-renyi:0.15", "complete"),
    graph_seed: int = 1,
    clients: int = 36,
    d: int = 12,
    kappa: Sequence[float] = (20.0, 1000.0),
    eps: float = 1e-6,
    candidates: int = 9,
    seeds: int = 5,
) -> Parts:
    """With the smaller kappa, the theorem's p is 1 on badly connected graphs; with the larger it is below 1."""
    about = {"clients": clients, "d": d, "eps": eps, "candidates": candidates, "seeds": seeds, "graph_seed": graph_seed}
    cases = {(k, name): about | {"graph": name, "kappa": k} for k in kappa for name in graphs}
    found = bench.measured("gossip", _measure, cases)
    panels = []
    for k in kappa:
        measurements = [found[k, name] for name in graphs]
        panels.append(_panel(k, measurements, eps))
        yield panels[-1]
        yield _table(k, measurements)
    yield from claims_of(panels)


# -- measuring ---------------------------------------------------------------------------------------------------------
def _measure(bench: Bench, q: Values) -> dict[str, Any]:
    link = graph(q["graph"], q["clients"], seed=q["graph_seed"])
    problem, eps = filling(q["clients"], q["d"], q["kappa"]), q["eps"]
    ours = DecentralizedScaffnew.theory(problem, graph=link)
    rounds = [rounds_to(ours, problem, eps, MAX_ROUNDS, seed) for seed in range(q["seeds"])]
    about = {"graph": link.name, "edges": link.edges, "delta": link.delta, "lmax": link.lmax}
    about |= {"p": ours.p, "zeta": ours.zeta(problem), OURS: {"rounds": rounds}}
    others = {kind.about.name: tune(kind, problem, link, eps, q["candidates"]) for kind in (EXTRA, DIGing)}
    return about | others


def tune(kind: Any, problem: Problem, link: Graph, eps: float, candidates: int) -> dict[str, Any]:
    """The best of the proved step size and of powers of two times the largest candidate."""
    limits = step_limits(kind.about.name, problem.L, lmax=link.lmax, sigma=link.sigma, mu=problem.mu)
    proved = kind.theory(problem, graph=link).gamma
    grid = [*(LARGEST_CANDIDATE * limits.refuse_at * 2.0**-k for k in range(candidates)), proved]
    needed = {gamma: AffineMap(kind(gamma, link), problem).rounds_to(eps)[0] for gamma in grid}
    rounds, gamma = min((r, g) for g, r in needed.items() if r is not None)
    return {"rounds": [rounds], "gamma": gamma, "proved": needed[proved]}


# -- showing -----------------------------------------------------------------------------------------------------------
def _panel(kappa: float, measurements: Sequence[Values], eps: float) -> Panel:
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
    return log_log(f"kappa-{kappa:g}", f"kappa = {kappa:g}", drawn, xs, "gossip steps to eps", note)


def _table(kappa: float, measurements: Sequence[Values]) -> Table:
    rows: list[list[Any]] = []
    for r in measurements:
        ours = float(np.median(r[OURS]["rounds"]))
        row = [r["graph"], r["edges"], r["delta"], r["lmax"], r["p"], ours, ours / r["p"]]
        for name in ("extra", "diging"):
            other = r[name]
            row += [other["rounds"][0], other["gamma"], other["proved"]]
        rows.append(row)
    columns = ["graph", "edges", "delta", "lmax", "p", "gossip steps", "gradients (about)", "EXTRA tuned", "at gamma",
               "EXTRA, proved step", "DIGing tuned", "at gamma", "DIGing, proved step"]  # fmt: skip
    return Table(f"graphs-{kappa:g}", f"Gossip steps to eps, kappa = {kappa:g}, L = 1", columns, rows)


# -- judging -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Point:
    """A graph: its delta/lmax, the p of the theorem, and the gossip steps of ours and of the better of the others."""

    gap: float
    p: float
    ours: float
    other: float


def _points(panel: Panel) -> list[Point]:
    (ours,) = [s for s in panel.series if s.method == OURS]
    others = [s for s in panel.series if s.method in ("extra", "diging")]
    return [
        Point(gap, ours.about["p"][k], ours.y[k], min(s.y[k] for s in others))
        for k, gap in enumerate(ours.x["delta/lmax"])
    ]


def claims_of(panels: Sequence[Panel]) -> Iterator[claims.Asserted]:
    """Both regimes, and the comparison with EXTRA and DIGing."""
    by_panel = [_points(panel) for panel in panels]
    # p < 1 with the largest kappa, p = 1 with the smallest
    skips = [point for point in by_panel[-1] if point.p < 1]
    always = [point for point in by_panel[0] if point.p == 1]
    yield _regime("decentralized-skip", skips, -0.5, "Where p < 1, gossip steps grow like sqrt(1/delta)")
    yield _regime("decentralized-always", always, -1.0, "Where p = 1, gossip steps grow like 1/delta")

    everywhere = [point for points in by_panel for point in points]
    gains = [point.other / point.ours for point in everywhere if point.p < 1]
    rest = [point.other / point.ours for point in everywhere if point.p == 1]
    text = "Where p < 1, decentralized Scaffnew needs fewer gossip steps than tuned EXTRA and tuned DIGing."
    measured = f"The better of the two needs {min(gains):.1f} to {max(gains):.1f} times as many." if gains else ""
    note = f"where p = 1, {min(rest):.1f} to {max(rest):.1f} times as many" if rest else ""
    numbers: claims.Numbers = {"least": min(gains, default=None), "most": max(gains, default=None)}
    holds = bool(gains) and min(gains) > 1
    yield claims.claim("decentralized-gain", text, claims.Finding(holds, measured, numbers, note))


def _regime(id: str, points: Sequence[Point], power: float, text: str) -> claims.Asserted:
    full = f"{text}: log-log slope within {SLOPE_TOLERANCE} of {power:g}."
    found = claims.Finding(None, "Too few graphs.", {"slope": None})
    if len(points) >= 3:
        fitted = claims.slope([point.gap for point in points], [point.ours for point in points])
        holds = abs(fitted - power) <= SLOPE_TOLERANCE
        found = claims.Finding(holds, f"Slope {fitted:.2f} over {len(points)} graphs.", {"slope": fitted})
    return claims.claim(id, full, found)
