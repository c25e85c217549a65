"""One function with an expensive prox: prox evaluations against kappa, total cost against the cost of a prox."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.linalg

from proxskip import prox
from proxskip.experiments import claims
from proxskip.experiments.closed_form_quadratics import Stepper
from proxskip.experiments.curves_from_runs import panel, series
from proxskip.experiments.workspace import RunRequest, Workspace
from proxskip.interfaces import Method
from proxskip.methods import Accelerated, ProxGD, ProxSkip
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import Quadratic
from proxskip.randomness import generator
from proxskip.registry import title
from proxskip.report.figures import Claim, Experiment, Panel, Series, Table

SLOPE_TOLERANCE = 0.1
MAX_ROUNDS = 5_000_000
Rows = Sequence[Mapping[str, Any]]
COMPARED: dict[str, tuple[Any, float]] = {
    "proxgd": (ProxGD, 1.0),
    "accelerated": (Accelerated, 0.5),
    "proxskip": (ProxSkip, 0.5),
}
"""The methods, each with the exponent of kappa in its number of prox evaluations."""


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Measure for several kappa and on the data set."""
    q = workspace.preset
    about = {k: q[k] for k in ("d", "psi", "eps", "seeds")}
    parameters = [about | {"method": m, "kappa": kappa} for m in COMPARED for kappa in q["kappa"]]
    rows = iter(workspace.cached_values("skipping", parameters, _measured))
    by_method = {m: [next(rows) for _ in q["kappa"]] for m in COMPARED}
    panels = [_kappa_panel(q, by_method), _cost_panel(q, by_method), _data(workspace)]
    experiment = workspace.experiment(
        "skipping", about | {"cost_kappa": q["cost_kappa"]}, panels, [_rates(q, by_method)]
    )
    return claims.with_findings(experiment, judged(experiment))


# -- measuring ---------------------------------------------------------------------------------------------------------
def lasso(d: int, kappa: float, lam: float, seed: int = 0) -> Problem:
    """A quadratic plus ``lam`` |x|_1 with a known solution: half of its entries are 1 or -1, the others 0.

    Two coordinates of the support have the curvatures mu = 1/kappa and L = 1; a rotation mixes all others.
    """
    rng = generator(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((d - 2, d - 2)))
    rest = (Q * np.geomspace(1.0 / kappa, 1.0, d - 2)) @ Q.T
    H = scipy.linalg.block_diag(np.diag([1.0 / kappa, 1.0]), (rest + rest.T) / 2)
    signs = np.where(rng.random(d) < 0.5, -1.0, 1.0)
    x = np.where(np.arange(d) < d // 2, signs, 0.0)
    # a subgradient of the l1 norm at x, so that x is optimal; strictly inside (-1, 1) off the support
    subgradient = np.where(x != 0, signs, 0.8 * signs * rng.random(d))
    return Problem([Quadratic(H, H @ x + lam * subgradient)]).with_psi(prox.L1(lam))


def measure(method: Method, problem: Problem, eps: float, seed: int) -> dict[str, float]:
    """Proxes and gradients to eps, and the rates of |x - x*|^2 per prox and per iteration after sqrt(eps)."""
    s = Stepper(method, problem, seed)
    spent, start = s.line.ledger, s.error
    half: tuple[float, int, int] | None = None
    while s.round < MAX_ROUNDS:
        s.step()
        error = s.error / start
        if half is None and error <= math.sqrt(eps):
            half = (error, spent.prox_evals, spent.iterations)
        if error <= eps and half is not None and spent.prox_evals > half[1]:
            break
    assert half is not None
    fall = math.log(half[0] / error)
    return {  # these keys are part of the cached values
        "prox": spent.prox_evals,
        "gradients": spent.iterations,
        "rate a prox": fall / (spent.prox_evals - half[1]),
        "rate an iteration": fall / (spent.iterations - half[2]),
    }


def _measured(workspace: Workspace, about: Mapping[str, Any]) -> dict[str, float | None]:
    problem = lasso(about["d"], about["kappa"], about["psi"])
    method = COMPARED[about["method"]][0].theory(problem)
    p = method.p if isinstance(method, ProxSkip) else 1.0
    runs = [measure(method, problem, about["eps"], seed) for seed in range(about["seeds"] if p < 1 else 1)]
    parameters = {"gamma": method.gamma, "p": p, "zeta": method.zeta(problem)}
    return {k: float(np.median([r[k] for r in runs])) for k in runs[0]} | parameters


def _data(workspace: Workspace) -> Panel:
    """The same three methods on the data set, as runs."""
    q = workspace.preset["data"]
    flags = {k: q[k] for k in ("l2", "l2_relative", "psi")}
    stop = {"target": q["target"], "rounds": q["rounds"]}
    runs = workspace.runs([RunRequest(title(name), name, {}, flags | {"clients": 1}, stop) for name in COMPARED])
    axes = ("prox", "iterations", "passes", "seconds")
    drawn = [series(title(name), [r], axes=axes) for name, r in zip(COMPARED, runs, strict=True)]
    return panel("data", f"{workspace.data}: logistic loss with l1, one function", drawn, "prox", axes)


# -- showing -----------------------------------------------------------------------------------------------------------
def _kappa_panel(q: Mapping[str, Any], by_method: Mapping[str, Rows]) -> Panel:
    x = {"kappa": [float(k) for k in q["kappa"]]}
    drawn = []
    for name, (_, power) in COMPARED.items():
        y = [r["prox"] for r in by_method[name]]
        about = {"slope": claims.slope(x["kappa"], y), "expected": power}
        drawn.append(Series(title(name), x, y, name, kind="points", about=about))
    log = math.log(1.0 / q["eps"])
    for power, words in ((1.0, "kappa log(1/eps)"), (0.5, "sqrt(kappa) log(1/eps)")):
        drawn.append(Series(words, x, [log * k**power for k in x["kappa"]], kind="bound"))
    axis = {"kappa": "condition number kappa"}
    return Panel("kappa", "a lasso", drawn, "kappa", axis, "prox evaluations to eps", "log", "log")


def _cost_panel(q: Mapping[str, Any], by_method: Mapping[str, Rows]) -> Panel:
    x, at, drawn = {"ratio": [float(c) for c in q["ratios"]]}, q["kappa"].index(q["cost_kappa"]), []
    for name in COMPARED:
        row = by_method[name][at]
        costs = [row["gradients"] + c * row["prox"] for c in x["ratio"]]
        drawn.append(Series(title(name), x, costs, name, kind="points", about={"p": row["p"]}))
    axis = {"ratio": "cost of a prox, in gradients"}
    heading = f"kappa = {q['cost_kappa']:g}: total cost"
    return Panel("cost", heading, drawn, "ratio", axis, "total cost to eps, in gradients", "log", "log")


def _rates(q: Mapping[str, Any], by_method: Mapping[str, Rows]) -> Table:
    rows: list[list[Any]] = []
    for name in COMPARED:
        for kappa, r in zip(q["kappa"], by_method[name], strict=True):
            rows.append(
                [title(name), kappa, r["prox"], r["gradients"], r["zeta"], r["rate an iteration"], r["zeta"] / r["p"],
                 r["rate a prox"]]
            )  # fmt: skip
    columns = ["method", "kappa", "prox evaluations", "gradients", "rate per iteration, theory", "measured",
               "rate per prox, theory", "measured"]  # fmt: skip
    note = "A rate is minus the logarithm of the factor by which |x - x*|^2 falls (in theory: the Lyapunov function)."
    return Table("rates", "Contraction rates, theory and measurement", columns, rows, note)


# -- judging -----------------------------------------------------------------------------------------------------------
def judged(experiment: Experiment) -> list[Claim]:
    """Slopes, rates, and the cheapest method."""
    expected = {title(name): power for name, (_, power) in COMPARED.items()}
    slopes = claims.slopes(claims.panel_of(experiment, "kappa"), expected, SLOPE_TOLERANCE)
    text = (
        "Prox evaluations grow like kappa for ProxGD and like sqrt(kappa) for accelerated ProxGD and ProxSkip: "
        f"slopes within {SLOPE_TOLERANCE}."
    )
    return [
        claims.claim("skipping-slopes", text, slopes.holds, slopes.measured, slopes.numbers),
        _no_slower(experiment),
        _cheapest(experiment),
    ]


def _no_slower(experiment: Experiment) -> Claim:
    table = next(t for t in experiment.tables if t.id == "rates")
    theory, rate = table.columns.index("rate per iteration, theory"), table.columns.index("measured")
    ratios: dict[str, float | None] = {}
    for name in dict.fromkeys(str(row[0]) for row in table.rows):
        of_method = [float(r[rate] or 0) / float(r[theory] or math.nan) for r in table.rows if r[0] == name]
        ratios[name] = min(of_method) if all(map(math.isfinite, of_method)) else None
    ok = all(r is not None and r >= 1 for r in ratios.values())
    words = ", ".join(f"{k} {'no value' if v is None else f'{v:.1f}'}" for k, v in ratios.items())
    text = "No method contracts more slowly than its theorem says."
    measured = f"Smallest ratio of the measured rate to the theoretical one: {words}."
    return claims.claim("skipping-rates", text, ok, measured, ratios)


def _cheapest(experiment: Experiment) -> Claim:
    drawn = {s.method: s for s in claims.panel_of(experiment, "cost").series if s.method}
    ours, other = drawn["proxskip"], drawn["accelerated"]
    ratio = ours.x["ratio"][-1]
    ok = all(ours.y[-1] < s.y[-1] for name, s in drawn.items() if name != "proxskip")
    # the first ratio at which ProxSkip is cheaper
    cross = next((c for c, a, b in zip(ours.x["ratio"], ours.y, other.y, strict=True) if a < b), None)
    gain = other.y[-1] / ours.y[-1]
    text = f"ProxSkip with its theoretical p is the cheapest method when a prox costs {ratio:g} gradients."
    measured = f"Accelerated ProxGD then costs {gain:.1f} times as much"
    measured += f"; ProxSkip is cheaper from a ratio of {cross:.3g} on." if cross is not None else "."
    return claims.claim("skipping-cost", text, ok, measured, {"gain": gain, "cheaper from": cross})
