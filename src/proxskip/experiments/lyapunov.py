"""The Lyapunov certificate: the mean of Psi_t over seeds against (1 - zeta)^t Psi_0, at fixed t.

The theorems bound E Psi_t for every t that is fixed in advance, where t counts iterations. Mostly t falls between two
communications: each client has then done some local steps of the coming round, which ``Stepper.ahead`` takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip import prox
from proxskip.experiments import claims
from proxskip.experiments.closed_form_quadratics import Stepper, filling
from proxskip.experiments.workspace import Workspace
from proxskip.methods import DecentralizedScaffnew, ProxSkip, Scaffnew, SplitSkip, SProxSkip
from proxskip.methods.steps import geometric
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import random_quadratics
from proxskip.randomness import stream
from proxskip.registry import title
from proxskip.report.figures import Claim, Experiment, Panel, Series
from proxskip.types import Array

SEEDS_PER_FILE = 10
"""Seeds whose values are cached together."""
STANDARD_ERRORS = 3.0
_NOT_IN_KEY = ("id", "title", "shows", "notes", "share", "seeds", "sampling_seeds", "data_seeds", "points")
"""Entries of the preset that change no values."""
LEARNT_BELOW = 1e-3
"""Below this relative error at the end, h has converged."""


@dataclass(frozen=True, slots=True)
class Case:
    """A method on a problem, and the factor by which its bound falls until the last t.

    Args:
        exact: with full gradients Psi and the error of h go to zero; with minibatches, to a ball.
    """

    id: str
    title: str
    method: Any
    problem: Problem
    seeds: int
    fall: float
    exact: bool = True
    on_data: bool = False

    @property
    def zeta(self) -> float:
        """The contraction per iteration, from the theorem."""
        return float(self.method.zeta(self.problem))

    @property
    def ball(self) -> float:
        """The radius gamma^2 C/zeta of the ball around the solution."""
        return float(self.method.gamma**2 * self.problem.es_C / self.zeta)

    def grid(self, points: int) -> list[int]:
        """Fixed times, denser at the beginning."""
        T = math.log(1.0 / self.fall) / -math.log1p(-self.zeta)
        return sorted({round(T * (k / (points - 1)) ** 1.5) for k in range(points)})


def run(workspace: Workspace) -> tuple[Experiment, list[Claim]]:
    """Measure every case, and judge all of them together."""
    cases = [*quadratic_cases(workspace), *data_cases(workspace)]
    panels, learned = [], []
    for case, (psi, h) in zip(cases, _measure(workspace, cases), strict=True):
        times = case.grid(workspace.preset["points"])
        panels.append(_panel(case, times, psi))
        if case.exact:
            learned.append(_learnt(case, times, h))
    label = "|h \N{MINUS SIGN} h*| / |h*|, root mean square over seeds"
    axis = {"iterations": "iterations t"}
    panels.append(Panel("h", "the control variates learn the gradients at x*", learned, "iterations", axis, label))
    keys = ("kappa", "clients", "d", "graph", "psi", "seeds", "sampling_seeds", "data_seeds")
    experiment = workspace.experiment("lyapunov", {k: workspace.preset[k] for k in keys}, panels)
    return claims.with_findings(experiment, judged(experiment))


# -- the cases ---------------------------------------------------------------------------------------------------------
def quadratic_cases(workspace: Workspace) -> list[Case]:
    """The cases with exact gradients of quadratics."""
    q = workspace.preset
    clients = filling(q["clients"], q["d"], q["kappa"])
    alone = Problem(random_quadratics(1, q["d"], L=1.0, mu=1.0 / q["kappa"], seed=4))
    lasso = alone.with_psi(prox.L1(q["psi"]))
    short = Problem(random_quadratics(1, q["d"] // 2, L=1.0, mu=1.0 / q["kappa"], seed=4))
    fused = short.with_psi(prox.L1(q["psi"]), np.diff(np.eye(q["d"] // 2), axis=0))
    gossip = DecentralizedScaffnew.theory(clients, q["graph"])
    seeds, fall = q["seeds"], q["fall"]
    return [
        Case("proxskip", "ProxSkip: lasso, a quadratic", ProxSkip.theory(lasso), lasso, seeds, fall),
        Case("scaffnew", "Scaffnew: quadratics", Scaffnew.theory(clients), clients, seeds, fall),
        Case("splitskip", "SplitSkip: fused lasso, a quadratic", SplitSkip.theory(fused), fused, seeds, fall),
        Case("decentralized", f"Decentralized Scaffnew: quadratics, {q['graph']}", gossip, clients, seeds, fall),
    ]


def data_cases(workspace: Workspace) -> list[Case]:
    """The cases on the data set: minibatches need rows."""
    q, name = workspace.preset, workspace.data
    sampling, data = q["sampling"], q["data"]
    whole = workspace.problem(method="sproxskip", **{k: sampling[k] for k in ("l2", "l2_relative", "psi")})
    assert whole.N is not None
    noisy = whole.with_batch(max(1, round(sampling["batch_share"] * whole.N)))
    real = workspace.problem(**{k: data[k] for k in ("l2", "l2_relative")})
    return [
        Case(
            "sproxskip", f"SProxSkip: {name}, minibatches of {noisy.batch}, with l1", SProxSkip.theory(noisy), noisy,
            q["sampling_seeds"], sampling["fall"], exact=False,
        ),
        Case(
            "scaffnew-data", f"Scaffnew: {name}, {real.n} clients", Scaffnew.theory(real), real,
            q["data_seeds"], data["fall"], on_data=True,
        ),
    ]  # fmt: skip


def _measure(workspace: Workspace, cases: Sequence[Case]) -> list[tuple[Array, Array]]:
    """(Psi, |h - h*|^2/|h*|^2) of each case, with one row per seed and one column per time."""
    preset = {k: v for k, v in workspace.preset.items() if k not in _NOT_IN_KEY}
    parameters = []
    for case in cases:
        about = {"case": case.id, "times": case.grid(workspace.preset["points"])} | preset
        for first in range(0, case.seeds, SEEDS_PER_FILE):
            parameters.append(about | {"first": first, "seeds": min(SEEDS_PER_FILE, case.seeds - first)})
    by_case: dict[str, list[dict[str, Any]]] = {case.id: [] for case in cases}
    for about, rows in zip(parameters, workspace.cached_values("lyapunov", parameters, _block), strict=True):
        by_case[about["case"]] += rows
    return [(np.array([r["psi"] for r in rows]), np.array([r["h"] for r in rows])) for rows in by_case.values()]


def _block(workspace: Workspace, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    quadratic = {case.id: case for case in quadratic_cases(workspace)}
    # the data are read only by those who need them
    case = quadratic.get(about["case"]) or {case.id: case for case in data_cases(workspace)}[about["case"]]
    stepper = Stepper(case.method, case.problem, 0, workspace.threads)
    seeds = range(about["first"], about["first"] + about["seeds"])
    rows = [dict(zip(("psi", "h"), trajectory(stepper, about["times"], seed), strict=True)) for seed in seeds]
    stepper.engine.close()
    return rows


def trajectory(stepper: Stepper, times: Sequence[int], seed: int) -> tuple[list[float], list[float]]:
    """Psi and the relative squared error of h after exactly t iterations, for increasing t."""
    stepper.restart(seed)
    method: Any = stepper.method
    solution = stepper.problem.solution
    assert solution is not None
    psi, h, done = [], [], 0  # done: iterations of complete rounds
    left = list(times)
    while left:
        K = geometric(stream(seed, stepper.round, "server"), method.p)  # the same draw as in the round itself
        memory = stepper.engine.memory() if left[0] < done + K else {}
        # every t within the coming round of K iterations
        while left and left[0] < done + K:
            X = stepper.ahead(left.pop(0) - done)
            x = X if len(X) > 1 else X[0]  # a single function has one x, without a row per client
            psi.append(float(method.lyapunov(stepper.problem, x, stepper.server, memory | {"x": X})))
            h.append(float(np.sum((memory["h"] - solution.h) ** 2) / np.sum(solution.h**2)))
        stepper.step()
        done += K
    return psi, h


# -- showing -----------------------------------------------------------------------------------------------------------
def _panel(case: Case, times: Sequence[int], psi: Array) -> Panel:
    mean, error = psi.mean(axis=0), psi.std(axis=0, ddof=1) / math.sqrt(len(psi))
    x = {"iterations": [float(t) for t in times]}
    # E Psi_t <= (1 - zeta)^t Psi_0, plus the ball with minibatches
    bound = [(1.0 - case.zeta) ** t * float(mean[0]) + (0.0 if case.exact else case.ball) for t in times]
    low = [max(float(v), 0.0) for v in mean - STANDARD_ERRORS * error]
    about = {"gamma": case.method.gamma, "p": case.method.p, "zeta": case.zeta, "seeds": len(psi), "ball": case.ball}
    label = "mean over seeds, with 3 standard errors"
    high = [float(v) for v in mean + STANDARD_ERRORS * error]
    drawn = [
        Series(label, x, [float(v) for v in mean], case.method.name, low, high, about=about),
        Series("the theorem's bound", x, bound, kind="bound", about={"zeta": case.zeta}),
    ]
    # the paper calls the Lyapunov function of its methods with two step sizes Phi
    label = f"{'Phi' if isinstance(case.method, SplitSkip | DecentralizedScaffnew) else 'Psi'} at iteration t"
    return Panel(case.id, case.title, drawn, "iterations", {"iterations": "iterations t"}, label)


def _learnt(case: Case, times: Sequence[int], h: Array) -> Series:
    x = {"iterations": [float(t) for t in times]}
    label = title(case.method.name) + (" on the data set" if case.on_data else "")
    y = [float(v) for v in np.sqrt(h.mean(axis=0))]
    return Series(label, x, y, "" if case.on_data else case.method.name)


# -- judging -----------------------------------------------------------------------------------------------------------
def _largest(values: Sequence[float], bound: Sequence[float]) -> float:
    """The largest ratio after t = 0; infinite if a ratio is not finite."""
    ratios = [v / b for v, b in zip(values[1:], bound[1:], strict=True)]
    return max(ratios) if all(math.isfinite(r) for r in ratios) else math.inf


def judged(experiment: Experiment) -> list[Claim]:
    """The mean is below the bound at every t, and h converges."""
    pairs: Mapping[str, Panel] = {p.id: p for p in experiment.panels if p.id != "h"}
    low = {k: _largest(p.series[0].low or p.series[0].y, p.series[1].y) for k, p in pairs.items()}
    ratios: dict[str, float | None] = {k: _largest(p.series[0].y, p.series[1].y) for k, p in pairs.items()}
    ok = all(r is not None and max(r, low[k]) <= 1.0 + 1e-9 for k, r in ratios.items())
    text = "The mean of the Lyapunov function over seeds is below its bound at every recorded t."
    words = ", ".join(f"{k} {v:.2f}" for k, v in ratios.items())
    measured = f"Largest ratio of the mean to the bound after the start: {words}."
    bound = claims.claim("lyapunov-bound", text, ok, measured, ratios)
    last: dict[str, float | None] = {s.label: s.y[-1] for s in claims.panel_of(experiment, "h").series}
    learned = all(v is not None and v <= LEARNT_BELOW for v in last.values())
    words = ", ".join(f"{k} {claims.number(v)}" for k, v in last.items())
    text = f"h_i converges to grad f_i(x*): |h - h*| falls below {LEARNT_BELOW:g} of |h*|."
    return [bound, claims.claim("lyapunov-h", text, learned, f"|h - h*|/|h*| at the end: {words}.", last)]
