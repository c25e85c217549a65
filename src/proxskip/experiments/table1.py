"""Table 1 with measured columns: rounds and floats to eps for several kappa, on quadratics and on the data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments.closed_form_quadratics import AffineMap, Stepper, filling, rounds_of_s_local_gd, rounds_to
from proxskip.experiments.workspace import RunRequest, Workspace
from proxskip.methods import GD, Accelerated, FedLin, LocalGD, Scaffnew, Scaffold, SLocalGD
from proxskip.problems.federated import Problem
from proxskip.registry import title
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table, first_below
from proxskip.results.result import RunResult
from proxskip.theory import table1 as paper

SLOPE_TOLERANCE = 0.1
MAX_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Table1Entry:
    """A row of the table: a method with its step size, and how its rounds are counted.

    Args:
        paper: its name in the paper's table.
        exponent: of kappa in the paper's number of rounds; None without a linear rate.
        step: the formula of the step size, or "table" for the table's.
        count_by: powers of an affine map, random contraction factors, or round by round.
        gamma: the step size on the data set, as a flag.
    """

    method: str
    paper: str
    make: Callable[[Problem], Any]
    exponent: float | None
    step: str = "table"
    count_by: Literal["powers", "factors", "rounds"] = "powers"
    gamma: str | None = None

    @property
    def label(self) -> str:
        return title(self.method) + ("" if self.step == "table" else f", gamma = {self.step}")


ENTRIES = (
    Table1Entry("gd", "GD", GD.theory, 1.0),
    Table1Entry("scaffold", "Scaffold", Scaffold.paper_figure, 1.0, gamma="figure"),
    Table1Entry("fedlin", "FedLin", FedLin.paper_figure, 1.0, gamma="figure"),
    Table1Entry("s-local-gd", "S-Local-GD", SLocalGD.paper_figure, 1.0, count_by="factors", gamma="figure"),
    Table1Entry("accelerated", "accelerated GD", Accelerated.theory, 0.5),
    Table1Entry("scaffnew", "Scaffnew, p = 1/sqrt(kappa)", Scaffnew.theory, 0.5, count_by="rounds"),
    Table1Entry("local-gd", "LocalGD", LocalGD.paper_figure, None, gamma="figure"),
    Table1Entry("scaffold", "Scaffold", Scaffold.theory, 1.0, "1/(81 K L)"),
    Table1Entry("fedlin", "FedLin", FedLin.theory, 1.0, "1/(6 K L)"),
)
"""First with the step sizes of the paper's table, then with those of the proofs."""
TABLE_ENTRIES = ENTRIES[:7]
LOCAL_GD = 6
"""LocalGD, which stalls before it reaches eps."""


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Measure on quadratics, then on the data set."""
    on_quadratics, on_data = _quadratics(workspace), _data(workspace)
    q, heading = workspace.preset, "heterogeneous quadratics whose spectrum fills [mu, L]"
    panels = [
        _panel("quadratics", heading, on_quadratics, q["kappa"]),
        _panel("data", f"{workspace.data}, lambda = L/kappa", on_data, q["data"]["kappa"]),
        _floats(on_quadratics),
        _bias(on_quadratics[LOCAL_GD], q["eps"]),
    ]
    parameters = {k: q[k] for k in ("eps", "clients", "d", "spread", "seeds")}
    parameters |= {f"data.{k}": v for k, v in q["data"].items() if k != "kappa"}
    experiment = workspace.experiment("table1", parameters, panels, [_table(workspace, on_quadratics)])
    return claims.with_findings(experiment, judged(experiment))


# -- measuring ---------------------------------------------------------------------------------------------------------
def _quadratics(workspace: Workspace) -> list[Series]:
    q = workspace.preset
    about = {k: q[k] for k in ("eps", "clients", "d", "spread", "seeds")}
    entries = [about | {"kappa": kappa, "row": entry.label} for entry in ENTRIES for kappa in q["kappa"]]
    rows = iter(workspace.cached_values("table1", entries, _measure))
    return [_series(entry, q["kappa"], [next(rows) for _ in q["kappa"]]) for entry in ENTRIES]


def _measure(workspace: Workspace, q: Mapping[str, Any]) -> dict[str, Any]:
    """Rounds to eps for every seed, the cost of a round, and the smallest error of a method that stalls."""
    entry, kappa = next(e for e in ENTRIES if e.label == q["row"]), q["kappa"]
    problem = filling(q["clients"], q["d"], kappa, spread=q["spread"])
    method, floor = entry.make(problem), None
    # over 1e4 rounds the draws average out: one seed is enough
    seeds = range(1 if entry.count_by == "factors" and kappa > 2e3 else q["seeds"])
    if entry.count_by == "powers":
        arrival, floor = AffineMap(method, problem).rounds_to(q["eps"])
        rounds = [arrival]
    elif entry.count_by == "factors":
        rounds = [rounds_of_s_local_gd(method, problem, q["eps"], seed) for seed in seeds]
    else:
        rounds = [rounds_to(method, problem, q["eps"], MAX_ROUNDS, seed) for seed in seeds]
    # all rounds cost the same
    trial = Stepper(method, problem)
    for _ in range(4):
        trial.step()
    spent = trial.line.ledger
    floats = (spent.floats_up + spent.floats_down) / (4 * problem.n)
    costs = {"floats": floats, "exchanges": spent.exchanges / 4, "gamma": method.gamma}
    return {"rounds": rounds, "floor": floor, **costs}


def _series(entry: Table1Entry, kappas: Sequence[float], rows: Sequence[Mapping[str, Any]]) -> Series:
    """Medians with the range over seeds; no point where a seed does not reach eps."""
    reached = [(k, r) for k, r in zip(kappas, rows, strict=True) if all(v is not None for v in r["rounds"])]
    y = [float(np.median(r["rounds"])) for _, r in reached]
    seeds = max((len(r["rounds"]) for _, r in reached), default=1)
    about: dict[str, Any] = {"expected": entry.exponent, "floats per round": rows[0]["floats"]}
    about["exchanges per round"] = rows[0]["exchanges"]
    if len(y) > 1:
        about["slope"] = claims.slope([k for k, _ in reached], y)
    if entry.exponent is None:
        about |= {"kappa": list(kappas), "floor": [r["floor"] for r in rows]}
    return Series(
        entry.label,
        {"kappa": [float(k) for k, _ in reached], "sqrt(kappa)": [math.sqrt(k) for k, _ in reached]},
        y,
        entry.method if entry.step == "table" else "",
        [float(min(r["rounds"])) for _, r in reached] if seeds > 1 else None,
        [float(max(r["rounds"])) for _, r in reached] if seeds > 1 else None,
        "points",
        about,
    )


def _data(workspace: Workspace) -> list[Series]:
    """The same on the data set: lambda = L/kappa, and eps is relative to f(x0) - f*."""
    q = workspace.preset["data"]
    flags = {kappa: {"l2": 1.0 / kappa, "l2_relative": True} for kappa in q["kappa"]}
    problems = {kappa: workspace.problem(**flags[kappa]) for kappa in flags}
    targets = dict[float, float]()
    for kappa, problem in problems.items():
        assert problem.solution is not None
        targets[kappa] = q["eps"] * (problem.value(np.zeros(problem.d)) - problem.solution.f)
    requests = []
    for entry, kappa in product(TABLE_ENTRIES, flags):
        stop, label = {"target": targets[kappa], "rounds": q["rounds"]}, f"{entry.label}, kappa = {kappa:g}"
        requests.append(RunRequest(label, entry.method, {"gamma": entry.gamma}, flags[kappa], stop))
    runs = iter(workspace.runs(requests))
    return [
        _series(entry, list(flags), [_spent(next(runs), targets[k], problems[k].n) for k in flags])
        for entry in TABLE_ENTRIES
    ]


def _spent(run: RunResult, target: float, n: int) -> dict[str, Any]:
    last = run.trace.last()
    sent = (last["floats_up"] + last["floats_down"]) / (n * last["round"])
    spent = {"floats": sent, "exchanges": last["exchanges"] / last["round"]}
    gap = run.trace["gap"]
    return spent | {"rounds": [first_below(run.trace["round"], gap, target)], "floor": float(np.min(gap))}


# -- showing -----------------------------------------------------------------------------------------------------------
def _panel(id: str, heading: str, measured: Sequence[Series], kappas: Sequence[float]) -> Panel:
    drawn = [s for s in measured if s.y]
    ends = [float(min(kappas)), float(max(kappas))]
    # reference lines through a method's first point
    for power, name in ((1.0, "slope 1"), (0.5, "slope 1/2")):
        at = next((s for s in drawn if s.about["expected"] == power), None)
        if at is not None:
            line = [at.y[0] * (k / at.x["kappa"][0]) ** power for k in ends]
            x = {"kappa": ends, "sqrt(kappa)": [math.sqrt(k) for k in ends]}
            drawn.append(Series(name, x, line, kind="bound", about={"expected": power}))
    missing = [s.label for s in measured if not s.y]
    note = f"Not shown: {', '.join(missing)} ({heading}), which does not reach eps." if missing else ""
    xs = {"kappa": "condition number kappa", "sqrt(kappa)": "square root of kappa"}
    return Panel(id, heading, drawn, "kappa", xs, "rounds to eps", "log", "log", note=note)


def _floats(measured: Sequence[Series]) -> Panel:
    drawn = [replace(s, y=[s.about["floats per round"] * v for v in s.y], low=None, high=None) for s in measured if s.y]
    heading, xs = "the same quadratics: floats", {"kappa": "condition number kappa"}
    return Panel("floats", heading, drawn, "kappa", xs, "floats per client to eps, up and down", "log", "log")


def _bias(s: Series, eps: float) -> Panel:
    """The smallest error of LocalGD, and the eps that the other methods reach."""
    x = {"kappa": [float(k) for k in s.about["kappa"]]}
    floor = Series(s.label, x, [float(v) for v in s.about["floor"]], s.method, kind="points")
    wanted = Series("eps", x, [eps] * len(floor.y), kind="bound")
    label = "the smallest |x \N{MINUS SIGN} x*|\N{SUPERSCRIPT TWO}, relative to the first"
    heading = "LocalGD on the quadratics: where it stalls"
    return Panel("bias", heading, [floor, wanted], "kappa", {"kappa": "condition number kappa"}, label, "log", "log")


def _table(workspace: Workspace, measured: Sequence[Series]) -> Table:
    """Theory and measurement at the largest kappa."""
    q = workspace.preset
    kappa, d = float(max(q["kappa"])), int(q["d"])
    solution = filling(q["clients"], d, kappa, spread=q["spread"]).solution
    assert solution is not None
    G2 = float(np.mean(np.sum(solution.h**2, axis=1)))
    theory = {r.method: r for r in paper.table1(1.0, 1.0 / kappa, q["eps"], q["clients"], d=d, G2=G2)}
    rows: list[list[Any]] = []
    for entry, s in zip(ENTRIES, measured, strict=True):
        row = theory[entry.paper]
        rounds = s.y[-1] if s.y else None
        sent = None if rounds is None else rounds * s.about["floats per round"]
        step = row.step_formula if entry.step == "table" else entry.step
        order = "no linear rate" if entry.exponent is None else f"kappa^{entry.exponent:g}"
        rows.append(
            [title(entry.method), step, row.rounds_formula, row.rounds, rounds, order, s.about.get("slope"),
             s.about["floats per round"] / d, s.about["exchanges per round"], sent]
        )  # fmt: skip
    columns = ["method", "step size", "rounds in theory", "as a number", "rounds measured", "order in theory",
               "slope measured", "vectors per client and round", "exchanges per round",
               "floats per client"]  # fmt: skip
    floors = measured[LOCAL_GD].about["floor"]
    note = f"At kappa = {kappa:g}, to {q['eps']:g} of the first squared distance; vectors up and down."
    note += f" LocalGD stalls at {floors[-1]:.1e} of that distance."
    return Table("measured", "Table 1 on quadratics, theory and measurement", columns, rows, note)


# -- judging -----------------------------------------------------------------------------------------------------------
def judged(experiment: Experiment) -> list[Claim]:
    """Slopes are claimed on the quadratics, and reported on the data set."""
    panel = claims.panel_of(experiment, "quadratics")
    floor, eps = claims.panel_of(experiment, "bias").series
    lowest, kappas = min(floor.y), len(floor.x["kappa"])
    text = "With heterogeneous clients, LocalGD with its theoretical step size stalls above eps for every kappa."
    measured = f"LocalGD reaches {lowest:.1e} of the first squared distance at best; eps is {eps.y[0]:g}."
    holds = all(f > e for f, e in zip(floor.y, eps.y, strict=True))
    slopes = {s.label: s.about["slope"] for s in claims.panel_of(experiment, "data").series if "slope" in s.about}
    words = f"Slopes on the data set: {claims.listed(slopes, lambda v: f'{v:.2f}')}."
    return [
        _slopes(panel, kappas, 1.0, "table1-slow", "The rounds of GD, Scaffold, FedLin and S-Local-GD grow like kappa"),
        _slopes(panel, kappas, 0.5, "table1-fast", "The rounds of Scaffnew and accelerated GD grow like sqrt(kappa)"),
        claims.claim("table1-biased", text, holds, measured, {"floor": lowest}),
        Claim("table1-data", "table1", "The slopes on the data set, for comparison.", "REPORTED", words, slopes),
    ]


def _slopes(panel: Panel, kappas: int, power: float, id: str, text: str) -> Claim:
    expected = {e.label: power for e in ENTRIES if e.exponent == power}
    finding = claims.slopes(panel, expected, SLOPE_TOLERANCE, points=kappas)
    full = f"{text}: log-log slopes on the quadratics within {SLOPE_TOLERANCE} of {power:g}."
    return claims.claim(id, full, finding.holds, finding.measured, finding.numbers)
