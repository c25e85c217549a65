"""minimize: the methods of the family without clients, their certificates, and what happens to bad input."""

import itertools
import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import proxskip as ps
from proxskip import prox
from proxskip.minimizing.descent import Descent
from proxskip.minimizing.exchange import TooSteep
from proxskip.minimizing.setup import method_maker, prepare
from proxskip.prox import ProxWarning
from proxskip.types import Array, InputError, UnsafeStepWarning
from support.comparing import close
from support.problems import OwnProx, difference, few_steps, quadratic, scaled


def plain(f: Any) -> SimpleNamespace:
    """A function of one's own: value, gradient (whose calls are counted), L, mu."""
    return SimpleNamespace(value=f.value, gradient=Mock(side_effect=f.gradient), L=f.L, mu=f.mu)


class Counted(prox.Operator):
    """psi that counts its proxes, and after so many does something else."""

    def __init__(self, psi: Any, right: float = math.inf, wrong: Any = None) -> None:
        self.psi, self.calls, self.right, self.wrong = psi, 0, right, wrong

    def __call__(self, x: Array) -> float:
        return float(self.psi(x))

    def prox(self, x: Array, t: float) -> Array:
        self.calls += 1
        return np.asarray(self.psi.prox(x, t)) if self.calls <= self.right else self.wrong(x)


F, L1, ZERO = quadratic(), prox.L1(0.05), np.zeros(30)
DIFFERENCE = difference(30)


def residual(x: Array, psi: Any = L1) -> float:
    """The certificate of x as a minimizer of F + psi, computed anew."""
    return float(np.linalg.norm(x - psi.prox(x - F.gradient(x) / F.L, 1 / F.L)) * F.L)


def operator(back: Any) -> LinearOperator:
    """The identity, and something for its transpose."""
    return LinearOperator((30, 30), matvec=lambda v: v, rmatvec=back)


def regression(rows: int = 60, d: int = 12, seed: int = 1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, d))
    return A, A @ np.where(np.arange(d) < 4, 1.0, 0.0) + 0.3 * rng.standard_normal(rows)


@pytest.mark.parametrize("D", [None, DIFFERENCE[:11, :12]], ids=["plain", "D"])
def test_the_trajectory_is_that_of_run(D: Any) -> None:
    A, b = regression()
    kinds = (ps.ProxSkip, ps.ProxGD, ps.Fista) if D is None else (ps.SplitSkip, ps.PDHG)
    for f in (ps.Logistic(A, b > 0, l2=0.01), quadratic(d=12)):
        problem = ps.Problem([f]).with_psi(ps.prox.L1(0.02), D)
        for method in (kind.theory(problem) for kind in kinds):
            task, start = prepare(f, problem.psi, np.zeros(f.d), method.name, D=D, p=0.5)
            run = Descent(task, lambda p, s, method=method: method, start, seed=7)
            for _ in range(25):
                run.advance()
            assert close(run.x, ps.run(method, problem, rounds=25, seed=7).x, 1e-11)
            run.close()


@pytest.mark.parametrize("method", ["proxgd", "fista", "fista-restart", "proxskip"])
@pytest.mark.parametrize(
    "psi",
    [L1, ps.prox.NonNegative(), ps.prox.ElasticNet(0.02, 0.1), ps.prox.Simplex(), None],
    ids=lambda psi: type(psi).__name__,
)
def test_the_certificate_is_what_it_says_and_everything_is_counted(method: str, psi: Any) -> None:
    f, counted = plain(F), Counted(psi or ps.prox.Zero())
    res = ps.minimize(f, psi and counted, ZERO, method=method, tol=1e-9)
    assert res.status is ps.Status.CONVERGED == 0
    assert res.ngrad == f.gradient.call_count
    if psi is not None:
        assert res.nprox == counted.calls == res.trace["nprox"][-1]
        assert np.all(np.diff(res.trace["nprox"]) > 0)
    assert res.certificate == pytest.approx(residual(res.x, counted), rel=1e-3, abs=1e-13)
    assert res.certificate <= 1e-9
    # strong convexity: |x - x*| <= certificate (1/mu + 1/L)
    exact: Any = ps.Problem([F], psi=psi).solution
    assert np.linalg.norm(res.x - exact.x) <= 1e-9 * (1 / F.mu + 1 / F.L) * 1.01


@pytest.mark.parametrize("method", ["papc", "splitskip", "pdhg", "apda"])
def test_everything_is_counted_with_d_and_the_certificate_is_true(method: str) -> None:
    f, psi, D = plain(F), Counted(L1), DIFFERENCE
    res = ps.minimize(f, psi, ZERO, D=D, method=method, p=0.5 if method == "splitskip" else None, tol=1e-8)
    assert res.success
    assert (res.ngrad, res.nprox) == (f.gradient.call_count, psi.calls)
    primal = f.gradient(res.x) + D.T @ res.y
    dual = res.y - prox.conjugate_prox(psi, res.y + D @ res.x, 1.0)
    assert res.certificate == pytest.approx(np.linalg.norm(primal) + np.linalg.norm(dual), rel=1e-3, abs=1e-13)
    if method == "papc":
        assert np.array_equal(ps.minimize(F, L1, ZERO, D=D, method="splitskip", p=1.0, tol=1e-8).x, res.x)


@pytest.mark.parametrize("floor", [None, 1e-3])
@pytest.mark.parametrize("name", ["proxskip", "proxgd", "fista-restart"])
def test_the_bound_of_a_prox_is_never_below_the_certificate(name: str, floor: float | None) -> None:
    """Of an exact prox, and of one with an error that it admits."""
    task, x0 = prepare(F, L1 if floor is None else Rough(0.05, floor), ZERO, name)
    run = Descent(task, method_maker(name), x0, tol=1e-8)
    for _ in range(60):
        run.advance()
        assert residual(run.x) <= run.bound * (1 + 1e-9) + 1e-14
    assert floor is None or run.solo.spoiled >= floor * F.L
    run.close()


def test_h_is_the_gradient_and_minus_h_a_subgradient() -> None:
    res = ps.minimize(F, L1, ZERO, tol=1e-10)
    assert np.abs(res.h - F.gradient(res.x)).max() < 1e-8
    assert np.all(np.abs(res.h) <= 0.05 + 1e-8)
    assert np.allclose(-res.h[np.abs(res.x) > 1e-8], 0.05 * np.sign(res.x[np.abs(res.x) > 1e-8]), atol=1e-8)
    assert ps.minimize(F, L1, res.x, dual=res.h, tol=1e-8).nprox <= 3


def test_a_certificate_does_not_trust_an_L_that_its_gradients_contradict() -> None:
    q = ps.Quadratic(np.geomspace(0.1, 1, 5), np.array([1.0, -1, 0.03, 0.2, 0.02]))
    with pytest.warns(UnsafeStepWarning, match="steeper than L"):
        assert not ps.minimize((q.value, q.gradient), prox.Box(-1, 1), np.zeros(5), method="fista", L=1e-9).success
    with pytest.warns(UnsafeStepWarning, match="steeper than L"):
        ps.minimize((F.value, F.gradient), L1, np.ones(30), L=0.45 * F.L, mu=F.mu, max_iter=300)


def test_a_strong_convexity_of_rounding_is_none() -> None:
    for seed in range(20):
        A = np.random.default_rng(seed).standard_normal((60, 6))
        f = ps.LeastSquares(np.column_stack([A, A[:, 0] + A[:, 1]]), np.ones(60))
        assert f.mu == 0.0
        with pytest.raises(ps.InputError, match="mu is unknown"):
            ps.minimize(f, prox.L1(0.01), method="proxskip")
    assert ps.Quadratic(np.ones((4, 4)), np.ones(4)).mu == 0.0
    assert ps.Quadratic(np.diag([1e-9, 1.0]), np.ones(2)).mu == pytest.approx(1e-9)


@pytest.mark.parametrize("method", ["papc", "splitskip", "pdhg", "apda", "auto"])
def test_fused_lasso_of_scipy(method: str) -> None:
    """f + |D x|_1 as a smooth problem with bounds in the dual: y in a box, x = H^-1 (b - D'y)."""
    f, D, lam = quadratic(kappa=10, d=12), DIFFERENCE[:11, :12], 0.2
    inverse = np.linalg.inv(f.H)

    def dual(y: Array) -> tuple[float, Array]:
        r = f.b - D.T @ y
        return 0.5 * float(r @ inverse @ r), -D @ inverse @ r

    exactly = {"ftol": 1e-16, "gtol": 1e-12}
    bounds = [(-lam, lam)] * 11
    y = scipy.optimize.minimize(dual, np.zeros(11), jac=True, bounds=bounds, method="L-BFGS-B", options=exactly).x
    other = inverse @ (f.b - D.T @ y)
    for operator in (D, D.astype(np.int8), scipy.sparse.csr_matrix(D), aslinearoperator(D)):
        p = 0.5 if method == "splitskip" and not hasattr(operator, "toarray") else None
        res = ps.minimize(f, ps.prox.L1(lam), np.zeros(12), D=operator, method=method, tol=1e-10, p=p)
        assert res.success
        assert np.abs(res.x - other).max() < 1e-4  # how exact the other library is depends on the machine
        assert res.fun <= f.value(other) + lam * np.abs(D @ other).sum() + 1e-10


@pytest.mark.long
def test_an_operator_of_pylops_is_the_matrix_it_stands_for() -> None:
    pylops = pytest.importorskip("pylops", reason="pylops is not installed")
    f = quadratic(10.0)
    D = pylops.FirstDerivative(30, kind="forward", edge=False)  # its last row is zero
    res = ps.minimize(f, prox.L1(0.2), ZERO, D=D, method="papc", tol=1e-9)
    assert res.success
    assert np.abs(res.x - ps.minimize(f, prox.TV1D(0.2), ZERO, tol=1e-10).x).max() < 1e-7


def test_f_in_every_form_gives_one_answer() -> None:
    x, pair = ps.minimize(F, L1, ZERO, tol=1e-10).x, (F.value, F.gradient)
    forms = [(plain(F), {}), (pair, {"L": F.L, "mu": F.mu}), (pair, {"mu": F.mu}), (pair, {"p": 0.1})]
    for form, given in forms:
        assert np.abs(ps.minimize(form, L1, ZERO, tol=1e-9, **given).x - x).max() < 1e-6
    for method in ("fista", "fista-restart", "proxgd", "apda"):
        res = ps.minimize(pair, L1, ZERO, method=method, tol=1e-9)
        assert res.success
        assert res.parameters["L"] <= 2 * F.L
        assert np.abs(res.x - x).max() < 1e-6


def test_operators_as_data_have_a_certified_l() -> None:
    A, b = regression()
    dense, f = ps.LeastSquares(A, b), ps.LeastSquares(aslinearoperator(A), b)
    assert dense.L <= f.L <= 1.011 * dense.L
    assert close(*(ps.minimize(g, L1, method="fista", tol=1e-10).x for g in (f, dense)), 1e-8)
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


def test_sproxskip_has_the_constants_of_expected_smoothness() -> None:
    A, b = regression(rows=200)
    f = ps.Logistic(A, b > 0, l2=0.1)
    res = ps.minimize(f, ps.prox.L1(0.01), method="sproxskip", batch=10, max_iter=500, tol=1e-12)
    gamma = 1 / (2 * ps.theory.minibatch_smoothness(200, 10, f.L, f.L_rows))
    assert res.parameters["gamma"] == pytest.approx(gamma)
    assert ps.Problem([f], batch=10).es_A == pytest.approx(1 / gamma)
    assert res.parameters["p"] == pytest.approx(math.sqrt(res.parameters["gamma"] * f.mu))
    assert res.status is ps.Status.LIMIT
    assert res.passes == pytest.approx((res.nit * 10 + (res.ngrad - res.nit) * 200) / 200)


def test_a_finite_sum_of_ones_own_is_sampled_like_ours_and_sees_the_shape_of_x0_as_psi_does() -> None:
    ours, l1 = ps.LeastSquares(*regression(rows=100), l2=0.1), prox.L1(0.1)

    def flat(X: Array) -> Array:
        assert X.shape == (3, 4)
        return X.reshape(12)

    own = plain(ours)
    own.N, own.L_rows, own.value = ours.N, ours.L_rows, lambda X: ours.value(flat(X))
    own.gradient = lambda X: ours.gradient(flat(X)).reshape(3, 4)
    own.minibatch_gradient = lambda X, rows: ours.minibatch_gradient(flat(X), rows).reshape(3, 4)
    given = {"method": "sproxskip", "batch": 5, "max_iter": 200, "tol": 1e-12}
    x = ps.minimize(ours, l1, **given).x
    shrink = OwnProx(lambda X, t: l1.prox(flat(X), t).reshape(3, 4), l1)
    found = ps.minimize(own, shrink, np.zeros((3, 4)), **given)
    assert found.h.shape == (3, 4)
    assert close(found.x, x.reshape(3, 4), 1e-10)
    own.minibatch_gradient = lambda *_: np.zeros(3)
    with pytest.raises(ps.InputError, match="the gradient of f has shape"):
        ps.minimize(own, l1, np.zeros((3, 4)), **given)


def test_a_long_run_keeps_a_record_of_every_hundredth_part() -> None:
    rounds = ps.minimize(quadratic(1e5), L1, method="proxgd", tol=1e-9, max_prox=3000).trace["nprox"]
    assert 300 < len(rounds) < 1000
    assert np.all(np.diff(rounds) <= 2 + rounds[1:] / 100)


@pytest.mark.parametrize("seed", range(4))
def test_the_returned_x_is_the_best_certified_one(seed: int) -> None:
    f = ps.LeastSquares(*regression(200, 10), l2=0.1)
    res = ps.minimize(f, L1, method="sproxskip", batch=20, tol=1e-12, max_grad=4000, seed=seed)
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


ASKED: list[Any] = [
    lambda client, exchange: client.descend(ZERO, 0.0, 0.1, 2, anchor=(ZERO, ZERO, 0.5)),
    lambda client, exchange: client.descend(ZERO, 0.0, 0.1, 2, pull=(1.0, ZERO), until=0.1),
    lambda client, exchange: client.send(ZERO, ps.codecs.RandK(2)),
    lambda client, exchange: client.gradient(ZERO, where=True),
    lambda client, exchange: exchange(lambda *_: ((), {}), ZERO, K=1, own={"asleep": np.zeros(1)}),
]


@pytest.mark.parametrize("ask", ASKED)
def test_what_only_clients_have_is_refused(ask: Any) -> None:
    task, start = prepare(F, L1, ZERO, "proxgd")
    run = Descent(task, method_maker("proxgd"), start)
    with pytest.raises(InputError, match="needs clients, which minimize does not have; give it to run"):
        ask(run.client, run.solo)
    run.close()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ps.minimize(3.0, prox.L1(1), ZERO), "no value"),
        (lambda: ps.minimize(F, object(), ZERO), "prox"),
        (lambda: ps.minimize((F.value, F.gradient), prox.L1(1)), "x0"),
        (lambda: ps.minimize(F, prox.L1(1), np.zeros(4)), "30 unknowns"),
        (lambda: ps.minimize(F, prox.L1(1), np.full(30, np.nan)), "finite"),
        (lambda: ps.minimize((F.value, F.gradient), prox.L1(1), ZERO, method="proxskip", L=1.0), "mu is unknown.*give mu"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, L=1.0, mu=2.0), "larger than L"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, p=1.5), r"\(0, 1\]"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, gamma=2.5), "diverge"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, tol=0.0), "tol"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, seed=-1), "seed"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, max_prox=0), "max_prox"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="newton"), "not known"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="sproxskip"), "batch"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="sproxskip", batch=2), "rows"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="splitskip"), "no D"),
        (lambda: ps.minimize(F, None, ZERO, D=np.eye(30), method="splitskip"), "without psi"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="fista", D=np.eye(30)), "cannot solve"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, D=np.eye(4), method="papc"), "columns"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, D=1j * np.eye(30), method="papc"), "real"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, dual=np.ones(3)), "dual"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, tau=0.5), "proxskip has no tau"),
        (lambda: ps.minimize((F.value, lambda x: x[:3]), prox.L1(1), ZERO, L=1, mu=0.1), "shape"),
        (lambda: ps.minimize(F, OwnProx(lambda x, t: np.full_like(x, np.nan)), ZERO), "OwnProx gave numbers.*not finite"),
        (lambda: ps.minimize(ps.LeastSquares, prox.L1(0.1), ZERO), "is the class"),
        (lambda: ps.minimize(ps.LeastSquares, prox.L1(0.1)), "is the class"),
        (lambda: ps.minimize((lambda x: "a", F.gradient), prox.L1(0.1), ZERO), "value of f is 'a'"),
        (lambda: ps.minimize((F.value, lambda x: ["a"] * 30), prox.L1(0.1), ZERO, max_iter=3), "it must be real numbers"),
        (lambda: ps.minimize(F, OwnProx(L1.prox, lambda x: None), ZERO), "gave None where psi"),
        (lambda: prox.L1("a"), "L1 needs a finite lam >= 0, not lam = a"),
        (lambda: ps.Problem(None), "clients must be a list"),
        (lambda: ps.Problem(3), "clients must be a list"),
        (lambda: ps.Problem([ps.LeastSquares]), "client 0 is the class LeastSquares"),
        (lambda: ps.Problem([F, F], "equal"), "weights must be 2 real numbers, not 'equal'"),
        (lambda: ps.Problem([F, F], [1j, 1.0]), "weights must be 2 real numbers"),
        (lambda: ps.minimize((lambda x: 0.0, lambda x: 1 / x), prox.L1(1), ZERO, L=1.0, mu=1.0), "not finite; start else"),
        (lambda: ps.minimize((lambda x: 0.0, lambda x: np.add(x, 1, out=x)), prox.L1(1), ZERO.copy(), L=1), "changes the x"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="fista", p=0.5), "has no p"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method=ps.ProxSkip(0.5, 0.2), p=0.9), "has its own p"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method=ps.ProxSkip), "neither a name nor a method"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO + 1j), "x0 must be real numbers"),
        (lambda: ps.minimize(F, prox.L1(1), "abc"), "x0 must be real numbers, not 'abc'"),
        (lambda: ps.minimize(F, prox.L1(1), scipy.sparse.csr_array(np.zeros((1, 30)))), "x0 is sparse"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="apda", dual="abc"), "dual must be real numbers"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="papc", D=np.zeros((3, 30))), "finite numbers, and not zeros"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method=ps.GD(0.1)), "has no prox step"),
        (lambda: ps.minimize(LONG, None, method=ps.ProxSkipVR(0.1, 0.1, 0.1)), "needs clients.* give it to run"),
        (lambda: ps.minimize(LONG, None, method=ps.ScaffnewVR(0.01, 0.1, 0.1), batch=2), "needs clients.* give it to run"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="papc", D=operator(None)), "no transpose"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method="papc", D=operator(lambda v: 2 * v)), "is not the transpose"),
        (lambda: ps.LeastSquares(operator(lambda v: 2 * v), ZERO), "is not the transpose"),
        (lambda: ps.minimize(F, prox.L1(1), ZERO, method=ps.Accelerated(0.1, 0.5), D=np.eye(30)), r"cannot solve psi\(D x\)"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        call()
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


NAN, NO_SHAPE = lambda x: np.full_like(x, np.nan), lambda x: None


@pytest.mark.parametrize(
    ("method", "calls", "wrong", "match"),
    [
        *((method, 70, NAN, "gave numbers.*not finite") for method in ("proxgd", "fista", "fista-restart", "proxskip")),
        *(("apda", calls, NO_SHAPE, "gave shape") for calls in (0, 70)),
        *(("apda", calls, lambda x: np.maximum(x, 0, out=x), "changes the x it is given") for calls in (0, 70)),
    ],
)
def test_a_prox_that_fails_late_is_named(method: str, calls: int, wrong: Any, match: str) -> None:
    """At a call that is not checked beforehand. With a condition number of 1e8 no method has ended before."""
    psi, p = Counted(prox.L1(1e-3), calls, wrong), 0.9 if method == "proxskip" else None
    with pytest.raises(InputError, match=f"Counted {match}"):
        ps.minimize(quadratic(kappa=1e8), psi, ZERO + 1.0, method=method, p=p, tol=1e-300, max_prox=400)
    assert psi.calls > calls


def test_the_prox_of_a_certificate_is_always_checked() -> None:
    """Whatever f is, 0 would be certified: the bound at a prox that is not checked says so too."""
    with pytest.warns(ProxWarning, match="not firmly nonexpansive"):
        found = ps.minimize(quadratic(kappa=1e3), Counted(prox.L1(1e-3), 100, np.zeros_like), tol=1e-8)
    assert (found.success, found.status) == (False, 4)


def test_a_step_above_the_theorem_warns_and_one_that_diverges_says_so() -> None:
    with pytest.warns(UnsafeStepWarning):
        assert ps.minimize(F, L1, ZERO, gamma=1.5 / F.L, tol=1e-6).warnings
    with pytest.warns(UnsafeStepWarning):
        res = ps.minimize(F, L1, np.ones(30), gamma=40 / F.L, allow_unsafe_step=True)
    assert res.status is ps.Status.DIVERGED
    assert np.isfinite(res.x).all()
    assert np.isfinite(res.fun)


@pytest.mark.parametrize("D", [None, np.eye(3)])
def test_an_affine_f_is_minimized(D: Any) -> None:
    f = ps.Quadratic(np.zeros(3), np.array([1.0, -1.0, 0.2]))
    found = ps.minimize(f, prox.Box(-1.0, 2.0), D=D, tol=1e-9)
    assert found.success
    assert close(found.x, [2.0, -1.0, 2.0], 1e-7)


class Rough:
    """l1 by an inner solver that leaves an error of its tolerance, or of ``floor`` if that is larger."""

    def __init__(self, lam: float, floor: float = 0.0) -> None:
        self.exact, self.floor, self.tolerance = ps.prox.L1(lam), floor, 1e-3
        self.asked: list[float] = []
        self.reset()

    def reset(self) -> None:
        self.rng, self.calls, self.failures = np.random.default_rng(0), 0, 0
        self.last: prox.Inner | None = None
        self.worst: prox.Inner | None = None

    def __call__(self, x: Array) -> float:
        return self.exact(x)

    def prox(self, x: Array, t: float) -> Array:
        self.asked.append(self.tolerance)
        self.last = prox.Inner(max(self.tolerance, self.floor), self.tolerance, 1)
        self.calls, self.failures = self.calls + 1, self.failures + (not self.last.reached)
        self.worst = self.last if self.worst is None else max(self.worst, self.last, key=lambda i: i.accuracy)
        v = self.rng.standard_normal(x.shape)
        return self.exact.prox(x, t) + 0.99 * self.last.accuracy * v / np.linalg.norm(v)


def test_the_inner_tolerance_follows_the_certificate() -> None:
    """Also of an operator that has the contract's attributes and nothing of ours."""
    psi = Rough(0.05)
    assert prox.as_prox(psi) is psi
    res, exact = (ps.minimize(F, operator, ZERO, tol=1e-8) for operator in (psi, L1))
    assert res.success
    assert res.inner_failures == 0
    assert res.nprox <= 1.3 * exact.nprox + 3
    assert psi.asked[-1] < 1e-8 < 1e-3 < max(psi.asked)
    assert psi.tolerance == 1e-3
    assert res.inner is psi.worst
    assert res.inner.accuracy == max(psi.asked)
    assert residual(res.x) <= res.certificate <= 1e-8


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_an_inner_solver_that_misses_its_tolerance_is_told(scale: float) -> None:
    res = ps.minimize(scaled(F, scale), Rough(0.05 * scale, 1e-5), ZERO, tol=1e-8 * scale, max_iter=20_000)
    assert res.status is ps.Status.INEXACT
    assert "inner solver" in res.message
    assert res.inner_failures > 0
    # what the prox may hide is part of the certificate
    assert max(residual(res.x), 1e-5 * F.L) <= res.certificate / scale <= 30e-5 * F.L


OPERATORS: dict[str, Any] = {
    "none": lambda scale: None,
    "exact": lambda scale: prox.L1(0.05 * scale),
    "one's own": lambda scale: OwnProx(prox.L1(0.05 * scale).prox, prox.L1(0.05 * scale)),
    "one's own, inexact": lambda scale: few_steps(0.05 * scale, 3),
    "one's own, almost exact": lambda scale: few_steps(0.05 * scale, 60),
    "with an inner solver": lambda scale: prox.Sum(prox.TV1D(0.05 * scale), prox.NonNegative()),
    "with an inner solver that fails": lambda scale: Rough(0.05 * scale, 1e-5),
}


@pytest.mark.filterwarnings("ignore::proxskip.prox.ProxWarning")
@pytest.mark.parametrize("method", ["fista", "fista-restart", "apda", "proxskip"])
@pytest.mark.parametrize("L_is_known", [True, False])
@pytest.mark.parametrize("name", OPERATORS)
def test_another_unit_of_f_and_psi_changes_the_unit_of_the_certificate_alone(
    name: str, L_is_known: bool, method: str
) -> None:
    """A power of two changes no rounding either, so that all else is the same to the last bit."""
    found = []
    for scale in (2.0**-14, 1.0, 2.0**14):
        f = plain(scaled(F, scale))
        f.L, f.mu = scale * F.L if L_is_known else None, scale * F.mu
        res = ps.minimize(
            f,
            OPERATORS[name](scale),
            np.ones(30),
            method=method,
            tol=1e-4 * scale,
            max_iter=3000,
            p=0.3 if method == "proxskip" else None,
        )
        found.append((res.status, res.nit, res.nprox, res.certificate / scale, res.x.tolist()))
    assert found[0] == found[1] == found[2]


@pytest.mark.filterwarnings("ignore:TV is not firmly")
def test_a_prox_that_stops_after_some_iterations_is_doubted_in_the_result() -> None:
    theirs = pytest.importorskip("pyproximal", reason="pyproximal is not installed")
    psi, f = theirs.TV(dims=(20,), sigma=0.5), quadratic(10.0, 20)
    with pytest.warns(ProxWarning, match="the prox of TV is inexact, by about"):
        found = ps.minimize(f, psi, np.zeros(20), method="fista", tol=1e-6)
    assert found.status is ps.Status.INEXACT
    assert any("is inexact, by about" in said for said in found.warnings)


@pytest.mark.parametrize("method", ["fista", "apda", "auto"])
def test_exact_blocks_below_rounding_are_a_matter_of_precision(method: str) -> None:
    psi = prox.Blocks([prox.L1(0.05), prox.Zero()], [20, 10])
    found = ps.minimize(F, psi, method=method, tol=1e-30)
    assert found.status is ps.Status.PRECISION
    assert found.inner is None


def test_limits_are_kept() -> None:
    assert ps.minimize(F, L1, ZERO, max_prox=1).nprox == 1
    for method, limit in itertools.product(("proxgd", "auto"), ("max_iter", "max_grad", "max_prox")):
        res = ps.minimize(F, L1, ZERO, tol=1e-12, method=method, **{limit: 20})
        assert res.status is ps.Status.LIMIT
        assert {"max_iter": res.nit, "max_grad": res.ngrad - 1, "max_prox": res.nprox}[limit] <= 20
    steep = quadratic(kappa=1e12)  # far from its end after millions of steps
    res = ps.minimize(steep, ps.prox.L1(1e-9), ZERO, tol=1e-30, seconds=0.05, method="proxgd", max_iter=10**9)
    assert res.status is ps.Status.LIMIT
    assert 0.05 <= res.seconds < 60


def test_the_result_has_the_manners_of_scipy() -> None:
    res = ps.minimize(F, L1, ZERO, track=True)
    assert dict(res)["x"] is res.x is res["x"]
    assert res["fun"] == pytest.approx(F.value(res.x) + 0.05 * np.abs(res.x).sum(), rel=1e-12)
    assert "certificate" in str(res)
    with pytest.raises(KeyError):
        res["gap"]
    fun = res.trace["fun"]
    assert np.all(fun >= fun[-1] - 1e-9)
    assert np.all(np.isnan(ps.minimize(F, L1, ZERO).trace["fun"]))


class Meddler(ps.callbacks.Callback):
    """Writes down what it hears, changes every x that it gets, and stops at a number of records."""

    def __init__(self, most: float) -> None:
        self.most = most
        self.heard: list[str] = []
        self.steps: list[int] = []

    def on_run_start(self, config: dict[str, Any]) -> None:
        self.heard.append(f"{config['method']} to {config['stop']['tol']:g}")

    def on_record(self, step: int, metrics: Any) -> None:
        x = metrics.x
        x -= np.ones(30)
        self.steps.append(step)
        if len(self.steps) == self.most:
            raise StopIteration("five are enough.")

    def on_run_end(self, result: Any) -> None:
        self.heard.append(result.status.name)


def test_callbacks_hear_a_minimization_can_stop_it_and_cannot_change_its_answer() -> None:
    how = {"method": "fista-restart"}  # "auto" looks at the clock
    five, all_of_it = Meddler(5), Meddler(np.inf)
    stopped = ps.minimize(F, L1, ZERO, callbacks=[five], **how)
    assert len(five.steps) == 5
    assert stopped.status is ps.Status.STOPPED
    assert stopped.message.startswith("stopped by a callback: five are enough (certificate")
    assert five.heard == ["fista-restart to 1e-08", "STOPPED"]
    whole = ps.minimize(F, L1, ZERO, callbacks=[all_of_it], **how)
    assert all_of_it.steps == whole.trace["iteration"].tolist()
    assert len(all_of_it.steps) > 20
    assert np.array_equal(whole.x, ps.minimize(F, L1, ZERO, **how).x)
    with pytest.raises(ps.InputError, match="has none of"):
        ps.minimize(F, L1, ZERO, callbacks=[lambda row, x: None])


LONG = ps.LeastSquares(*regression(50, 5), l2=0.1)
PAIR = (LONG.value, LONG.gradient)


@pytest.mark.parametrize("most", range(1, 8))
def test_backtracking_ends_in_a_sentence(most: int) -> None:
    res = ps.minimize(PAIR, prox.L1(0.1), np.ones(5), method="fista", max_grad=most)
    assert res.status is ps.Status.LIMIT
    assert "gradients without reaching" in res.message


@pytest.mark.timeout(120)
@pytest.mark.parametrize("f", [LONG, PAIR], ids=["ours", "own"])
def test_limits_hold_in_the_middle_of_a_long_round(f: Any) -> None:
    """p = 1e-7 means ten million gradients between two proxes."""
    found = ps.minimize(f, prox.L1(0.1), np.ones(5), L=LONG.L, p=1e-7, max_grad=5_000)
    assert found.status == 1
    assert 5_000 <= found.ngrad <= 5_000 + 2 * 256
    timed = ps.minimize(f, prox.L1(0.1), np.ones(5), L=LONG.L, p=1e-7, seconds=0.3)
    assert timed.status == 1
    assert timed.seconds < 60
    assert np.array_equal(timed.x, np.ones(5))  # what the round did counts for nothing


def test_long_rounds_take_the_steps_of_one_call() -> None:
    found = [ps.minimize(g, prox.L1(0.1), np.zeros(5), L=LONG.L, p=1e-3, max_prox=6) for g in (LONG, PAIR)]
    assert found[0].ngrad == found[1].ngrad - 1 > 2_000  # the gradient of one's own f is compared with its value
    assert np.abs(found[0].x - found[1].x).max() < 1e-12


@pytest.mark.parametrize("L", [1.0, None])
@pytest.mark.parametrize("method", ["proxskip", "fista", "proxgd"])
def test_a_gradient_that_stops_being_finite_ends_the_run(method: str, L: float | None) -> None:
    f, calls = quadratic(10.0, 20), itertools.count(1)

    def gradient(x: np.ndarray) -> np.ndarray:
        call = next(calls)
        return f.gradient(x) if call < 20 or call % 2 else np.full(20, np.nan)

    found = ps.minimize((f.value, gradient), prox.L1(0.1), np.zeros(20), L=L, mu=0.1, method=method, tol=1e-12)
    assert found.status == 2
    assert np.isfinite(found.x).all()


@pytest.mark.parametrize("method", ["apda", "proxskip"])
def test_a_round_whose_step_was_too_long_leaves_no_trace(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The curvature that shows it may be seen in the last gradient, when x and h are already new."""
    made, before, kept = Descent._round, [], []
    bound, raise_L = Descent._bound, Descent._raise_L

    def of_round(self: Descent) -> bool:
        before.append((self.x, self.dual))
        return made(self)

    def of_bound(self: Descent) -> bool:
        if len(before) == 5 and not kept:
            self.client.steepest = 2 * (self.f.L or 0.0)
            raise TooSteep
        return bound(self)

    def of_raise_L(self: Descent, seen: float) -> None:
        if len(before) == 5:
            kept.append((self.x, self.dual))
        raise_L(self, seen)

    for name, patched in (("_round", of_round), ("_bound", of_bound), ("_raise_L", of_raise_L)):
        monkeypatch.setattr(Descent, name, patched)
    f = quadratic(30.0, 10)
    res = ps.minimize((f.value, f.gradient), prox.L1(0.1), np.zeros(10), method=method, tol=1e-6, mu=f.mu)
    assert res.success
    ((x, h),) = kept
    assert x is before[4][0]
    assert h is before[4][1]
    assert before[5][0] is x
