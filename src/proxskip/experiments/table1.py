"""Table 1 with measured columns: rounds and floats to eps for several kappa, on quadratics and on the data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments import paper_table as paper
from proxskip.experiments.bench import Bench
from proxskip.experiments.closed_form_quadratics import AffineMap, Stepper, filling, rounds_of_s_local_gd, rounds_to
from proxskip.experiments.curves import Curve
from proxskip.experiments.figures import Parts, figure
from proxskip.methods import GD, Accelerated, FedLin, LocalGD, Scaffnew, Scaffold, SLocalGD
from proxskip.methods.registry import title
from proxskip.problems.federated import Problem
from proxskip.report.figures import Panel, Series, Table, first_below
from proxskip.results.result import RunResult

SLOPE_TOLERANCE = 0.1
MAX_ROUNDS = 1_000_000
HALF_DECADES = (1e2, 316.22776601683796, 1e3, 3162.2776601683795, 1e4, 31622.776601683792, 1e5)


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
    Table1Entry("scaffold", "Scaffold", partial(Scaffold.theory, figure=True), 1.0, gamma="figure"),
    Table1Entry("fedlin", "FedLin", partial(FedLin.theory, figure=True), 1.0, gamma="figure"),
    Table1Entry(
        "s-local-gd", "S-Local-GD", partial(SLocalGD.theory, figure=True), 1.0, count_by="factors", gamma="figure"
    ),
    Table1Entry("accelerated", "accelerated GD", Accelerated.theory, 0.5),
    Table1Entry("scaffnew", "Scaffnew, p = 1/sqrt(kappa)", Scaffnew.theory, 0.5, count_by="rounds"),
    Table1Entry("local-gd", "LocalGD", partial(LocalGD.theory, figure=True), None, gamma="figure"),
    Table1Entry("scaffold", "Scaffold", Scaffold.theory, 1.0, "1/(81 K L)"),
    Table1Entry("fedlin", "FedLin", FedLin.theory, 1.0, "1/(6 K L)"),
)
"""First with the step sizes of the paper's table, then with those of the proofs."""
TABLE_ENTRIES = ENTRIES[:7]
LOCAL_GD = 6
"""LocalGD, which stalls before it reaches eps."""


@figure(
    "Table 1, measured: rounds and floats against the condition number",
    shows="""
        With the step sizes that theory allows, the local steps of Scaffold, FedLin and S-Local-GD gain nothing;
        those of Scaffnew reduce the rounds from kappa to sqrt(kappa).
    """,
    notes="""
        On the quadratics every client and the average have L = 1 and mu = 1/kappa, and eps refers to |x - x*|^2
        / |x0 - x*|^2, the quantity of the theorems. The methods are the library's own; K local steps on a
        quadratic are computed in closed form, and the rounds of deterministic methods by powers of an affine
        map.

        Scaffold is option II without cohorts, which sends one vector each way; the paper's table counts 2d,
        which is the cost of option I and of cohorts.

        On the data set lambda = L/kappa changes the problem together with kappa, and eps refers to f(x) - f*,
        in which directions of small curvature have little weight: slopes below 1 and 1/2 are no contradiction.
        They are reported only.

        On the data set the parameters depend on kappa by the same formulas: Scaffnew has p = 1/sqrt(kappa);
        LocalGD, Scaffold, FedLin and S-Local-GD take sqrt(kappa) local steps per round (S-Local-GD on average),
        with step sizes that are smaller by that factor.
    """,
    share=(300, 15),
    quick={"kappa": HALF_DECADES[:5], "seeds": 3, "data_kappa": HALF_DECADES[:3], "data_rounds": 2000},
)
def table1(
    bench: Bench,
    eps: float = 1e-6,
    kappa: Sequence[float] = HALF_DECADES,
    clients: int = 10,
    d: int = 32,
    spread: float = 3.0,
    seeds: int = 5,
    data_kappa: Sequence[float] = HALF_DECADES[:5],
    data_eps: float = 0.03,
    data_rounds: int = 4000,
) -> Parts:
    """Measure on quadratics, then on the data set."""
    about = {"eps": eps, "clients": clients, "d": d, "spread": spread, "seeds": seeds}
    entries = [about | {"kappa": k, "row": entry.label} for entry in ENTRIES for k in kappa]
    rows = iter(bench.cached_values("table1", entries, _measure))
    on_quadratics = [_series(entry, kappa, [next(rows) for _ in kappa]) for entry in ENTRIES]
    on_data = _data(bench, data_kappa, data_eps, data_rounds)
    panels = [
        _panel("quadratics", "heterogeneous quadratics whose spectrum fills [mu, L]", on_quadratics, kappa),
        _panel("data", f"{bench.data}, lambda = L/kappa", on_data, data_kappa),
        _floats(on_quadratics),
        _bias(on_quadratics[LOCAL_GD], eps),
    ]
    yield from panels
    yield _table(about | {"kappa": max(kappa)}, on_quadratics)
    yield from claims_of(panels)


# -- measuring ---------------------------------------------------------------------------------------------------------
def _measure(bench: Bench, q: Mapping[str, Any]) -> dict[str, Any]:
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


def _data(bench: Bench, kappas: Sequence[float], eps: float, rounds: int) -> list[Series]:
    """The same on the data set: lambda = L/kappa, and eps is relative to f(x0) - f*."""
    flags = {kappa: {"l2_relative": 1.0 / kappa} for kappa in kappas}
    problems = {kappa: bench.problem(**flags[kappa]) for kappa in kappas}
    targets = dict[float, float]()
    for kappa, problem in problems.items():
        assert problem.solution is not None
        targets[kappa] = eps * (problem.value(np.zeros(problem.d)) - problem.solution.f)
    asked = [
        Curve(
            entry.method,
            f"{entry.label}, kappa = {kappa:g}",
            {**flags[kappa], "gamma": entry.gamma, "target": targets[kappa], "rounds": rounds},
        )
        for entry, kappa in product(TABLE_ENTRIES, kappas)
    ]
    runs = iter(bench.runs(asked))
    return [
        _series(entry, kappas, [_spent(next(runs), targets[k], problems[k].n) for k in kappas])
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


def _table(q: Mapping[str, Any], measured: Sequence[Series]) -> Table:
    """Theory and measurement at the largest kappa."""
    kappa, d = float(q["kappa"]), int(q["d"])
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
def claims_of(panels: Sequence[Panel]) -> Iterator[claims.Asserted]:
    """Slopes are claimed on the quadratics, and reported on the data set."""
    by_id = {p.id: p for p in panels}
    floor, eps = by_id["bias"].series
    kappas = len(floor.x["kappa"])
    yield _slopes(
        by_id["quadratics"],
        kappas,
        1.0,
        "table1-slow",
        "The rounds of GD, Scaffold, FedLin and S-Local-GD grow like kappa",
    )
    yield _slopes(
        by_id["quadratics"],
        kappas,
        0.5,
        "table1-fast",
        "The rounds of Scaffnew and accelerated GD grow like sqrt(kappa)",
    )

    lowest = min(floor.y)
    holds = all(f > e for f, e in zip(floor.y, eps.y, strict=True))
    measured = f"LocalGD reaches {lowest:.1e} of the first squared distance at best; eps is {eps.y[0]:g}."
    text = "With heterogeneous clients, LocalGD with its theoretical step size stalls above eps for every kappa."
    yield claims.claim("table1-biased", text, claims.Finding(holds, measured, {"floor": lowest}))

    slopes = {s.label: s.about["slope"] for s in by_id["data"].series if "slope" in s.about}
    words = f"Slopes on the data set: {claims.listed(slopes, lambda v: f'{v:.2f}')}."
    found = claims.Finding(None, words, slopes, reported=True)
    yield claims.claim("table1-data", "The slopes on the data set, for comparison.", found)


def _slopes(panel: Panel, kappas: int, power: float, id: str, text: str) -> claims.Asserted:
    expected = {e.label: power for e in ENTRIES if e.exponent == power}
    full = f"{text}: log-log slopes on the quadratics within {SLOPE_TOLERANCE} of {power:g}."
    return claims.claim(id, full, claims.slopes(panel, expected, SLOPE_TOLERANCE, points=kappas))
