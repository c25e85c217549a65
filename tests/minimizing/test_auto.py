"""APDA, and ``minimize`` that chooses its method while it runs."""

import math
import time
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip import theory
from proxskip.methods.apda import enough_steps
from proxskip.minimizing import setup
from proxskip.minimizing.auto import AutoDescent
from proxskip.running.watch import CertificateWatch
from proxskip.types import Array
from support.comparing import close
from support.machine import Machine
from support.problems import difference, quadratic, quadratics
from support.tiers import thinned

pytestmark = pytest.mark.long

SPENT = [0.0]
"""Seconds on the clock of the tests below that take ``virtual_time``."""


def spend(seconds: float) -> None:
    SPENT[0] += seconds


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only where it is spent, so that a busy machine changes no choice."""
    monkeypatch.setattr(time, "perf_counter", lambda: SPENT[0])


class Slow(ps.prox.Operator):
    """psi whose prox takes this many seconds."""

    def __init__(self, psi: Any, seconds: float) -> None:
        self.psi, self.seconds = psi, seconds

    def __call__(self, x: Array) -> float:
        return float(self.psi(x))

    def prox(self, x: Array, t: float) -> Array:
        spend(self.seconds)
        return np.asarray(self.psi.prox(x, t))


F, PSI = quadratic(1e3, 40), ps.prox.L1(1e-3)


def test_a_run_of_apda_is_not_called_stalled() -> None:
    problem = ps.Problem([quadratic(1e4, 12)], psi=ps.prox.L1(0.01))
    result = ps.run(ps.APDA.theory(problem), problem, tol=1e-8)
    assert result.success, result.message


def test_exact_local_solves_are_douglas_rachford() -> None:
    """With K large, the points z = y - gamma h follow Douglas and Rachford's map."""
    (f,), psi, gamma = quadratics(1, d=6), ps.prox.L1(0.05), 3.0
    run = ps.run(ps.APDA(gamma, K=400, balance=False), ps.Problem([f], psi=psi), rounds=12)
    x, h = np.zeros(6), np.zeros(6)
    M = np.eye(6) + gamma * f.hessian(x)
    for _ in range(12):
        y = np.linalg.solve(M, x + gamma * (h + f.b))
        h = h + (x - y) / gamma
        x = psi.prox(y - gamma * h, gamma)
    assert close(run.x, x, 1e-9)


@pytest.mark.parametrize("factor", [100.0, 1.0, 0.01, 0.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wrong_mu_costs_time_only(factor: float, seed: int) -> None:
    f = quadratic(1e4, seed=seed)
    for psi in (PSI, ps.prox.NonNegative()):
        right = ps.minimize(f, psi, method="apda", tol=1e-8)
        found = ps.minimize(f, psi, method="apda", tol=1e-8, mu=min(factor * f.mu, f.L))
        assert found.success
        assert np.linalg.norm(found.x - right.x) <= 3e-8 / f.mu
        assert found.nprox <= 4 * right.nprox


def test_few_proxes_and_not_many_gradients() -> None:
    f = quadratic(1e4)
    fista, apda, skip = (ps.minimize(f, PSI, method=m, tol=1e-8) for m in ("fista-restart", "apda", "proxskip"))
    assert fista.success
    assert apda.success
    assert 4 * apda.nprox < fista.nprox
    assert apda.nprox < skip.nprox
    assert 4 * apda.ngrad < skip.ngrad


def apda_radius(size: float, K: int) -> float:
    """The largest modulus of an eigenvalue of a round without psi, over curvatures s with gamma s up to size.

    K accelerated steps leave the share P of the distance to the local solution, and a round has the determinant P and
    the trace 2 - (1 - P)(1 + 2 a)/(1 + a), a = gamma s. P is written with cosines here.
    """
    q = np.sqrt(1 / (1 + size))
    beta = (1 - q) / (1 + q)
    a = size * np.sin(np.linspace(1e-4, np.pi / 2 - 1e-6, 20 * K + 4000)) ** 2
    w = 1 - (1 + a) / (1 + size)
    r = np.sqrt(w * beta)
    angle = np.arccos((w * (1 + beta) / (2 * r)).astype(complex))
    P = (r**K * (np.cos(K * angle) + (w / r - np.cos(angle)) / np.sin(angle) * np.sin(K * angle))).real
    half = 1 - (1 - P) * (1 + 2 * a) / (1 + a) / 2
    root = np.sqrt((half**2 - P).astype(complex))
    return float(np.maximum(np.abs(half + root), np.abs(half - root)).max())


@pytest.mark.parametrize(("size", "last"), [(1e3, 26), (3e3, 50), (1e4, 97), (1e5, 321), (1e6, None), (1e7, None)])
def test_the_guard_of_apda_is_a_table_of_spectral_radii(size: float, last: int | None) -> None:
    """What is refused has a radius above 1, what is taken has none, the default among it."""
    problem = ps.Problem([ps.Quadratic(np.array([1.0, 1e-3]), np.zeros(2))])
    default, root = enough_steps(size, 1.0), np.sqrt(size)
    tried = {1, 2, 3, 4, 5, 20, default, default + 1, *(int(share * root) for share in (0.85, 1.0, 1.05))}
    tried |= set() if last is None else {last, last + 1}
    for K in sorted(tried):
        taken = True
        try:
            ps.APDA(size, K).check(problem)
        except ps.InputError:
            taken = False
        assert taken == (apda_radius(size, K) <= 1 + 1e-9), K
        assert taken or default > K
    if last is not None:
        assert apda_radius(size, last) > 1 + 1e-6


@pytest.mark.parametrize("K", [6, 9, 22])
def test_a_round_of_apda_has_the_radius_of_the_table(K: int) -> None:
    """By probing the method itself, mode by mode."""
    gamma, s = 1e3, np.geomspace(1e-3, 1.0, 99)
    problem = ps.Problem([ps.Quadratic(s, np.zeros(99))])
    machine, rounds = Machine(ps.APDA(gamma, K, balance=False), problem), []
    for x, h in ((1.0, 0.0), (0.0, 1.0)):
        machine.put(machine.method.start(problem, np.full(99, x)), {"h": np.full((1, 99), h)})
        machine.round(0)
        rounds.append(np.stack([machine.server["x"], machine.memory["h"][0]], axis=1))
    largest = np.abs(np.linalg.eigvals(np.stack(rounds, axis=2))).max()
    assert 1 < largest == pytest.approx(theory.local_radius(gamma, 0.0, 1.0, 1 / gamma, K, s), rel=1e-8)


@pytest.mark.parametrize("model", [ps.LeastSquares, ps.Logistic])
def test_a_large_linear_model_need_not_know_its_constants(model: Any) -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((320, 260)) * np.geomspace(1, 0.2, 260)
    f = model(A, A[:, 0] > 0, l2=1e-3)
    found = ps.minimize(f, ps.prox.L1(1e-3), tol=1e-8)
    assert found.success
    assert not {"L", "L0", "mu"} & vars(f).keys(), "an eigenvalue problem of 260 unknowns was solved"
    assert f.L / 2 < found.parameters["L"] < 1.5 * f.L
    again = ps.minimize(f, ps.prox.L1(1e-3), tol=1e-8)
    assert again.parameters["L"] == f.L
    assert np.linalg.norm(found.x - again.x) <= 1e-5


@pytest.mark.parametrize("psi", [ps.prox.L1(1e-3), ps.prox.NonNegative()])
def test_the_unstable_zone_ends_with_a_status_and_not_with_a_wrong_answer(psi: Any) -> None:
    f = ps.Quadratic(np.geomspace(1 / 1.8e4, 1, 60), np.random.default_rng(0).standard_normal(60))
    unstable = ps.APDA(3 * np.sqrt(1.8e4), K=9, balance=False)
    with pytest.warns(ps.UnsafeStepWarning, match="is too small"):
        found = ps.minimize(f, psi, method=unstable, tol=1e-8, allow_unsafe_step=True)
    assert found.status in (ps.Status.DIVERGED, ps.Status.STALLED)
    assert found.certificate > 1e-8
    assert ps.minimize(f, psi, method="apda", tol=1e-8).success


def grid(side: int) -> Any:
    """Differences along both axes of a picture; its rows are not independent."""
    E, eye = difference(side), np.eye(side)
    return np.vstack([np.kron(E, eye), np.kron(eye, E)])


@pytest.mark.parametrize("factor", [100.0, 1.0, 0.01, 0.0])
@pytest.mark.parametrize("D", [difference(64), grid(8)], ids=["chain", "grid"])
def test_apda_solves_psi_of_d_whatever_mu_is_given(D: Any, factor: float) -> None:
    f = quadratic(1e3, seed=2, d=64)
    skip = ps.minimize(f, PSI, D=D, method="splitskip", p=0.1, tol=1e-7)
    found = ps.minimize(f, PSI, D=D, method="apda", tol=1e-7, mu=min(factor * f.mu, f.L))
    assert skip.success
    assert found.success
    # the certificate, computed anew
    dual = found.y - ps.prox.conjugate_prox(PSI, found.y + D @ found.x, 1.0)
    assert np.linalg.norm(f.gradient(found.x) + D.T @ found.y) + np.linalg.norm(dual) <= 1.01e-7
    assert np.linalg.norm(found.x - skip.x) <= 3e-7 / f.mu
    assert found.nprox < skip.nprox
    assert found.ngrad < skip.ngrad


def test_a_solution_is_a_fixed_point_of_apda_with_d_for_any_gamma() -> None:
    D, f = grid(6), quadratic(1e2, seed=3, d=36)
    solved = ps.minimize(f, PSI, D=D, method="apda", tol=1e-12)
    for gamma in (0.1 / f.L, 1 / f.L, 300 / f.L):
        again = ps.minimize(f, PSI, solved.x, D=D, method="apda", gamma=gamma, dual=solved.y, tol=1e-16, max_prox=7)
        assert np.linalg.norm(again.x - solved.x) <= 1e-9
        assert np.linalg.norm(again.y - solved.y) <= 1e-9


@pytest.mark.parametrize("method", ["apda", "papc", "pdhg", "auto"])
def test_a_solution_of_zero_is_no_stall(method: str) -> None:
    """x stops long before y: a step that follows both must settle, and 10/(gamma mu) iterations are not long."""
    for seed in (0, 3, 4):
        rng = np.random.default_rng(seed)
        A, b, D = rng.standard_normal((30, 11)), 10 * rng.standard_normal(30), rng.standard_normal((15, 11))
        f, psi = ps.LeastSquares(A, b), ps.prox.L1(2.0)
        for x0 in (np.zeros(11), rng.standard_normal(11)):
            found = ps.minimize(f, psi, x0, D=D, method=method, tol=1e-7)
            assert found.success, (seed, found.message)
            assert found.fun <= f.value(x0) + psi(D @ x0)


def test_an_expensive_prox_is_skipped_and_a_cheap_one_is_not(virtual_time: None) -> None:
    dear = ps.minimize(F, Slow(PSI, 2e-3), tol=1e-7)
    assert dear.success
    assert [name for _, name in dear.choices] == ["fista-restart", "apda", "end"]

    def gradient(x: Array) -> Array:
        spend(2e-3)
        return np.asarray(F.gradient(x))

    cheap = ps.minimize((F.value, gradient), PSI, np.zeros(F.d), L=F.L, mu=F.mu, tol=1e-5)
    assert cheap.success
    assert [name for _, name in cheap.choices] == ["fista-restart", "end"]


def random_split(seed: int) -> tuple[Any, Any, Any, Any]:
    """f, psi, D and x0 with 10 to 60 unknowns, kappa up to 1e6 and lam from 0.001 to 1.5 times one that is large."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(10, 61))
    rows, kappa = int(rng.integers(d, 3 * d + 1)), 10 ** rng.uniform(1, 6)
    U, V = (np.linalg.qr(rng.standard_normal((n, d)))[0] for n in (rows, d))
    A = np.sqrt(rows) * (U * np.geomspace(kappa**-0.5, 1, d)) @ V.T
    b = 10 * rng.standard_normal(rows)
    difference = np.diff(np.eye(d), axis=0)
    tall, flat = rng.standard_normal((2 * d, d)), rng.standard_normal((d // 2, d))
    D = (tall, flat, difference, np.vstack([np.eye(d), difference]))[seed % 4]
    large = np.abs(np.linalg.lstsq(D.T, A.T @ b / rows, rcond=None)[0]).max()
    lam = large * 10 ** rng.uniform(-3, 0.2)
    return ps.LeastSquares(A, b), ps.prox.L1(lam), D, rng.standard_normal(d) * 10 ** rng.uniform(-1, 1)


@pytest.mark.parametrize("seed", thinned(range(80), 20))
def test_with_d_it_converges_where_a_fixed_method_does(seed: int) -> None:
    f, psi, D, x0 = random_split(seed)
    fixed = (ps.minimize(f, psi, x0, D=D, method=m, tol=1e-7, max_grad=1500) for m in ("papc", "pdhg"))
    solved = any(run.success for run in fixed)
    found = ps.minimize(f, psi, x0, D=D, tol=1e-7, max_grad=300_000 if solved else 1500)
    assert found.success or not solved
    assert found.status in (ps.Status.CONVERGED, ps.Status.LIMIT)
    assert found.fun <= f.value(x0) + psi(D @ x0)


@pytest.mark.parametrize("method", ["auto", "apda", "papc", "pdhg"])
def test_no_point_above_the_start_is_returned(method: str) -> None:
    f, psi, D = quadratic(1e3, 12), ps.prox.L1(0.02), difference(12)
    start = ps.minimize(f, psi, D=D, method="papc", tol=1e-6).x
    for rounds in (1, 10, 30):
        found = ps.minimize(f, psi, start, D=D, method=method, tol=1e-13, max_iter=rounds)
        assert found.status is ps.Status.LIMIT
        assert found.fun <= f.value(start) + psi(D @ start)


def test_the_time_of_computing_constants_counts(virtual_time: None) -> None:
    class Dear:
        d, mu, value, gradient = F.d, F.mu, F.value, F.gradient

        @property
        def L(self) -> float:
            spend(100.0)
            return F.L

    whole = ps.minimize(Dear(), PSI, tol=1e-5)
    assert whole.success
    assert whole.seconds >= 100.0
    assert ps.minimize(Dear(), PSI, tol=1e-5, seconds=50.0).status is ps.Status.LIMIT


@pytest.mark.parametrize("known", [False, True])
def test_auto_computes_no_smallest_eigenvalue_of_large_data(known: bool) -> None:
    rng = np.random.default_rng(0)
    f = ps.LeastSquares(rng.standard_normal((320, 260)), rng.standard_normal(320), l2=0.1)
    if known:
        assert f.L > 0
    assert ps.minimize(f, ps.prox.L1(1e-2), tol=1e-6).success
    assert "mu" not in vars(f)


def stopped_early(seconds: float, steps: int = 5) -> Any:
    """The prox of TV1D by a few projected gradient steps on the dual, from zero."""

    class Early:
        exact = ps.prox.TV1D(0.1)

        def __call__(self, x: Array) -> float:
            return self.exact(x)

        def prox(self, x: Array, t: float) -> Array:
            spend(seconds)
            p = np.zeros(len(x) + 1)
            for _ in range(steps):
                p[1:-1] = np.clip(p[1:-1] + np.diff(x + np.diff(p)) / 4, -0.1 * t, 0.1 * t)
            return x + np.diff(p)

    return Early()


@pytest.mark.filterwarnings("ignore")
def test_auto_returns_to_fista_where_an_inexact_prox_holds_apda_up(virtual_time: None) -> None:
    f = quadratic(1e3, 40)
    alone = ps.minimize(f, stopped_early(5e-3), np.zeros(40), method="fista-restart", tol=1e-6)
    found = ps.minimize(f, stopped_early(5e-3), np.zeros(40), tol=1e-6, max_prox=5000)
    assert [name for _, name in found.choices] == ["fista-restart", "apda", "fista-restart", "end"]
    assert found.status is alone.status is ps.Status.INEXACT
    assert found.nprox <= alone.nprox + 100


@pytest.mark.parametrize("D", [None, difference(12)], ids=["plain", "D"])
def test_where_apda_stalls_a_method_that_takes_every_prox_goes_on(D: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a watch that is quick to call a stall."""
    f, psi = quadratic(1e3, 12), ps.prox.L1(0.02)
    monkeypatch.setattr(CertificateWatch, "stalled", lambda watch, *_: watch.since >= 1 and watch.best < 1e-3)
    task, start = setup.prepare(f, psi, np.zeros(12), "auto", D=D)
    run = AutoDescent(task, start, tol=1e-9)
    with np.errstate(all="ignore"):
        if D is None:
            run._take("apda")
        while run.arm == "apda" and run.round < 1000:
            run.advance()
        assert run.arm == ("fista-restart" if D is None else "papc")
        assert (run.watch.best, run.watch.since) == (math.inf, 0)  # the new method must make its own progress
        best = run.best.bound
        for _ in range(3):
            run.advance()
        assert run.best.bound <= best
    run.close()


@pytest.mark.filterwarnings("ignore")
def test_a_run_of_apda_with_d_that_diverges_is_finished_by_papc(monkeypatch: pytest.MonkeyPatch) -> None:
    f, D, psi = quadratic(1e3, 12), difference(12), ps.prox.L1(0.02)
    diverged = CertificateWatch.diverged
    rounds = iter(range(10**6))
    monkeypatch.setattr(CertificateWatch, "diverged", lambda watch, bound: next(rounds) == 10 or diverged(watch, bound))
    found = ps.minimize(f, psi, D=D, tol=1e-7)
    assert [name for _, name in found.choices] == ["apda", "papc", "end"]
    assert found.success


def test_a_prox_that_becomes_cheap_is_no_longer_skipped(virtual_time: None) -> None:
    class Warm(Slow):
        """Slow in its first calls alone, as after a slow moment of the machine."""

        calls = 0

        def prox(self, x: Array, t: float) -> Array:
            self.calls += 1
            return super().prox(x, t) if self.calls < 20 else self.psi.prox(x, t)

    def gradient(x: Array) -> Array:
        spend(2e-4)
        return np.asarray(F.gradient(x))

    found = ps.minimize((F.value, gradient), Warm(PSI, 3e-3), np.zeros(F.d), L=F.L, mu=F.mu, tol=1e-7)
    assert found.success
    assert [name for _, name in found.choices] == ["fista-restart", "apda", "fista-restart", "end"]


@pytest.mark.slow
def test_an_inner_solver_for_which_large_steps_are_hard_stays_with_fista(virtual_time: None) -> None:
    class Hard(ps.prox.TV2D):
        """Its iterations at the large steps of APDA are many."""

        def prox(self, x: Array, t: float) -> Array:
            out = super().prox(x, t)
            spend(2e-3)
            self._record(self.last.accuracy, 5 if t <= 1.01 / F.L else 500)
            return out

    found = ps.minimize(F, Hard(1e-3, (5, 8)), tol=1e-7)
    assert found.success
    assert [name for _, name in found.choices][:3] == ["fista-restart", "apda", "fista-restart"]
    assert [name for _, name in found.choices].count("apda") == 1
