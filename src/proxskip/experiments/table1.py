"""Table 1 with measured columns: rounds and floats to eps for several kappa, on quadratics and on the data set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proxskip.experiments import claims
from proxskip.experiments import paper_table as paper
from proxskip.experiments.bench import Bench
from proxskip.experiments.closed_form_quadratics import AffineMap, Stepper, filling, rounds_of_s_local_gd, rounds_to
from proxskip.experiments.curves import HALF_DECADES, Curve, Values, log_log
from proxskip.experiments.figures import Parts, figure
from proxskip.methods import Scaffnew, SLocalGD
from proxskip.methods.registry import METHODS, title
from proxskip.problems.federated import Problem
from proxskip.report.figures import Panel, Series, Table, first_below
from proxskip.results.result import RunResult

MAX_ROUNDS = 1_000_000


Rows = Mapping[float, Values]
"""What was measured of one method, by kappa."""


@dataclass(frozen=True, slots=True)
class Table1Entry:
    """A row of the table: a method with its step size.

    Args:
        paper: its name in the paper's table.
        exponent: of kappa in the paper's number of rounds; None without a linear rate.
        figure: whether its step size is that of the paper's figures.
        step: the formula of the step size, or "table" for the table's.
    """

    method: str
    paper: str
    exponent: float | None
    figure: bool = False
    step: str = "table"

    @property
    def label(self) -> str:
        return title(self.method) + ("" if self.step == "table" else f", gamma = {self.step}")


ENTRIES = (
    Table1Entry("gd", "GD", 1.0),
    Table1Entry("scaffold", "Scaffold", 1.0, figure=True),
    Table1Entry("fedlin", "FedLin", 1.0, figure=True),
    Table1Entry("s-local-gd", "S-Local-GD", 1.0, figure=True),
    Table1Entry("accelerated", "accelerated GD", 0.5),
    Table1Entry("scaffnew", "Scaffnew, p = 1/sqrt(kappa)", 0.5),
    Table1Entry("local-gd", "LocalGD", None, figure=True),
    Table1Entry("scaffold", "Scaffold", 1.0, step="1/(81 K L)"),
    Table1Entry("fedlin", "FedLin", 1.0, step="1/(6 K L)"),
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
    cases = {(entry.label, k): about | {"kappa": k, "row": entry.label} for entry in ENTRIES for k in kappa}
    found = bench.measured("table1", _measure, cases)
    on_quadratics = [_series(entry, {k: found[entry.label, k] for k in kappa}) for entry in ENTRIES]
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
def _measure(bench: Bench, q: Values) -> dict[str, Any]:
    """Rounds to eps for every seed, the cost of a round, and the smallest error of a method that stalls."""
    (entry,) = [e for e in ENTRIES if e.label == q["row"]]
    problem = filling(q["clients"], q["d"], q["kappa"], spread=q["spread"])
    method = METHODS[entry.method].theory(problem, figure=entry.figure)
    rounds, floor = _rounds(method, problem, q)
    # all rounds cost the same
    trial = Stepper(method, problem)
    for _ in range(4):
        trial.step()
    spent = trial.line.ledger
    floats = (spent.floats_up + spent.floats_down) / (4 * problem.n)
    costs = {"floats": floats, "exchanges": spent.exchanges / 4, "gamma": method.gamma}
    return {"rounds": rounds, "floor": floor, **costs}


def _rounds(method: Any, problem: Problem, q: Values) -> tuple[list[int | None], float | None]:
    """Rounds to eps for every seed, and the smallest error that a method without coins reached."""
    eps, seeds = q["eps"], range(q["seeds"])
    if isinstance(method, SLocalGD):
        # over 1e4 rounds the draws average out: one seed is enough
        enough = seeds[:1] if q["kappa"] > 2e3 else seeds
        return [rounds_of_s_local_gd(method, problem, eps, seed) for seed in enough], None
    if isinstance(method, Scaffnew):
        return [rounds_to(method, problem, eps, MAX_ROUNDS, seed) for seed in seeds], None
    arrival, floor = AffineMap(method, problem).rounds_to(eps)
    return [arrival], floor


def _series(entry: Table1Entry, rows: Rows) -> Series:
    """Medians with the range over seeds; no point where a seed does not reach eps."""
    reached = {float(kappa): row["rounds"] for kappa, row in rows.items() if None not in row["rounds"]}
    y = [float(np.median(rounds)) for rounds in reached.values()]
    first = next(iter(rows.values()))
    about: dict[str, Any] = {"expected": entry.exponent, "floats per round": first["floats"]}
    about["exchanges per round"] = first["exchanges"]
    if len(y) > 1:
        about["slope"] = claims.slope(list(reached), y)
    if entry.exponent is None:
        about |= {"kappa": list(rows), "floor": [row["floor"] for row in rows.values()]}
    x = {"kappa": list(reached), "sqrt(kappa)": [math.sqrt(kappa) for kappa in reached]}
    low = high = None
    if any(len(rounds) > 1 for rounds in reached.values()):
        low = [float(min(rounds)) for rounds in reached.values()]
        high = [float(max(rounds)) for rounds in reached.values()]
    drawn_as = entry.method if entry.step == "table" else ""
    return Series(entry.label, x, y, drawn_as, low, high, "points", about)


def _data(bench: Bench, kappas: Sequence[float], eps: float, rounds: int) -> list[Series]:
    """The same on the data set: lambda = L/kappa, and eps is relative to f(x0) - f*."""
    asked: dict[tuple[str, float], Curve] = {}
    for kappa in kappas:
        problem = bench.problem(l2_relative=1.0 / kappa)
        assert problem.solution is not None
        target = eps * (problem.value(np.zeros(problem.d)) - problem.solution.f)
        for entry in TABLE_ENTRIES:
            gamma = "figure" if entry.figure else None
            flags = {"l2_relative": 1.0 / kappa, "gamma": gamma, "target": target, "rounds": rounds}
            asked[entry.label, kappa] = Curve(entry.method, f"{entry.label}, kappa = {kappa:g}", flags)
    runs = dict(zip(asked, bench.runs(list(asked.values())), strict=True))
    spent = {key: _spent(run, asked[key].flags["target"], bench.problem().n) for key, run in runs.items()}
    return [_series(entry, {kappa: spent[entry.label, kappa] for kappa in kappas}) for entry in TABLE_ENTRIES]


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
    return log_log(id, heading, drawn, xs, "rounds to eps", note)


def _floats(measured: Sequence[Series]) -> Panel:
    drawn = [replace(s, y=[s.about["floats per round"] * v for v in s.y], low=None, high=None) for s in measured if s.y]
    heading, xs = "the same quadratics: floats", {"kappa": "condition number kappa"}
    return log_log("floats", heading, drawn, xs, "floats per client to eps, up and down")


def _bias(s: Series, eps: float) -> Panel:
    """The smallest error of LocalGD, and the eps that the other methods reach."""
    x = {"kappa": [float(k) for k in s.about["kappa"]]}
    floor = Series(s.label, x, [float(v) for v in s.about["floor"]], s.method, kind="points")
    wanted = Series("eps", x, [eps] * len(floor.y), kind="bound")
    label = "the smallest |x \N{MINUS SIGN} x*|\N{SUPERSCRIPT TWO}, relative to the first"
    heading = "LocalGD on the quadratics: where it stalls"
    return log_log("bias", heading, [floor, wanted], {"kappa": "condition number kappa"}, label)


def _table(q: Values, measured: Sequence[Series]) -> Table:
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
    slow = "The rounds of GD, Scaffold, FedLin and S-Local-GD grow like kappa"
    yield _slopes(by_id["quadratics"], kappas, 1.0, "table1-slow", slow)
    fast = "The rounds of Scaffnew and accelerated GD grow like sqrt(kappa)"
    yield _slopes(by_id["quadratics"], kappas, 0.5, "table1-fast", fast)

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
    full = f"{text}: log-log slopes on the quadratics within {claims.SLOPE_TOLERANCE} of {power:g}."
    return claims.claim(id, full, claims.slopes(panel, expected, claims.SLOPE_TOLERANCE, points=kappas))
