"""The Lyapunov certificate: the mean of Psi_t over seeds against (1 - zeta)^t Psi_0, at fixed t.

The theorems bound E Psi_t for every t that is fixed in advance, where t counts iterations. Mostly t falls between two
communications: each client has then done some local steps of the coming round, which ``Stepper.ahead`` takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxskip import prox
from proxskip.experiments import claims
from proxskip.experiments.bench import Bench
from proxskip.experiments.closed_form_quadratics import Stepper, filling
from proxskip.experiments.curves import Values
from proxskip.experiments.figures import Parts, figure
from proxskip.methods import DecentralizedScaffnew, ProxSkip, Scaffnew, SplitSkip, SProxSkip
from proxskip.methods.registry import title
from proxskip.methods.steps import geometric
from proxskip.problems.federated import Problem
from proxskip.problems.quadratic import random_quadratics
from proxskip.report.figures import Panel, Series
from proxskip.support.randomness import stream
from proxskip.types import Array

SEEDS_PER_FILE = 10
"""Seeds whose values are cached together."""
STANDARD_ERRORS = 3.0
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


@figure(
    "Lyapunov certificate: the Lyapunov functions of the theorems against their bounds",
    shows="""
        The mean of the Lyapunov function over seeds stays below (1 - zeta)^t times its initial value, as the
        theorems say, and the control variates learn the gradients at the solution.
    """,
    notes="""
        t counts iterations, not communications, and the theorems are about a t that is fixed in advance. So Psi
        is evaluated at fixed t, which mostly falls between two communications: the clients then have different
        iterates, and Psi depends on all of them. (At the random times of the communications another inequality
        holds.)

        The bounds can be loose by a factor of two in the rate, because a gradient step contracts squared
        distances by (1 - gamma mu)^2, not by 1 - gamma mu.

        With minibatches the bound is (1 - zeta)^t Psi_0 + gamma^2 C/zeta with A = 2 L_b and C = 2 sigma*^2; A =
        L_b with C = sigma*^2 would be wrong in general.
    """,
    share=(120, 10),
    quick={"seeds": 20, "sampling_seeds": 20, "data_seeds": 6},
)
def lyapunov(
    bench: Bench,
    kappa: float = 100.0,
    clients: int = 9,
    d: int = 16,
    graph: str = "torus",
    psi: float = 0.02,
    fall: float = 1e-6,
    seeds: int = 200,
    sampling_l2_relative: float = 1e-2,
    sampling_psi: str = "l1:0.001",
    sampling_share: float = 0.05,
    sampling_fall: float = 1e-4,
    sampling_seeds: int = 60,
    data_l2_relative: float = 1e-2,
    data_fall: float = 1e-4,
    data_seeds: int = 20,
    points: int = 40,
) -> Parts:
    """Measure every case, and judge all of them together."""
    q: dict[str, Any] = {
        "kappa": kappa,
        "clients": clients,
        "d": d,
        "graph": graph,
        "psi": psi,
        "fall": fall,
        "sampling_l2_relative": sampling_l2_relative,
        "sampling_psi": sampling_psi,
        "sampling_share": sampling_share,
        "sampling_fall": sampling_fall,
        "data_l2_relative": data_l2_relative,
        "data_fall": data_fall,
    }
    counts = dict.fromkeys(("proxskip", "scaffnew", "splitskip", "decentralized"), seeds)
    counts |= {"sproxskip": sampling_seeds, "scaffnew-data": data_seeds}
    panels, learned = [], []
    cases = quadratic_cases(q) | data_cases(bench, q)
    measured = _measure(bench, cases, q, counts, points)
    for id, case in cases.items():
        values, h = measured[id]
        times = case.grid(points)
        panels.append(_panel(case, times, values))
        if case.exact:
            learned.append(_learnt(case, times, h))
    label = "|h \N{MINUS SIGN} h*| / |h*|, root mean square over seeds"
    axis = {"iterations": "iterations t"}
    panels.append(Panel("h", "the control variates learn the gradients at x*", learned, "iterations", axis, label))
    yield from panels
    yield from claims_of(panels)


# -- the cases ---------------------------------------------------------------------------------------------------------
def quadratic_cases(q: Values) -> dict[str, Case]:
    """The cases with exact gradients of quadratics."""
    clients = filling(q["clients"], q["d"], q["kappa"])
    alone = Problem(random_quadratics(1, q["d"], L=1.0, mu=1.0 / q["kappa"], seed=4))
    lasso = alone.with_psi(prox.L1(q["psi"]))
    short = Problem(random_quadratics(1, q["d"] // 2, L=1.0, mu=1.0 / q["kappa"], seed=4))
    fused = short.with_psi(prox.L1(q["psi"]), np.diff(np.eye(q["d"] // 2), axis=0))
    gossip = DecentralizedScaffnew.theory(clients, graph=q["graph"])
    cases = [
        Case("proxskip", "ProxSkip: lasso, a quadratic", ProxSkip.theory(lasso), lasso, q["fall"]),
        Case("scaffnew", "Scaffnew: quadratics", Scaffnew.theory(clients), clients, q["fall"]),
        Case("splitskip", "SplitSkip: fused lasso, a quadratic", SplitSkip.theory(fused), fused, q["fall"]),
        Case("decentralized", f"Decentralized Scaffnew: quadratics, {q['graph']}", gossip, clients, q["fall"]),
    ]
    return {case.id: case for case in cases}


def data_cases(bench: Bench, q: Values) -> dict[str, Case]:
    """The cases on the data set: minibatches need rows."""
    whole = bench.problem(method="sproxskip", l2_relative=q["sampling_l2_relative"], psi=q["sampling_psi"])
    assert whole.N is not None
    noisy = whole.with_batch(max(1, round(q["sampling_share"] * whole.N)))
    real = bench.problem(l2_relative=q["data_l2_relative"])
    sampled = f"SProxSkip: {bench.data}, minibatches of {noisy.batch}, with l1"
    clients = f"Scaffnew: {bench.data}, {real.n} clients"
    cases = [
        Case("sproxskip", sampled, SProxSkip.theory(noisy), noisy, q["sampling_fall"], exact=False),
        Case("scaffnew-data", clients, Scaffnew.theory(real), real, q["data_fall"], on_data=True),
    ]
    return {case.id: case for case in cases}


def _measure(
    bench: Bench, cases: Mapping[str, Case], q: Values, seeds: Mapping[str, int], points: int
) -> dict[str, tuple[Array, Array]]:
    """(Psi, |h - h*|^2/|h*|^2) of each case, with one row per seed and one column per time."""
    blocks = {}
    for id, case in cases.items():
        times = case.grid(points)
        for first in range(0, seeds[id], SEEDS_PER_FILE):
            count = min(SEEDS_PER_FILE, seeds[id] - first)
            blocks[id, first] = {"case": id, "times": times, "settings": q, "first": first, "seeds": count}
    psi: dict[str, list[list[float]]] = {id: [] for id in cases}
    h: dict[str, list[list[float]]] = {id: [] for id in cases}
    for (id, _), block in bench.measured("lyapunov", _block, blocks).items():
        psi[id] += block["psi"]
        h[id] += block["h"]
    return {id: (np.array(psi[id]), np.array(h[id])) for id in cases}


def _block(bench: Bench, about: Values) -> dict[str, list[list[float]]]:
    """Psi and the error of h for some seeds of a case."""
    cases = quadratic_cases(about["settings"])
    if about["case"] not in cases:  # the data are read only by those who need them
        cases = data_cases(bench, about["settings"])
    case = cases[about["case"]]
    stepper = Stepper(case.method, case.problem, 0, bench.threads)
    seeds = range(about["first"], about["first"] + about["seeds"])
    found = [trajectory(stepper, about["times"], seed) for seed in seeds]
    stepper.engine.close()
    return {"psi": [psi for psi, _ in found], "h": [h for _, h in found]}


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
    mean = psi.mean(axis=0)
    error = STANDARD_ERRORS * psi.std(axis=0, ddof=1) / math.sqrt(len(psi))
    low, high = np.maximum(mean - error, 0.0), mean + error
    # E Psi_t <= (1 - zeta)^t Psi_0, plus the ball with minibatches
    ball = 0.0 if case.exact else case.ball
    bound = [(1.0 - case.zeta) ** t * float(mean[0]) + ball for t in times]
    x = {"iterations": [float(t) for t in times]}
    about = {"gamma": case.method.gamma, "p": case.method.p, "zeta": case.zeta, "seeds": len(psi), "ball": case.ball}
    label = "mean over seeds, with 3 standard errors"
    drawn = [
        Series(label, x, mean.tolist(), case.method.name, low.tolist(), high.tolist(), about=about),
        Series("the theorem's bound", x, bound, kind="bound", about={"zeta": case.zeta}),
    ]
    # the paper calls the Lyapunov function of its methods with two step sizes Phi
    has_two_steps = isinstance(case.method, SplitSkip | DecentralizedScaffnew)
    letter = "Phi" if has_two_steps else "Psi"
    return Panel(case.id, case.title, drawn, "iterations", {"iterations": "iterations t"}, f"{letter} at iteration t")


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


def claims_of(panels: Sequence[Panel]) -> Iterator[claims.Asserted]:
    """The mean is below the bound at every t, and h converges."""
    pairs = {p.id: p.series for p in panels if p.id != "h"}
    low = {id: _largest(mean.low or mean.y, bound.y) for id, (mean, bound) in pairs.items()}
    ratios: claims.Numbers = {id: _largest(mean.y, bound.y) for id, (mean, bound) in pairs.items()}
    holds = all(r is not None and max(r, low[id]) <= 1.0 + 1e-9 for id, r in ratios.items())
    words = ", ".join(f"{id} {r:.2f}" for id, r in ratios.items())
    measured = f"Largest ratio of the mean to the bound after the start: {words}."
    text = "The mean of the Lyapunov function over seeds is below its bound at every recorded t."
    yield claims.claim("lyapunov-bound", text, claims.Finding(holds, measured, ratios))

    (learnt,) = [p.series for p in panels if p.id == "h"]
    last: claims.Numbers = {s.label: s.y[-1] for s in learnt}
    holds = all(v is not None and v <= LEARNT_BELOW for v in last.values())
    measured = f"|h - h*|/|h*| at the end: {claims.listed(last)}."
    text = f"h_i converges to grad f_i(x*): |h - h*| falls below {LEARNT_BELOW:g} of |h*|."
    yield claims.claim("lyapunov-h", text, claims.Finding(holds, measured, last))
