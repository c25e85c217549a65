"""The experiments: closed forms are the methods' own trajectories, doctored curves fail, and what one method saves is so."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip import theory
from proxskip.experiments import closed_form_quadratics, decentralized, lyapunov, prox_skipping, table1
from proxskip.experiments.bench import Bench
from proxskip.experiments.closed_form_quadratics import AffineMap, ClosedFormEngine, Stepper, filling, rounds_to
from proxskip.experiments.figures import experiment
from proxskip.methods.registry import METHODS
from proxskip.methods.steps import geometric
from proxskip.report.figures import Claim, Experiment, Series
from proxskip.running.ledger import Ledger
from proxskip.support.randomness import stream
from proxskip.types import Array
from support.comparing import close
from support.methods import NAMED
from support.tiers import thinned

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("experiments")]

TOL = 1e-10
STEADY = ("gd", "accelerated", "scaffold", "fedlin", "fedlin-own", "diging", "diging-complete", "extra", "local-gd")
WITH_COINS = ("s-local-gd", "scaffnew", "scaffnew-weighted", "decentralized")


def small(kappa: float = 60.0) -> ps.Problem:
    return filling(4, 6, kappa, seed=2)


def after(method: Any, problem: ps.Problem, rounds: int) -> Array:
    """x, or all x_i, after some rounds."""
    s = Stepper(method, problem, 3)
    for _ in range(rounds):
        s.step()
    return np.array(s.X).ravel()


# -- the closed form ---------------------------------------------------------------------------------------------------
def test_quadratics_fill_their_interval() -> None:
    problem = filling(7, 20, 1e4)
    assert np.allclose(problem.L_i, 1.0)
    assert np.allclose(problem.mu_i, 1e-4)
    assert (problem.whole.L, problem.whole.mu) == pytest.approx((1.0, 1e-4))
    assert np.ptp([f.H for f in problem.clients], axis=0).max() > 0.1


@pytest.mark.parametrize("name", [*STEADY, *WITH_COINS])
@pytest.mark.filterwarnings("ignore::proxskip.UnsafeStepWarning")
def test_the_closed_form_is_the_methods_trajectory(name: str) -> None:
    """The same x, h and ledger as the reference engine, which takes every local step by itself."""
    problem = small()
    method = NAMED[name].make(problem)
    ours, theirs = (ps.run(method, problem, rounds=30, seed=3, engine=e) for e in (ClosedFormEngine(), "reference"))
    assert close(ours.x, theirs.x, TOL)
    if theirs.h is not None:
        assert close(ours.h, theirs.h, 1e-9)
    counts = [c for c in theirs.trace.columns if c in Ledger.__dataclass_fields__ and c != "seconds"]
    assert all(ours.trace[c].tolist() == theirs.trace[c].tolist() for c in counts)
    assert close(after(method, problem, 30).reshape(-1, problem.d).mean(axis=0), theirs.x, TOL)


@pytest.mark.parametrize("name", STEADY)
def test_rounds_to_eps_by_powers_and_by_rounds(name: str) -> None:
    stalls = name == "local-gd"
    problem, eps = small(20.0), 1e-4 if stalls else 1e-2
    method = NAMED[name].make(problem)
    found, floor = AffineMap(method, problem).rounds_to(eps)
    assert found == rounds_to(method, problem, eps, 3000 if stalls else 100_000)
    assert (found is None) == stalls
    if stalls:
        assert problem.solution is not None
        x = after(method, problem, 3000)
        assert floor == pytest.approx(np.sum((x - problem.solution.x) ** 2) / np.sum(problem.solution.x**2))


@pytest.mark.parametrize("seed", [0, 5])
def test_rounds_to_eps_by_factors(seed: int) -> None:
    problem = small()
    method = ps.SLocalGD.theory(problem, figure=True)
    rounds = closed_form_quadratics.rounds_of_s_local_gd(method, problem, 1e-4, seed)
    assert rounds == rounds_to(method, problem, 1e-4, 60_000, seed) is not None


def test_what_diverges_or_is_no_number_never_arrives() -> None:
    problem = small()
    assert rounds_to(ps.GD(2.5), problem, 1e-4, 10_000) is None
    assert AffineMap(ps.GD(2.5), problem).rounds_to(1e-4)[0] is None
    affine = AffineMap(ps.GD(1.0), problem)
    affine.M[0, 0, 0] = np.nan
    assert affine.rounds_to(1e-4)[0] is None


# -- Psi at a fixed t --------------------------------------------------------------------------------------------------
def iteration_form(problem: ps.Problem, gamma: float, p: float, times: list[int], seed: int) -> list[float]:
    """Scaffnew as the paper writes it: one step of everybody, then a coin."""
    s = problem.solution
    assert s is not None
    heads, r = set(), 0
    while max(heads, default=-1) < times[-1]:
        heads.add(max(heads, default=-1) + geometric(stream(seed, r, "server"), p))
        r += 1
    X, H = np.zeros((problem.n, problem.d)), np.zeros((problem.n, problem.d))
    out = []
    for t in range(times[-1] + 1):
        if t in times:
            psi = np.sum((X - s.x) ** 2) + (gamma / p) ** 2 * np.sum((H - s.h) ** 2)
            out.append(float(psi) / problem.n)
        G = np.stack([f.gradient(x) for f, x in zip(problem.clients, X, strict=True)])
        xhat = X - gamma * (G - H)
        X = np.tile((xhat - gamma / p * H).mean(axis=0), (problem.n, 1)) if t in heads else xhat
        H = H + p / gamma * (X - xhat)
    return out


def test_psi_at_fixed_times_is_that_of_the_iteration_form() -> None:
    problem = small()
    method = ps.Scaffnew.theory(problem)
    times = [0, 1, 2, 3, 5, 8, 13, 21, 40, 77, 150]
    for seed in (0, 4):
        psi, h = lyapunov.trajectory(Stepper(method, problem), times, seed)
        assert close(psi, iteration_form(problem, method.gamma, method.p, times, seed), TOL)
        assert h[0] == 1.0
        assert h[-1] < 0.1


@pytest.mark.slow
def test_the_noise_ball_is_nearly_reached() -> None:
    """Where it is nearly tight, the mean of Psi is within a factor 3 of gamma^2 C/zeta: a C nine times off fails.

    All rows have the same curvature, so that minibatches add noise that does not depend on x, and with
    p = sqrt(gamma mu) both parts of Psi contract at the rate zeta. Half of the ball is lost to C = 2 sigma*^2.
    """
    rng = np.random.Generator(np.random.Philox(2))
    labels = [rng.choice([-1.0, 1.0], size=20) + 3.0 * i for i in range(16)]
    problem = ps.Problem([ps.LeastSquares(np.ones((20, 1)), b) for b in labels]).with_batch(4)
    gamma = 1.0 / problem.es_A
    method = ps.Scaffnew(gamma, theory.best_p(gamma, problem.mu))
    zeta = method.claims(problem).zeta
    assert zeta == pytest.approx(gamma * problem.mu)
    ball = gamma**2 * problem.es_C / zeta
    times = list(range(40, 1040))  # by then (1 - zeta)^t is below rounding
    psi, _ = lyapunov.trajectory(Stepper(method, problem), times, 1)
    assert 1 / 3 < np.mean(psi) / ball < 1


# -- the experiments, small --------------------------------------------------------------------------------------------
SMALL: dict[str, dict[str, Any]] = {
    "table1": {"kappa": [1e2, 1e3], "d": 12, "clients": 6, "seeds": 2,
               "data_kappa": [30.0, 100.0], "data_eps": 0.1, "data_rounds": 200},
    "lyapunov": {"kappa": 30.0, "clients": 6, "d": 8, "graph": "ring", "seeds": 12, "sampling_seeds": 12, "data_seeds": 3, "points": 12,
                 "sampling_l2_relative": 0.1, "sampling_fall": 1e-2, "data_l2_relative": 0.1},
    "decentralized": {"clients": 16, "d": 6, "candidates": 5, "seeds": 1, "kappa": [10.0, 1000.0]},
    "skipping": {"kappa": [1e2, 316.22776601683796, 1e3], "seeds": 3, "d": 16,
                 "data_l2_relative": 0.1, "data_target": 1e-3, "data_rounds": 200},
}  # fmt: skip
CLAIMS: dict[str, Callable[[Experiment], Any]] = {
    "table1": lambda e: table1.claims_of(e.panels),
    "lyapunov": lambda e: lyapunov.claims_of(e.panels),
    "decentralized": lambda e: decentralized.claims_of(e.panels),
    "skipping": lambda e: prox_skipping.claims_of(*e.panels[:2], *e.tables),
}


def made_in(name: str, out: Path, **other: Any) -> tuple[Experiment, list[Claim]]:
    base = {"clients": 20, "split": "group", "weights": "equal"}
    return experiment(name).make(Bench(out, "digits", base=base, quick=True, threads=1), **SMALL[name] | other)


def verdicts_of(name: str, made: Experiment) -> dict[str, str]:
    return {c.id: c.verdict("digits") for c in CLAIMS[name](made)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Experiment, list[Claim], Path]]:
    """An experiment by name with its claims and its folder, made when it is first asked for."""

    def make(name: str) -> tuple[Experiment, list[Claim], Path]:
        folder = tmp_path_factory.mktemp(name)
        return (*made_in(name, folder), folder)

    return functools.cache(make)


@pytest.mark.parametrize("name", thinned(SMALL, 2))
def test_the_claims_hold(name: str, made: Any) -> None:
    experiment, found, _ = made(name)
    assert {c.id: c.verdict for c in found if c.verdict not in ("PASS", "REPORTED")} == {}
    assert sum(c.verdict == "PASS" for c in found) >= 2
    assert all(c.experiment == name and c.measured for c in found)
    assert [c.measured in experiment.sentence for c in found] == [True] + [False] * (len(found) - 1)
    assert len(experiment.panels) >= 2
    assert all(np.all(np.isfinite(s.y)) for panel in experiment.panels for s in panel.series)


@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_goes_on_where_it_was(name: str, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, found, folder = made(name)
    monkeypatch.setattr(Stepper, "step", None)
    monkeypatch.setattr("proxskip.running.many_runs.run", None)
    other, verdicts = made_in(name, folder)
    assert other.panels == experiment.panels
    assert verdicts == found


def doctored(experiment: Experiment, panel: str, method: str, change: Callable[[Series], Series | None]) -> Experiment:
    (old,) = [p for p in experiment.panels if p.id == panel]
    assert any(s.method == method for s in old.series), f"{panel} has no {method}"
    curves = [change(s) if s.method == method else s for s in old.series]
    new = replace(old, series=[s for s in curves if s is not None])
    return replace(experiment, panels=[new if p is old else p for p in experiment.panels])


def tilted(s: Series, by: float = 0.4) -> Series:
    axis = next(iter(s.x))
    return replace(s, y=[v * (x / s.x[axis][0]) ** by for x, v in zip(s.x[axis], s.y, strict=True)])


def scaled(by: float, points: Any = slice(None), bar: bool = True) -> Callable[[Series], Series]:
    """Some points so many times as large, with their error bars or not."""

    def change(s: Series) -> Series:
        y = np.array(s.y)
        y[points] *= by
        low = None if s.low is None else np.array(s.low)
        if low is not None and bar:
            low[points] *= by
        return replace(s, y=y.tolist(), low=None if low is None else low.tolist())

    return change


def shorter(s: Series) -> Series:
    return replace(s, x={k: v[:-1] for k, v in s.x.items()}, y=s.y[:-1])


DOCTORED = {
    "table1-slow": ("quadratics", "scaffold", lambda s: tilted(s, -0.4)),
    "table1-fast": ("quadratics", "scaffnew", tilted),
    "table1-biased": ("bias", "local-gd", scaled(1e-6)),
    "lyapunov-bound": ("scaffnew", "scaffnew", scaled(100.0, 2)),
    "lyapunov-h": ("h", "decentralized-scaffnew", scaled(1e6)),
    "decentralized-skip": ("kappa-1000", "decentralized-scaffnew", tilted),
    "decentralized-always": ("kappa-10", "decentralized-scaffnew", lambda s: tilted(s, -0.4)),
    "decentralized-gain": ("kappa-1000", "extra", scaled(0.01)),
    "skipping-slopes": ("kappa", "proxskip", tilted),
    "skipping-cost": ("cost", "proxskip", scaled(10.0)),
}
OTHERS: list[tuple[str, str, str, Any]] = [
    ("lyapunov-bound", "scaffnew", "scaffnew", scaled(float("nan"), 2)),
    ("lyapunov-bound", "scaffnew", "scaffnew", scaled(100.0, 2, bar=False)),  # its error bar reaches below the bound
    ("table1-slow", "quadratics", "scaffold", shorter),
    ("table1-slow", "quadratics", "s-local-gd", lambda s: None),  # who is left out did not show what it must
]


@pytest.mark.parametrize(
    ("claim", "panel", "method", "change"), [(claim, *about) for claim, about in DOCTORED.items()] + OTHERS
)
def test_a_doctored_curve_fails(claim: str, panel: str, method: str, change: Any, made: Any) -> None:
    name = claim.partition("-")[0]
    experiment = made(name)[0]
    before = verdicts_of(name, experiment)
    after = verdicts_of(name, doctored(experiment, panel, method, change))
    assert (before[claim], after[claim]) == ("PASS", "FAIL")
    if DOCTORED[claim] == (panel, method, change):
        assert [k for k in before if before[k] != after[k]] == [claim]


def test_a_slow_contraction_fails(made: Any) -> None:
    experiment = made("skipping")[0]
    (table,) = experiment.tables
    at = table.columns.index("measured")
    for by in (0.4, float("nan"), float("inf")):
        rows = [[by * v if j == at and k == 4 else v for j, v in enumerate(row)] for k, row in enumerate(table.rows)]
        wrong = replace(experiment, tables=[replace(table, rows=rows)])
        assert verdicts_of("skipping", wrong)["skipping-rates"] == "FAIL"


def test_the_proved_step_is_among_the_candidates() -> None:
    problem, link = small(10.0), ps.graphs.graph("ring", 4)
    proved = ps.EXTRA.theory(problem, graph=link)
    found = decentralized.tune(ps.EXTRA, problem, link, 1e-4, 1)  # of the grid, only the largest step
    assert found["proved"] == AffineMap(proved, problem).rounds_to(1e-4)[0]
    assert found["rounds"][0] <= found["proved"]
    assert decentralized.tune(ps.EXTRA, problem, link, 1e-4, 0)["gamma"] == proved.gamma


def test_wrong_theory_is_seen(made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The certificate sees a theorem that promises three times too much."""
    right = ps.Scaffnew.claims

    def wrong(self: Any, problem: Any) -> Any:
        return replace(right(self, problem), zeta=3 * right(self, problem).zeta)

    monkeypatch.setattr(ps.Scaffnew, "claims", wrong)
    _, found = made_in("lyapunov", tmp_path, sampling_seeds=2, data_seeds=2)  # it is judged by another case
    assert {c.id: c.verdict for c in found}["lyapunov-bound"] == "FAIL"


def test_the_solution_of_the_lasso_is_what_it_was_made_to_be() -> None:
    problem = prox_skipping.lasso(16, 100.0, 1e-3)
    assert problem.solution is not None
    assert set(np.round(problem.solution.x, 6)) == {-1.0, 0.0, 1.0}
    assert problem.kappa == pytest.approx(100.0)
    assert theory.best_p(1 / problem.L, problem.mu) == pytest.approx(0.1)


# -- methods compared with each other ----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("name", "claims"), [("family", 3), ("bits", 2), ("sleeping", 2), ("minibatches", 1)])
def test_what_the_others_save(name: str, claims: int, tmp_path: Path) -> None:
    made, verdicts = experiment(name).make(Bench(tmp_path, "digits", quick=True, threads=1))
    assert [c.verdict for c in verdicts if c.verdict != "REPORTED"] == ["PASS"] * claims, [c.measured for c in verdicts]
    assert {"rounds", *(("bits_up", "bits_down") if name == "bits" else ())} <= set(made.panels[0].xs)
    if name == "family":  # one point for each curve that reached eps
        curves, costs = made.panels
        ends = {
            s.label: (s.x["rounds"][-1], s.x["passes"][-1]) for s in curves.series if s.y[-1] <= made.parameters["eps"]
        }
        assert {s.label: (s.x["rounds"][0], s.y[0]) for s in costs.series} == ends


def test_every_method_has_a_marker_on_the_page() -> None:
    script = files("proxskip.report").joinpath("page.js").read_text("utf-8")
    shapes = re.search(r"const SHAPES = \{(.*?)\n\};", script, re.DOTALL)[1]  # type: ignore[index]
    markers = set(re.findall(r'^  "?(.)"?: ', shapes, re.MULTILINE))
    assert {kind.about.style.marker for kind in METHODS.values() if kind.about.style} <= markers
