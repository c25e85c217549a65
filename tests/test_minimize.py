"""minimize: the methods of the family without clients, their certificates, and what happens to bad input."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import proxskip as ps
from conftest import close, quadratics
from proxskip import prox
from proxskip.composite.descent import Descent
from proxskip.composite.setup import method_maker, prepare
from proxskip.prox import ProxWarning
from proxskip.types import Array, InputError, UnsafeStepWarning

TOL = 1e-12


class Plain:
    """A function of one's own: value, gradient, L, mu."""

    def __init__(self, f: Any) -> None:
        self.f, self.L, self.mu = f, f.L, f.mu
        self.calls = 0

    def value(self, x: Array) -> float:
        return float(self.f.value(x))

    def gradient(self, x: Array) -> Array:
        self.calls += 1
        return np.asarray(self.f.gradient(x))


class Counted(prox.Operator):
    """psi that counts its proxes."""

    def __init__(self, psi: Any) -> None:
        self.psi, self.calls = psi, 0

    def __call__(self, x: Array) -> float:
        return float(self.psi(x))

    def prox(self, x: Array, t: float) -> Array:
        self.calls += 1
        return np.asarray(self.psi.prox(x, t))


def quadratic(kappa: float = 100.0, d: int = 30, seed: int = 0) -> ps.Quadratic:
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    H = (Q * np.geomspace(1 / kappa, 1, d)) @ Q.T
    return ps.Quadratic((H + H.T) / 2, rng.standard_normal(d) / 3)


def gentle(d: int = 20) -> ps.Quadratic:
    return ps.Quadratic(np.geomspace(0.1, 1, d), np.ones(d))


def regression(rows: int = 60, d: int = 12, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, d))
    return A, A @ np.where(np.arange(d) < 4, 1.0, 0.0) + 0.3 * rng.standard_normal(rows)


def walk(method: Any, f: Any, psi: Any, rounds: int, D: Any = None, x0: Any = None) -> tuple[Array, Array]:
    """All x and all duals of minimize's own loop."""
    name = method if isinstance(method, str) else method.name
    x0 = np.ones(f.d) if x0 is None else x0
    task, start = prepare(f, psi, x0, name, D=D, p=0.5)
    run = Descent(task, method_maker(name) if isinstance(method, str) else lambda p, s: method, start, seed=7)
    xs, duals = [], []
    for _ in range(rounds):
        run.advance()
        xs.append(run.x.copy())
        duals.append(np.zeros(1) if run.dual is None else run.dual.copy())
    run.close()
    return np.array(xs), np.array(duals)


# -- one family --------------------------------------------------------------------------------------------------------
def test_the_trajectory_is_that_of_run() -> None:
    """The lean loop and the loop with engines are one method."""
    A, b = regression()
    for f in (ps.Logistic(A, b > 0, l2=0.01), quadratic(d=12)):
        problem = ps.Problem([f], psi=ps.prox.L1(0.02))
        for method in (ps.ProxSkip.theory(problem), ps.ProxGD.theory(problem), ps.Fista.theory(problem)):
            xs, _ = walk(method, f, ps.prox.L1(0.02), 25, x0=np.zeros(f.d))
            ran = ps.run(method, problem, rounds=25, seed=7)
            assert close(xs[-1], ran.x, 1e-11)


def test_p_one_is_proxgd() -> None:
    f, psi = quadratic(), ps.prox.L1(0.05)
    gamma = 1 / f.L
    expected, _ = walk(ps.ProxGD(gamma), f, psi, 300)
    assert close(walk(ps.ProxSkip(gamma, 1.0), f, psi, 300)[0], expected, TOL)


def test_splitskip_with_the_identity_is_proxskip() -> None:
    """D = I, tau = p/gamma: the whole trajectory, and h = -y."""
    f, psi, p = quadratic(), ps.prox.L1(0.05), 0.3
    gamma = 1 / f.L
    x, h = walk(ps.ProxSkip(gamma, p), f, psi, 60)
    for D in (np.eye(f.d), scipy.sparse.identity(f.d, format="csr")):
        z, y = walk(ps.SplitSkip(gamma, p, p / gamma), f, psi, 60, D=D)
        assert close(z, x, TOL)
        assert close(-y, h, 1e-11)


def test_splitskip_with_the_root_of_i_minus_w_is_decentralized_scaffnew() -> None:
    clients = quadratics(4)
    d = clients[0].d
    link = ps.graph("ring", 4)
    W = np.asarray(link.W.toarray() if hasattr(link.W, "toarray") else link.W)
    values, vectors = np.linalg.eigh(np.eye(4) - W)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    H = scipy.linalg.block_diag(*(f.hessian(f.b) for f in clients))
    stacked = ps.Quadratic(H, np.concatenate([f.b for f in clients]))
    gamma, p = 0.9 / stacked.L, 0.4
    tau = p / (gamma * link.lmax)
    x0 = np.ones(4 * d)
    xs, _ = walk(ps.SplitSkip(gamma, p, tau), stacked, ps.prox.Singleton(), 40, D=np.kron(root, np.eye(d)), x0=x0)
    problem = ps.Problem(clients)
    gossip = ps.DecentralizedScaffnew(gamma, p, tau, link)
    ran = ps.run(gossip, problem, rounds=40, seed=7, x0=np.ones(d))
    assert close(xs[-1].reshape(4, d), ran.memory["x"], 1e-11)


def test_papc_is_splitskip_with_p_one() -> None:
    f, D = quadratic(d=10), np.diff(np.eye(10), axis=0)
    a = ps.minimize(f, ps.prox.L1(0.1), np.zeros(10), D=D, method="papc", tol=1e-9)
    b = ps.minimize(f, ps.prox.L1(0.1), np.zeros(10), D=D, method="splitskip", p=1.0, tol=1e-9)
    assert a.success
    assert np.array_equal(a.x, b.x)


# -- certificates and counts -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["proxgd", "fista", "fista-restart", "proxskip"])
@pytest.mark.parametrize(
    "psi",
    [ps.prox.L1(0.05), ps.prox.NonNegative(), ps.prox.ElasticNet(0.02, 0.1), ps.prox.Simplex(), None],
    ids=lambda psi: type(psi).__name__,
)
def test_the_certificate_is_what_it_says(method: str, psi: Any) -> None:
    f = quadratic()
    res = ps.minimize(f, psi, np.zeros(f.d), method=method, tol=1e-9)
    assert res.success
    assert res.status is ps.Status.CONVERGED == 0
    assert ps.End is ps.Status
    assert ps.End.LIMIT is ps.Status.MAX_ROUNDS == 1
    gamma, g = 1 / f.L, f.gradient(res.x)
    residual = np.linalg.norm(g if psi is None else (res.x - psi.prox(res.x - gamma * g, gamma)) / gamma)
    assert res.certificate == pytest.approx(residual, rel=1e-3, abs=1e-13)
    assert res.certificate <= 1e-9
    # strong convexity: |x - x*| <= certificate (1/mu + 1/L)
    exact = ps.Problem([f], psi=psi).solution
    assert exact is not None
    assert np.linalg.norm(res.x - exact.x) <= 1e-9 * (1 / f.mu + 1 / f.L) * 1.01


@pytest.mark.parametrize("method", ["proxgd", "fista", "fista-restart", "proxskip"])
def test_everything_is_counted(method: str) -> None:
    f, psi = Plain(quadratic()), Counted(ps.prox.L1(0.05))
    res = ps.minimize(f, psi, np.zeros(30), method=method, tol=1e-8)
    assert (res.ngrad, res.nprox) == (f.calls, psi.calls)
    assert res.trace["nprox"][-1] == res.nprox
    assert np.all(np.diff(res.trace["nprox"]) > 0)


@pytest.mark.parametrize("method", ["papc", "splitskip", "pdhg", "apda"])
def test_everything_is_counted_with_d_and_the_certificate_is_true(method: str) -> None:
    f, psi = Plain(quadratic()), Counted(ps.prox.L1(0.05))
    D = np.diff(np.eye(30), axis=0)
    res = ps.minimize(f, psi, np.zeros(30), D=D, method=method, p=0.5 if method == "splitskip" else None, tol=1e-8)
    assert res.success
    assert (res.ngrad, res.nprox) == (f.calls, psi.calls)
    primal = f.gradient(res.x) + D.T @ res.y
    dual = res.y - prox.conjugate_prox(psi, res.y + D @ res.x, 1.0)
    assert res.certificate == pytest.approx(np.linalg.norm(primal) + np.linalg.norm(dual), rel=1e-3, abs=1e-13)


def test_the_bound_of_a_prox_is_never_below_the_certificate() -> None:
    f, psi = quadratic(), ps.prox.L1(0.05)
    gamma = 1 / f.L
    for name in ("proxskip", "proxgd", "fista-restart"):
        task, x0 = prepare(f, psi, np.zeros(f.d), name)
        run = Descent(task, method_maker(name), x0)
        for _ in range(60):
            run.advance()
            residual = np.linalg.norm(run.x - psi.prox(run.x - gamma * f.gradient(run.x), gamma)) / gamma
            assert residual <= run.bound * (1 + 1e-9) + 1e-14
        run.close()


def test_h_is_the_gradient_and_minus_h_a_subgradient() -> None:
    f, lam = quadratic(), 0.05
    res = ps.minimize(f, ps.prox.L1(lam), np.zeros(f.d), tol=1e-10)
    assert np.abs(res.h - f.gradient(res.x)).max() < 1e-8
    assert np.all(np.abs(res.h) <= lam + 1e-8)
    assert np.allclose(-res.h[np.abs(res.x) > 1e-8], lam * np.sign(res.x[np.abs(res.x) > 1e-8]), atol=1e-8)
    again = ps.minimize(f, ps.prox.L1(lam), res.x, dual=res.h, tol=1e-8)
    assert again.nprox <= 3


def test_few_proxes() -> None:
    """At least sqrt(kappa)/3 times fewer proxes than ProxGD, certificates counted."""
    kappa = 1e4
    spectrum, rng = np.geomspace(1 / kappa, 1, 60), np.random.default_rng(0)
    f = ps.Quadratic(spectrum, spectrum * rng.standard_normal(60) * (rng.random(60) < 0.3))
    counts = {m: ps.minimize(f, ps.prox.L1(1e-3), np.zeros(60), method=m, tol=1e-8) for m in ("proxgd", "proxskip")}
    assert all(res.success for res in counts.values())
    assert counts["proxgd"].nprox >= math.sqrt(kappa) / 3 * counts["proxskip"].nprox


def test_a_certificate_does_not_trust_an_L_that_its_gradients_contradict() -> None:
    q = ps.Quadratic(np.geomspace(0.1, 1, 5), np.array([1.0, -1, 0.03, 0.2, 0.02]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        res = ps.minimize((q.value, q.gradient), prox.Box(-1, 1), np.zeros(5), method="fista", L=1e-9)
    assert not res.success


def test_small_curvature_loses_no_digits() -> None:
    rng = np.random.default_rng(0)
    A, b = 1e-4 * rng.standard_normal((40, 10)), 1e4 * rng.standard_normal(40)
    assert ps.minimize(ps.LeastSquares(A, b), prox.L1(1e-3), np.zeros(10), method="fista", tol=1e-9).success


def test_a_strong_convexity_of_rounding_is_none() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((60, 6))
        f = ps.LeastSquares(np.column_stack([A, A[:, 0] + A[:, 1]]), rng.standard_normal(60))
        assert f.mu == 0.0
        with pytest.raises(ps.InputError, match="mu is unknown"):
            ps.minimize(f, prox.L1(0.01), method="proxskip")
    H = np.outer(np.ones(4), np.ones(4))
    assert ps.Quadratic(H, np.ones(4)).mu == 0.0
    assert ps.Quadratic(np.diag([1e-9, 1.0]), np.ones(2)).mu == pytest.approx(1e-9)


# -- solutions of others -----------------------------------------------------------------------------------------------
def agrees(x: Array, other: Array, f: Any, psi: Any) -> bool:
    """The same point to four digits, and ours is no worse: how exact another library is depends on the machine."""
    best = f.value(x) + psi(x)
    return bool(np.abs(x - other).max() < 1e-4 and best <= f.value(other) + psi(other) + 1e-10 * max(1.0, abs(best)))


@pytest.mark.parametrize("method", ["proxskip", "fista", "auto"])
def test_lasso_and_elastic_net_of_scikit_learn(method: str) -> None:
    from sklearn.linear_model import ElasticNet, Lasso

    A, b = regression()
    for l1, l2 in ((0.1, 0.0), (0.05, 0.2)):
        if l2:
            ratio = l1 / (l1 + l2)
            other = ElasticNet(alpha=l1 + l2, l1_ratio=ratio, fit_intercept=False, tol=1e-14, max_iter=100_000)
        else:
            other = Lasso(alpha=l1, fit_intercept=False, tol=1e-14, max_iter=100_000)
        x = other.fit(A, b).coef_
        psi = ps.prox.ElasticNet(l1, l2) if l2 else ps.prox.L1(l1)
        for data in (A, scipy.sparse.csr_matrix(A), aslinearoperator(A)):
            given = {"mu": ps.LeastSquares(A, b).mu} if data is not A else {}
            res = ps.minimize(ps.LeastSquares(data, b), psi, method=method, tol=1e-9, **given)
            assert res.success
            assert agrees(res.x, x, ps.LeastSquares(A, b), psi)


def test_logistic_l1_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    A, b = regression(rows=80)
    y, lam = (b > 0).astype(float), 0.01
    other = LogisticRegression(
        C=1 / (80 * lam), l1_ratio=1.0, solver="saga", fit_intercept=False, tol=1e-12, max_iter=200_000
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = other.fit(A, y).coef_.ravel()
    res = ps.minimize(ps.Logistic(A, y), ps.prox.L1(lam), method="proxskip", mu=1e-3, tol=1e-9)
    assert res.success
    assert agrees(res.x, x, ps.Logistic(A, y), ps.prox.L1(lam))


def test_bounds_of_scipy() -> None:
    A, b = regression()
    other = scipy.optimize.lsq_linear(A, b, bounds=(0.0, 0.7), tol=1e-14)
    f = ps.LeastSquares(A, b)
    assert agrees(ps.minimize(f, ps.prox.Box(0.0, 0.7), tol=1e-9).x, other.x, f, ps.prox.Box(0.0, 0.7))
    nn, _ = scipy.optimize.nnls(A, b)
    assert agrees(ps.minimize(f, ps.prox.NonNegative(), tol=1e-9).x, nn, f, ps.prox.NonNegative())


@pytest.mark.parametrize("method", ["papc", "splitskip", "pdhg", "apda", "auto"])
def test_fused_lasso_of_scipy(method: str) -> None:
    """f + |D x|_1 as a smooth problem with bounds in the dual: y in a box, x = H^-1 (b - D'y)."""
    f = quadratic(kappa=10, d=12)
    D, lam = np.diff(np.eye(12), axis=0), 0.2
    inverse = np.linalg.inv(f.H)

    def dual(y: Array) -> tuple[float, Array]:
        r = f.b - D.T @ y
        return 0.5 * float(r @ inverse @ r), -D @ inverse @ r

    y = scipy.optimize.minimize(
        dual,
        np.zeros(11),
        jac=True,
        bounds=[(-lam, lam)] * 11,
        method="L-BFGS-B",
        options={"ftol": 1e-16, "gtol": 1e-12},
    ).x
    for operator in (D, D.astype(np.int8), scipy.sparse.csr_matrix(D), aslinearoperator(D)):
        given = {"p": 0.5} if method == "splitskip" and not hasattr(operator, "toarray") else {}
        res = ps.minimize(f, ps.prox.L1(lam), np.zeros(12), D=operator, method=method, tol=1e-10, **given)
        assert res.success
        assert agrees(res.x, inverse @ (f.b - D.T @ y), f, lambda x: lam * np.abs(D @ x).sum())


def test_cvxpy() -> None:
    cp = pytest.importorskip("cvxpy")
    A, b = regression()
    x = cp.Variable(12)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b) / 120 + 0.1 * cp.norm(x, 2)), [x >= -1])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Solution may be inaccurate")
        problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    f, psi = ps.LeastSquares(A, b), ps.prox.L2(0.1)
    assert agrees(ps.minimize(f, psi, tol=1e-9).x, x.value, f, psi)


@pytest.mark.parametrize("method", ["splitskip", "papc", "pdhg"])
@pytest.mark.long
def test_an_operator_of_pylops_is_the_matrix_it_stands_for(method: str) -> None:
    pylops = pytest.importorskip("pylops", reason="pylops is not installed")
    f = ps.Quadratic(np.geomspace(0.1, 1, 30), np.linspace(-1, 1, 30))
    D = pylops.FirstDerivative(30, kind="forward", edge=False)
    M = np.diff(np.eye(30), axis=0)
    M = np.vstack([M, np.zeros((1, 30))])  # the operator has as many rows as columns
    p = 0.3 if method == "splitskip" else None
    a, b = (ps.minimize(f, prox.L1(0.2), np.zeros(30), D=E, method=method, p=p, tol=1e-9) for E in (D, M))
    assert a.success
    assert np.abs(a.x - b.x).max() < 1e-8
    exact = ps.minimize(f, prox.TV1D(0.2), np.zeros(30), tol=1e-10)
    assert np.abs(a.x - exact.x).max() < 1e-7


def test_data_behind_an_operator_of_pylops() -> None:
    pylops = pytest.importorskip("pylops", reason="pylops is not installed")
    rng = np.random.default_rng(1)
    A, b = rng.standard_normal((40, 12)), rng.standard_normal(40)
    a, c = (
        ps.minimize(ps.LeastSquares(M, b, l2=0.1), prox.L1(0.05), np.zeros(12), tol=1e-9)
        for M in (pylops.MatrixMult(A), A)
    )
    assert a.success
    assert np.abs(a.x - c.x).max() < 1e-8


# -- f in every form ---------------------------------------------------------------------------------------------------
def test_f_in_every_form_gives_one_answer() -> None:
    f, psi = quadratic(), ps.prox.L1(0.05)
    x = ps.minimize(f, psi, np.zeros(30), tol=1e-10).x
    pair = (f.value, f.gradient)
    forms = [(Plain(f), {}), (pair, {"L": f.L, "mu": f.mu}), (pair, {"mu": f.mu}), (pair, {"p": 0.1})]
    for form, given in forms:
        assert np.abs(ps.minimize(form, psi, np.zeros(30), tol=1e-9, **given).x - x).max() < 1e-6
    for method in ("fista", "fista-restart", "proxgd"):
        res = ps.minimize(pair, psi, np.zeros(30), method=method, tol=1e-9)
        assert res.success
        assert res.parameters["L"] <= 2 * f.L
        assert np.abs(res.x - x).max() < 1e-6


def test_backtracking_finds_a_steep_valley_behind_a_plain() -> None:
    """The curvature at x0 is a thousand times smaller than at the solution."""

    def value(x: Array) -> float:
        return float(np.sum(np.logaddexp(0, 30 * (x - 3))) / 30 + 5e-3 * x @ x - 0.9 * x.sum())

    def gradient(x: Array) -> Array:
        return scipy.special.expit(30 * (x - 3)) + 1e-2 * x - 0.9

    for method, given in (("fista-restart", {}), ("proxskip", {"mu": 1e-2}), ("proxgd", {})):
        res = ps.minimize((value, gradient), ps.prox.NonNegative(), np.zeros(5), method=method, tol=1e-9, **given)
        assert res.success
        assert np.abs(gradient(res.x)).max() < 1e-8


def test_x_keeps_its_shape() -> None:
    rng = np.random.default_rng(0)
    M = rng.standard_normal((6, 5))
    seen = set()

    def gradient(X: Array) -> Array:
        seen.add(X.shape)
        return X - M

    f = (lambda X: 0.5 * float(np.sum((X - M) ** 2)), gradient)
    res = ps.minimize(f, ps.prox.NuclearNorm(0.5, (6, 5)), np.zeros((6, 5)), L=1.0, mu=1.0, tol=1e-10)
    assert seen == {(6, 5)}
    assert res.x.shape == res.h.shape == (6, 5)
    assert np.allclose(res.x, ps.prox.NuclearNorm(0.5, (6, 5)).prox(M, 1.0), atol=1e-9)


def test_operators_as_data_have_a_certified_l() -> None:
    A, b = regression()
    exact, bound = ps.LeastSquares(A, b).L, ps.LeastSquares(aslinearoperator(A), b).L
    assert exact <= bound <= 1.011 * exact
    f = ps.LeastSquares(aslinearoperator(A), b)
    assert np.allclose(f.gradient(np.ones(12)), ps.LeastSquares(A, b).gradient(np.ones(12)))
    with pytest.raises(InputError, match="matrix"):
        ps.minimize(f, ps.prox.L1(0.1), batch=3, method="sproxskip", mu=0.1)


def test_a_gradient_may_reuse_its_buffer() -> None:
    w, buffer = np.geomspace(0.01, 3.0, 20), np.empty(20)

    def gradient(x: np.ndarray) -> np.ndarray:
        np.multiply(w, x, out=buffer)
        np.subtract(buffer, 1.0, out=buffer)
        return buffer

    f = (lambda x: float(0.5 * w @ x**2 - x.sum()), gradient)
    assert ps.minimize(f, prox.L1(0.1), np.zeros(20), method="fista", tol=1e-7).success


class Rows:
    """Half the sum of the rows' norms."""

    def __call__(self, X: np.ndarray) -> float:
        return 0.5 * float(np.linalg.norm(X, axis=-1).sum())

    def prox(self, X: np.ndarray, t: float) -> np.ndarray:
        n = np.linalg.norm(X, axis=-1, keepdims=True)
        return X * np.maximum(1 - 0.5 * t / np.maximum(n, 1e-300), 0)


def test_ones_own_operator_sees_the_shape_of_x0() -> None:
    B = np.array([[3.0, 4.0], [0.1, 0.1], [1.0, 0.0]])
    f = (lambda X: 0.5 * np.sum((X - B) ** 2), lambda X: X - B)
    res = ps.minimize(f, Rows(), np.zeros((3, 2)), L=1.0, mu=1.0)
    assert np.abs(res.x - [[2.7, 3.6], [0, 0], [0.5, 0]]).max() < 1e-7


# -- minibatches -------------------------------------------------------------------------------------------------------
def test_sproxskip_has_the_constants_of_expected_smoothness() -> None:
    A, b = regression(rows=200)
    f = ps.Logistic(A, b > 0, l2=0.1)
    res = ps.minimize(f, ps.prox.L1(0.01), method="sproxskip", batch=10, max_iter=500, tol=1e-12)
    L_b = ps.theory.minibatch_smoothness(200, 10, f.L, f.L_rows)
    assert res.parameters["gamma"] == pytest.approx(1 / (2 * L_b))
    assert res.parameters["p"] == pytest.approx(math.sqrt(res.parameters["gamma"] * f.mu))
    assert res.status is ps.Status.LIMIT
    problem = ps.Problem([f], psi=ps.prox.L1(0.01), batch=10)
    assert res.parameters["gamma"] == pytest.approx(1 / problem.es_A)
    assert res.passes == pytest.approx((res.nit * 10 + (res.ngrad - res.nit) * 200) / 200)


def test_a_finite_sum_of_ones_own_is_sampled_like_ours() -> None:
    A, b = regression(rows=100)
    ours = ps.LeastSquares(A, b, l2=0.1)

    class Sum:
        N, L, L_rows, mu, d = 100, ours.L, ours.L_rows, ours.mu, 12
        value, gradient, minibatch_gradient = ours.value, ours.gradient, ours.minibatch_gradient

    results = [
        ps.minimize(f, ps.prox.L1(0.1), method="sproxskip", batch=5, max_iter=200, tol=1e-12) for f in (ours, Sum())
    ]
    assert close(results[1].x, results[0].x, 1e-10)


class Rowwise:
    """A mean of squares of matrices."""

    L, mu, L_rows, N = 1.0, 1.0, 1.0, 8

    def __init__(self) -> None:
        self.B = np.random.default_rng(0).standard_normal((8, 3, 4))

    def value(self, X: np.ndarray) -> float:
        return float(0.5 * np.mean([np.sum((X - B) ** 2) for B in self.B]))

    def gradient(self, X: np.ndarray) -> np.ndarray:
        return X - self.B.mean(axis=0)

    def minibatch_gradient(self, X: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return X - self.B[rows].mean(axis=0)


def test_minibatches_of_ones_own_f_see_the_shape_of_x0() -> None:
    f = Rowwise()
    res = ps.minimize(f, prox.L1(0.1), np.zeros((3, 4)), method="sproxskip", batch=8, tol=1e-8)
    assert res.success
    assert np.abs(res.x - prox.L1(0.1).prox(f.B.mean(axis=0), 1.0)).max() < 1e-7
    f.minibatch_gradient = lambda X, rows: np.zeros(3)  # type: ignore[method-assign]
    with pytest.raises(ps.InputError, match="the gradient of f has shape"):
        ps.minimize(f, prox.L1(0.1), np.zeros((3, 4)), method="sproxskip", batch=2)


@pytest.mark.parametrize("seed", range(4))
def test_the_returned_x_is_the_best_certified_one(seed: int) -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((200, 10))
    f = ps.LeastSquares(A, A @ rng.standard_normal(10) + rng.standard_normal(200), l2=0.1)
    given = {"method": "sproxskip", "batch": 20, "tol": 1e-12, "max_grad": 4000, "seed": seed}
    res = ps.minimize(f, prox.L1(0.05), np.zeros(10), **given)
    seen = res.trace["certificate"]
    assert res.certificate <= seen.min() * (1 + 1e-9) < 0.9 * seen[-1]


@pytest.mark.slow
def test_with_minibatches_the_bound_of_proxgd_is_of_the_whole_gradient() -> None:
    """Rows of zeros have a gradient of zero, which says nothing about the sum."""
    A = scipy.sparse.random(400, 30, density=0.03, random_state=0, format="csr")
    f = ps.LeastSquares(A, np.random.default_rng(0).standard_normal(400))
    found = ps.minimize(f, prox.NonNegative(), np.zeros(30), method="proxgd", batch=1, tol=1e-6, max_grad=20_000)
    assert found.status == 1
    assert min(found.trace["certificate"]) > 1e-6


# -- bad input ---------------------------------------------------------------------------------------------------------
class Wrong(prox.Operator):
    """An operator with something wrong."""

    def __init__(self, prox: Any) -> None:
        self._prox = prox

    def __call__(self, x: Array) -> float:
        return 0.0

    def prox(self, x: Array, t: float) -> Array:
        return self._prox(x, t)


F = quadratic()
ZERO = np.zeros(30)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ps.minimize(3.0, ps.prox.L1(1), ZERO), "no value"),
        (lambda: ps.minimize((F.value,), ps.prox.L1(1), ZERO), "no value"),
        (lambda: ps.minimize(F, object(), ZERO), "prox"),
        (lambda: ps.minimize(F, ps.prox.L1, ZERO), "class"),
        (lambda: ps.minimize((F.value, F.gradient), ps.prox.L1(1)), "x0"),
        (lambda: ps.minimize(F, ps.prox.L1(1), np.zeros(4)), "30 unknowns"),
        (lambda: ps.minimize(F, ps.prox.L1(1), np.full(30, np.nan)), "finite"),
        (lambda: ps.minimize((F.value, F.gradient), ps.prox.L1(1), ZERO, "proxskip", L=1.0), "mu is unknown.*give mu"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, "proxskip", mu=0.0), "mu is unknown"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, L=1.0, mu=2.0), "larger than L"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, p=1.5), r"\(0, 1\]"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, gamma=2.5), "diverge"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, gamma=-1.0), "positive"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, tol=0.0), "tol"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, seed=-1), "seed"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, max_prox=0), "max_prox"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, method="newton"), "not known"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, method="sproxskip"), "batch"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, method="sproxskip", batch=2), "rows"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, method="splitskip"), "no D"),
        (lambda: ps.minimize(F, None, ZERO, D=np.eye(30), method="splitskip"), "without psi"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, "fista", D=np.eye(30)), "cannot solve"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, D=np.eye(4), method="papc"), "columns"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, D=1j * np.eye(30), method="papc"), "real"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, dual=np.ones(3)), "dual"),
        (lambda: ps.minimize(F, ps.prox.L1(1), ZERO, tau=0.5), "proxskip has no tau"),
        (lambda: ps.minimize((F.value, lambda x: x[:3]), ps.prox.L1(1), ZERO, L=1, mu=0.1), "shape"),
        (lambda: ps.minimize(F, Wrong(lambda x, t: x[:3]), ZERO), "Wrong gave shape"),
        (lambda: ps.minimize(F, Wrong(lambda x, t: np.full_like(x, np.nan)), ZERO), "Wrong gave numbers.*not finite"),
        (lambda: ps.minimize(ps.LeastSquares, prox.L1(0.1), ZERO), "is the class"),
        (lambda: ps.minimize((lambda x: 0.0, lambda x: 1 / x), prox.L1(1), ZERO, L=1.0, mu=1.0), "not finite; start else"),
        (lambda: ps.minimize((lambda x: 0.0, lambda x: np.add(x, 1, out=x)), prox.L1(1), ZERO.copy(), L=1), "changes the x"),
        (lambda: prox.L1(np.array([1.0, 2.0])), "finite lam"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, "apda", p=0.5), "apda has no p"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, "fista", p=0.5), "has no p"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, "fista", tau=0.5), "has no tau"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, ps.ProxSkip(0.5, 0.2), p=0.9), "has its own p"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, ps.ProxSkip), "neither a name nor a method"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, None), "neither a name nor a method"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO + 1j), "complex"),
        (lambda: ps.minimize(F, prox.L1(1), "abc"), "x0 is no array of numbers but 'abc'"),
        (lambda: ps.minimize(F, prox.L1(1), [[1.0], [2.0, 3.0]]), "x0 is no array of numbers"),
        (lambda: ps.minimize(F, prox.L1(1), scipy.sparse.csr_array(np.zeros((1, 30)))), "x0 is sparse"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, "apda", dual="abc"), "dual is no array of numbers"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, "papc", D=np.zeros((3, 30))), "finite numbers, and not zeros"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, "papc", D=np.full((3, 30), np.nan)), "finite numbers, and not zeros"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, ps.GD(0.1)), "has no prox step"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, ps.LocalGD(0.1, 3)), "has no prox step"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, ps.Accelerated(0.1, 0.5), D=np.eye(30)), r"cannot solve psi\(D x\)"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        call()
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["proxgd", "fista", "fista-restart", "proxskip"])
def test_a_prox_that_fails_late_is_named(method: str) -> None:
    """At a call that is not checked beforehand: the bound is not finite, and the prox is to blame.

    With a condition number of 1e8 no method has ended before.
    """
    calls, f = 0, quadratic(kappa=1e8)

    def prox(x: Array, t: float) -> Array:
        nonlocal calls
        calls += 1
        return np.full_like(x, np.nan) if calls >= 70 else x / (1 + 1e-9 * t)

    with pytest.raises(InputError, match=r"Wrong gave numbers.*not finite"):
        ps.minimize(f, Wrong(prox), ZERO + 1.0, method=method, p=0.9 if method == "proxskip" else None, tol=1e-300)
    assert calls >= 70


class Turns(prox.Operator):
    """The prox of psi, and after so many calls something else."""

    def __init__(self, calls: int, wrong: Any) -> None:
        self.calls, self.wrong, self.right = calls, wrong, prox.L1(1e-3)

    def __call__(self, x: Array) -> float:
        return self.right(x)

    def prox(self, x: Array, t: float) -> Array:
        self.calls -= 1
        return np.asarray(self.right.prox(x, t)) if self.calls >= 0 else self.wrong(x)


def test_the_prox_of_a_certificate_is_always_checked() -> None:
    """Whatever f is, 0 would be certified: the bound at a prox that is not checked says so too."""
    with pytest.warns(ProxWarning, match="not firmly nonexpansive"):
        found = ps.minimize(quadratic(kappa=1e3), Turns(100, lambda x: 0.0 * x), tol=1e-8)
    assert (found.success, found.status) == (False, 4)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [(lambda x: None, "gave shape"), (lambda x: np.maximum(x, 0, out=x), "changes the x it is given")],
)
@pytest.mark.parametrize("calls", [0, 70])
def test_what_a_prox_does_instead_is_named(calls: int, wrong: Any, match: str) -> None:
    """With a subgradient of psi from a point that was changed afterwards, apda would never end."""
    with pytest.raises(InputError, match=match):
        ps.minimize(quadratic(kappa=1e6), Turns(calls, wrong), method="apda", tol=1e-12, max_prox=400)


def test_a_prox_that_is_none_is_named_in_a_warning() -> None:
    wrong = Wrong(lambda x, t: 1.5 * x)
    with pytest.warns(ProxWarning, match="Wrong is not firmly nonexpansive"):
        ps.minimize(F, wrong, np.ones(30), max_iter=200)


def test_a_step_above_the_theorem_warns_and_one_that_diverges_says_so() -> None:
    with pytest.warns(UnsafeStepWarning):
        assert ps.minimize(F, ps.prox.L1(0.05), ZERO, gamma=1.5 / F.L, tol=1e-6).warnings
    with pytest.warns(UnsafeStepWarning):
        res = ps.minimize(F, ps.prox.L1(0.05), np.ones(30), gamma=40 / F.L, allow_unsafe_step=True)
    assert res.status is ps.Status.DIVERGED
    assert not res.success
    assert np.isfinite(res.x).all()
    assert np.isfinite(res.fun)


def test_an_l_that_is_too_small_is_found_out() -> None:
    with pytest.warns(UnsafeStepWarning, match="steeper than L"):
        ps.minimize((F.value, F.gradient), ps.prox.L1(0.05), np.ones(30), L=0.45 * F.L, mu=F.mu, max_iter=300)


@pytest.mark.timeout(120)
def test_total_variation_of_what_is_not_finite_ends() -> None:
    assert np.isnan(prox.TV1D(1.0).prox(np.array([1.0, 2.0, np.nan]), 1.0)).all()
    q = gentle()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        assert not ps.minimize((q.value, q.gradient), prox.TV1D(0.1), np.zeros(20), L=1e-3, p=0.003).success


@pytest.mark.parametrize(
    "method", [ps.ProxSkipVR(0.1, 0.1, 0.1), ps.ScaffnewVR(0.1, 0.1, 0.1), ps.GradSkip(0.1, 0.1, (0.5,))]
)
@pytest.mark.parametrize("batch", [None, 2])
def test_a_method_that_asks_more_of_a_client_is_refused(method: Any, batch: int | None) -> None:
    f = ps.LeastSquares(np.eye(4), np.ones(4))
    with pytest.raises(ps.InputError, match=f"{method.name} needs clients.* give it to run"):
        ps.minimize(f, None, method=method, batch=batch)


@pytest.mark.parametrize("D", [None, np.eye(3)])
def test_an_affine_f_is_minimized(D: Any) -> None:
    f = ps.Quadratic(np.zeros(3), np.array([1.0, -1.0, 0.2]))
    found = ps.minimize(f, prox.Box(-1.0, 2.0), D=D, tol=1e-9)
    assert found.success
    assert close(found.x, [2.0, -1.0, 2.0], 1e-7)


def test_operators_without_a_right_transpose_are_refused() -> None:
    def operator(back: object) -> LinearOperator:
        return LinearOperator((20, 20), matvec=lambda v: v, rmatvec=back)

    for back, said in ((None, "no transpose"), (lambda v: 2 * v, "is not its transpose"), (lambda v: -v, "is not its")):
        with pytest.raises(ps.InputError, match=said):
            ps.minimize(gentle(), prox.L1(0.1), np.zeros(20), D=operator(back), method="papc")
        with pytest.raises(ps.InputError, match=said):
            ps.LeastSquares(operator(back), np.ones(20))


# -- an inner solver ---------------------------------------------------------------------------------------------------
class Rough(prox.Iterative):
    """l1 by an inner solver that leaves an error of its tolerance, or of ``floor`` if that is larger."""

    def __init__(self, lam: float, floor: float = 0.0) -> None:
        self.exact, self.floor = ps.prox.L1(lam), floor
        self.asked: list[float] = []
        self._begin(1e-3, 100, True)

    def _forget(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, x: Array) -> float:
        return self.exact(x)

    def prox(self, x: Array, t: float) -> Array:
        self.asked.append(self.tolerance)
        accuracy = max(self.tolerance, self.floor)
        v = self.rng.standard_normal(x.shape)
        self._record(accuracy, 1)
        return self.exact.prox(x, t) + 0.99 * accuracy * v / np.linalg.norm(v)


def test_the_inner_tolerance_follows_the_certificate() -> None:
    psi = Rough(0.05)
    res = ps.minimize(F, psi, ZERO, tol=1e-8)
    exact = ps.minimize(F, ps.prox.L1(0.05), ZERO, tol=1e-8)
    assert res.success
    assert res.inner_failures == 0
    assert res.nprox <= 1.3 * exact.nprox + 3
    assert psi.asked[-1] < 1e-8 < 1e-3 < max(psi.asked)
    assert psi.tolerance == 1e-3
    assert res.inner is not None
    assert res.inner.accuracy == max(psi.asked)
    g = F.gradient(res.x)
    true = np.linalg.norm(res.x - ps.prox.L1(0.05).prox(res.x - g / F.L, 1 / F.L)) * F.L
    assert true <= res.certificate <= 1e-8


def test_an_inner_solver_that_misses_its_tolerance_is_told() -> None:
    """The status says so, and x is the best certified one."""
    floor = 1e-5
    res = ps.minimize(F, Rough(0.05, floor), ZERO, tol=1e-8, max_iter=20_000)
    assert res.status is ps.Status.INEXACT
    assert not res.success
    assert "inner solver" in res.message
    assert res.inner_failures > 0
    g = F.gradient(res.x)
    true = np.linalg.norm(res.x - ps.prox.L1(0.05).prox(res.x - g / F.L, 1 / F.L)) * F.L
    assert true <= res.certificate
    assert res.certificate <= 30 * floor * F.L


class Tied:
    """A prox of somebody else that keeps the contract of an inexact one."""

    def __init__(self) -> None:
        self.tolerance, self.last, self.worst, self.calls, self.failures = 1e-3, None, None, 0, 0
        self.asked: set[float] = set()

    def __call__(self, x: np.ndarray) -> float:
        return 0.1 * float(np.abs(x).sum())

    def prox(self, x: np.ndarray, t: float) -> np.ndarray:
        self.asked.add(self.tolerance)
        self.last = self.worst = prox.Inner(self.tolerance / 2, self.tolerance, 1)
        return np.sign(x) * np.maximum(np.abs(x) - 0.1 * t, 0.0)

    def reset(self) -> None:
        """Nothing is kept."""


def test_an_inexact_prox_of_somebody_else_is_tied_to_the_certificate() -> None:
    psi = Tied()
    assert prox.as_prox(psi) is psi
    found = ps.minimize(gentle(), psi, np.zeros(20), tol=1e-6)
    assert found.success
    assert found.inner is psi.worst
    assert min(psi.asked) < 1e-6


def test_a_prox_that_contradicts_itself_is_no_success() -> None:
    """Its certificate is small, and proves nothing."""

    class Rotates(prox.Operator):
        def __call__(self, x: np.ndarray) -> float:
            return 0.0

        def prox(self, x: np.ndarray, t: float) -> np.ndarray:
            return 1.5 * x - 0.5

    with pytest.warns(prox.ProxWarning, match="not firmly nonexpansive"):
        found = ps.minimize(
            gentle(), Rotates(), np.zeros(20) + 0.3, method="proxgd", gamma=0.5, tol=1e-6, max_iter=20_000
        )
    assert not found.success
    assert any("not firmly nonexpansive" in said for said in found.warnings)


def test_a_prox_that_stops_after_some_iterations_is_doubted_in_the_result() -> None:
    theirs = pytest.importorskip("pyproximal", reason="pyproximal is not installed")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = ps.minimize(gentle(), theirs.TV(dims=(20,), sigma=0.5), np.zeros(20), method="fista", tol=1e-6)
    assert any("the accuracy of its prox is unknown" in said for said in found.warnings)
    assert any("the accuracy of its prox is unknown" in str(w.message) for w in heard)


# -- manners -----------------------------------------------------------------------------------------------------------
def test_limits_are_kept() -> None:
    assert ps.minimize(F, ps.prox.L1(0.05), ZERO, max_prox=1).nprox == 1
    for limit in ("max_iter", "max_grad", "max_prox"):
        res = ps.minimize(F, ps.prox.L1(0.05), ZERO, tol=1e-12, method="proxgd", **{limit: 20})
        assert res.status is ps.Status.LIMIT
        assert {"max_iter": res.nit, "max_grad": res.ngrad - 1, "max_prox": res.nprox}[limit] <= 20
    steep = quadratic(kappa=1e12)  # far from its end after millions of steps
    res = ps.minimize(steep, ps.prox.L1(1e-9), ZERO, tol=1e-30, seconds=0.05, method="proxgd", max_iter=10**9)
    assert res.status is ps.End.LIMIT
    assert 0.05 <= res.seconds < 60


def test_a_tolerance_below_rounding_ends() -> None:
    res = ps.minimize(F, ps.prox.L1(0.05), ZERO, tol=1e-30)
    assert res.status is ps.Status.PRECISION
    assert res.certificate < 1e-12


def test_the_result_has_the_manners_of_scipy() -> None:
    res = ps.minimize(F, ps.prox.L1(0.05), ZERO, track=True)
    assert dict(res)["x"] is res.x is res["x"]
    assert "x" in res
    assert set(dict(res)) == set(res.keys())
    assert res["fun"] == pytest.approx(F.value(res.x) + 0.05 * np.abs(res.x).sum(), rel=1e-12)
    assert "certificate" in str(res)
    with pytest.raises(KeyError):
        res["gap"]
    fun = res.trace["fun"]
    assert np.all(fun >= fun[-1] - 1e-9)
    assert np.all(np.isnan(ps.minimize(F, ps.prox.L1(0.05), ZERO).trace["fun"]))


def test_the_callback_sees_records_and_can_stop() -> None:
    rows: list[dict[str, float]] = []

    def callback(row: dict[str, float], x: Array) -> None:
        rows.append(row)
        assert x.shape == (30,)
        if len(rows) == 5:
            raise StopIteration

    res = ps.minimize(F, ps.prox.L1(0.05), ZERO, callback=callback)
    assert len(rows) == 5
    assert res.status is ps.Status.STOPPED


def test_same_seed_same_answer() -> None:
    a, b, c = (ps.minimize(F, ps.prox.L1(0.05), ZERO, "proxskip", seed=s) for s in (3, 3, 4))
    assert np.array_equal(a.x, b.x)
    assert not np.array_equal(a.x, c.x)


def test_the_loop_itself_is_cheap() -> None:
    """Well under 15 us a step (see benchmarks), which is a few calls of numpy: here at most thirty of them."""

    def cost(act: Any, count: int) -> float:
        then = time.process_time()
        for _ in range(count):
            act()
        return (time.process_time() - then) / count

    small, out = np.ones(50), np.empty(50)

    class Free:
        L, mu, d = 1.0, 1e-4, 50
        zero = np.zeros(50)

        def value(self, x: Array) -> float:
            return 0.0

        def gradient(self, x: Array) -> Array:
            return self.zero

    for name in ("proxskip", "proxgd", "fista"):
        task, x0 = prepare(Free(), Wrong(lambda x, t: x), np.ones(50), name)
        run = Descent(task, method_maker(name), x0)
        best, unit, rounds = math.inf, math.inf, 20 if name == "proxskip" else 500
        for _ in range(8):
            done = run.solo.iterations
            spent = cost(run.advance, rounds) * rounds
            best = min(best, spent / (run.solo.iterations - done))
            unit = min(unit, cost(lambda: np.multiply(small, 0.5, out=out), 2000))
        run.close()
        assert best < 30 * unit, (best, unit)


def test_the_bound_holds_for_an_inexact_prox_too() -> None:
    task, x0 = prepare(F, Rough(0.05, 1e-3), ZERO, "proxskip")
    run = Descent(task, method_maker("proxskip"), x0, tol=1e-8)
    raw = []
    for _ in range(80):
        run.advance()
        g = F.gradient(run.x)
        true = np.linalg.norm(run.x - ps.prox.L1(0.05).prox(run.x - g / F.L, 1 / F.L)) * F.L
        assert true <= run.bound * (1 + 1e-9)
        raw.append(run.bound - true)
    assert min(raw) > 0
    assert run.solo.spoiled >= 1e-3 * F.L
    run.close()


# -- limits, and runs that end early -----------------------------------------------------------------------------------
def test_backtracking_ends_in_a_sentence() -> None:
    f = (
        lambda x: float(np.logaddexp(0, -4 * x).sum() + 0.1 * x @ x),
        lambda x: -4 / (1 + np.exp(4 * x)) + 0.2 * x,
    )
    for most in range(1, 8):
        res = ps.minimize(f, prox.L1(0.1), np.array([1.0, 1.0]), method="fista", max_grad=most)
        assert res.status is ps.Status.LIMIT
        assert "gradients without reaching" in res.message


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ours", [True, False])
def test_limits_hold_in_the_middle_of_a_long_round(ours: bool) -> None:
    """p = 1e-7 means ten million gradients between two proxes."""
    rng = np.random.default_rng(0)
    f = ps.LeastSquares(rng.standard_normal((50, 5)), rng.standard_normal(50), l2=0.1)
    given = f if ours else (f.value, f.gradient)
    found = ps.minimize(given, prox.L1(0.1), np.ones(5), L=f.L, p=1e-7, max_grad=5_000)
    assert found.status == 1
    assert 5_000 <= found.ngrad <= 5_000 + 2 * 256
    timed = ps.minimize(given, prox.L1(0.1), np.ones(5), L=f.L, p=1e-7, seconds=0.3)
    assert timed.status == 1
    assert timed.seconds < 60
    assert np.array_equal(timed.x, np.ones(5))  # what the round did counts for nothing


def test_long_rounds_have_the_bytes_of_one_call() -> None:
    rng = np.random.default_rng(0)
    f = ps.LeastSquares(rng.standard_normal((50, 5)), rng.standard_normal(50), l2=0.1)
    found = [ps.minimize(g, prox.L1(0.1), np.zeros(5), L=f.L, p=1e-3, max_prox=6) for g in (f, (f.value, f.gradient))]
    assert found[0].ngrad == found[1].ngrad > 2_000
    assert np.abs(found[0].x - found[1].x).max() < 1e-12


@pytest.mark.parametrize("L", [1.0, None])
@pytest.mark.parametrize("method", ["proxskip", "fista", "proxgd"])
def test_a_gradient_that_stops_being_finite_ends_the_run(method: str, L: float | None) -> None:
    f, calls = gentle(), 0

    def gradient(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return f.gradient(x) if calls < 20 or calls % 2 else np.full(20, np.nan)

    found = ps.minimize((f.value, gradient), prox.L1(0.1), np.zeros(20), L=L, mu=0.1, method=method, tol=1e-12)
    assert found.status == 2
    assert np.isfinite(found.x).all()


def test_a_callback_cannot_change_the_answer() -> None:
    def shift(row: dict[str, float], x: np.ndarray) -> None:
        x -= 1.0

    f = gentle(5)
    how = {"method": "fista-restart"}  # "auto" looks at the clock
    assert np.array_equal(ps.minimize(f, prox.L1(0.1), callback=shift, **how).x, ps.minimize(f, prox.L1(0.1), **how).x)
