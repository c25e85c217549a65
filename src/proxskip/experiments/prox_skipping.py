"""One function with an expensive prox: prox evaluations against kappa, total cost against the cost of a prox."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.linalg

from proxskip import prox
from proxskip.core.method import Method
from proxskip.experiments import claims
from proxskip.experiments.bench import Bench
from proxskip.experiments.closed_form_quadratics import Stepper
from proxskip.experiments.curves import HALF_DECADES, Flags, Values, log_log, panel
from proxskip.experiments.figures import Parts, figure
from proxskip.methods import Accelerated, ProxGD, ProxSkip
from proxskip.methods.registry import title
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import Quadratic
from proxskip.report.figures import Panel, Series, Table
from proxskip.support.randomness import generator

MAX_ROUNDS = 5_000_000
Rows = Mapping[float, Values]
"""What was measured, by kappa."""
RATIOS = (
    *(0.1, 0.31622776601683794, 1.0, 3.1622776601683795, 10.0, 31.622776601683793, 100.0, 316.22776601683796, 1000.0),
)
COMPARED: dict[str, tuple[Any, float]] = {
    "proxgd": (ProxGD, 1.0),
    "accelerated": (Accelerated, 0.5),
    "proxskip": (ProxSkip, 0.5),
}
"""The methods, each with the exponent of kappa in its number of prox evaluations."""


@figure(
    "Prox skipping without clients: f + psi with an expensive prox",
    shows="""
        ProxSkip needs about sqrt(kappa) prox evaluations without any momentum, and it is the cheapest method
        when a prox costs much more than a gradient.
    """,
    notes="""
        The prox is that of the l1 norm, which costs almost nothing; a cost is assigned to it afterwards:
        gradients + ratio times prox evaluations. The solution, its support and its subgradient are chosen
        first, so that x* is known exactly, with the directions of curvature mu and L in the support.

        The worst-case formula (1 + ratio p)/min(gamma mu, p^2) is smallest at p = sqrt(gamma mu) for every
        ratio, and there it never prefers ProxSkip to the accelerated method: kappa + ratio sqrt(kappa) against
        sqrt(kappa) + ratio sqrt(kappa). The costs that are drawn are measured, and may differ from it.

        Accelerated ProxGD is FISTA with the constant momentum for strongly convex f.
    """,
    share=(150, 10),
    quick={"kappa": HALF_DECADES[:4], "seeds": 3, "data_target": 1e-7, "data_rounds": 3000},
)
def skipping(
    bench: Bench,
    kappa: Sequence[float] = HALF_DECADES,
    d: int = 30,
    psi: float = 1e-3,
    eps: float = 1e-6,
    seeds: int = 5,
    cost_kappa: float = 1e3,
    ratios: Sequence[float] = RATIOS,
    data_l2_relative: float = 1e-3,
    data_psi: str = "l1:0.001",
    data_target: float = 1e-9,
    data_rounds: int = 20000,
) -> Parts:
    """Measure for several kappa and on the data set."""
    about = {"d": d, "psi": psi, "eps": eps, "seeds": seeds}
    cases = {(m, k): about | {"method": m, "kappa": k} for m in COMPARED for k in kappa}
    found = bench.measured("skipping", _measured, cases)
    by_method = {m: {k: found[m, k] for k in kappa} for m in COMPARED}
    of_kappa, of_cost = _kappa_panel(eps, by_method), _cost_panel(cost_kappa, ratios, by_method)
    rates = _rates(by_method)
    axes = ("prox_evals", "iterations", "passes", "seconds")
    flags: Flags = {"l2_relative": data_l2_relative, "psi": data_psi, "clients": 1}
    on_data = bench.run(list(COMPARED), axes=axes, target=data_target, rounds=data_rounds, **flags)
    yield of_kappa
    yield of_cost
    yield panel("data", f"{bench.data}: logistic loss with l1, one function", on_data, "prox_evals")
    yield rates
    yield from claims_of(of_kappa, of_cost, rates)


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


def _measured(bench: Bench, about: Values) -> dict[str, float | None]:
    problem = lasso(about["d"], about["kappa"], about["psi"])
    method = COMPARED[about["method"]][0].theory(problem)
    p = method.p if isinstance(method, ProxSkip) else 1.0
    runs = [measure(method, problem, about["eps"], seed) for seed in range(about["seeds"] if p < 1 else 1)]
    parameters = {"gamma": method.gamma, "p": p, "zeta": method.zeta(problem)}
    return {k: float(np.median([r[k] for r in runs])) for k in runs[0]} | parameters


# -- showing -----------------------------------------------------------------------------------------------------------
def _kappa_panel(eps: float, by_method: Mapping[str, Rows]) -> Panel:
    x = {"kappa": [float(k) for k in by_method["proxgd"]]}
    drawn = []
    for name, (_, power) in COMPARED.items():
        y = [r["prox"] for r in by_method[name].values()]
        about = {"slope": claims.slope(x["kappa"], y), "expected": power}
        drawn.append(Series(title(name), x, y, name, kind="points", about=about))
    log = math.log(1.0 / eps)
    for power, words in ((1.0, "kappa log(1/eps)"), (0.5, "sqrt(kappa) log(1/eps)")):
        drawn.append(Series(words, x, [log * k**power for k in x["kappa"]], kind="bound"))
    axis = {"kappa": "condition number kappa"}
    return log_log("kappa", "a lasso", drawn, axis, "prox evaluations to eps")


def _cost_panel(kappa: float, ratios: Sequence[float], by_method: Mapping[str, Rows]) -> Panel:
    x = {"ratio": [float(c) for c in ratios]}
    drawn = []
    for name in COMPARED:
        row = by_method[name][kappa]
        costs = [row["gradients"] + c * row["prox"] for c in x["ratio"]]
        drawn.append(Series(title(name), x, costs, name, kind="points", about={"p": row["p"]}))
    axis = {"ratio": "cost of a prox, in gradients"}
    heading = f"kappa = {kappa:g}: total cost"
    return log_log("cost", heading, drawn, axis, "total cost to eps, in gradients")


def _rates(by_method: Mapping[str, Rows]) -> Table:
    rows: list[list[Any]] = []
    for name in COMPARED:
        for kappa, r in by_method[name].items():
            per_prox = r["zeta"] / r["p"]
            costs = [r["prox"], r["gradients"]]
            rows.append([title(name), kappa, *costs, r["zeta"], r["rate an iteration"], per_prox, r["rate a prox"]])
    columns = ["method", "kappa", "prox evaluations", "gradients", "rate per iteration, theory", "measured",
               "rate per prox, theory", "measured"]  # fmt: skip
    note = "A rate is minus the logarithm of the factor by which |x - x*|^2 falls (in theory: the Lyapunov function)."
    return Table("rates", "Contraction rates, theory and measurement", columns, rows, note)


# -- judging -----------------------------------------------------------------------------------------------------------
def claims_of(of_kappa: Panel, of_cost: Panel, rates: Table) -> Iterator[claims.Asserted]:
    """Slopes, rates, and the cheapest method."""
    expected = {title(name): power for name, (_, power) in COMPARED.items()}
    yield claims.claim(
        "skipping-slopes",
        "Prox evaluations grow like kappa for ProxGD and like sqrt(kappa) for accelerated ProxGD and ProxSkip: "
        f"slopes within {claims.SLOPE_TOLERANCE}.",
        claims.slopes(of_kappa, expected, claims.SLOPE_TOLERANCE),
    )
    yield claims.claim("skipping-rates", "No method contracts more slowly than its theorem says.", _no_slower(rates))
    drawn = {s.method: s for s in of_cost.series}
    dearest = drawn["proxskip"].x["ratio"][-1]
    yield claims.claim(
        "skipping-cost",
        f"ProxSkip with its theoretical p is the cheapest method when a prox costs {dearest:g} gradients.",
        _cheapest(drawn),
    )


def _no_slower(table: Table) -> claims.Finding:
    theory, rate = table.columns.index("rate per iteration, theory"), table.columns.index("measured")
    ratios: claims.Numbers = {}
    for name in dict.fromkeys(str(row[0]) for row in table.rows):
        of_method = [float(r[rate] or 0) / float(r[theory] or math.nan) for r in table.rows if r[0] == name]
        ratios[name] = min(of_method) if all(map(math.isfinite, of_method)) else None
    holds = all(r is not None and r >= 1 for r in ratios.values())
    words = claims.listed(ratios, lambda v: "no value" if v is None else f"{v:.1f}")
    return claims.Finding(holds, f"Smallest ratio of the measured rate to the theoretical one: {words}.", ratios)


def _cheapest(drawn: Mapping[str, Series]) -> claims.Finding:
    ours, other = drawn["proxskip"], drawn["accelerated"]
    holds = all(ours.y[-1] < s.y[-1] for name, s in drawn.items() if name != "proxskip")
    gain = other.y[-1] / ours.y[-1]
    measured = f"Accelerated ProxGD then costs {gain:.1f} times as much"
    # the first ratio at which ProxSkip is cheaper
    cross = next((c for c, a, b in zip(ours.x["ratio"], ours.y, other.y, strict=True) if a < b), None)
    measured += "." if cross is None else f"; ProxSkip is cheaper from a ratio of {cross:.3g} on."
    return claims.Finding(holds, measured, {"gain": gain, "cheaper from": cross})
