"""Mistakes that a reading of minimize and the operators found, each kept from coming back."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import proxskip as ps
from proxskip import prox


def quadratic(d: int = 20) -> ps.Quadratic:
    return ps.Quadratic(np.geomspace(0.1, 1, d), np.ones(d))


def test_a_part_without_a_multiplier_is_no_proof() -> None:
    both = prox.intersection(prox.Box((0.0, 1.0), (2.0, 6.0)), prox.Consensus(2))
    assert np.abs(both.prox(np.array([0.0, 6.0]), 1.0) - 2.0).max() < 1e-7
    rng = np.random.default_rng(0)
    for _ in range(60):
        lo = rng.normal(size=3)
        both = prox.intersection(prox.Box(tuple(lo), tuple(lo + 3 * rng.random(3))), prox.Consensus(3))
        y = both.prox(np.clip(3 * rng.normal(size=3), lo, lo + 1), 1.0)
        assert not both.last.reached or np.isfinite(both(y)) or not (np.max(lo) < np.min(lo + 3))


@pytest.mark.timeout(120)
def test_total_variation_of_what_is_not_finite_ends() -> None:
    assert np.isnan(prox.TV1D(1.0).prox(np.array([1.0, 2.0, np.nan]), 1.0)).all()
    q = quadratic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        assert not ps.minimize((q.value, q.gradient), prox.TV1D(0.1), np.zeros(20), L=1e-3, p=0.003).success


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


def test_a_matrix_of_the_transposed_shape_is_refused() -> None:
    with pytest.raises(ps.InputError, match="made for shape"):
        prox.NuclearNorm(0.5, (2, 3)).prox(np.zeros((3, 2)), 1.0)


def test_a_certificate_does_not_trust_an_L_that_its_gradients_contradict() -> None:
    q = ps.Quadratic(np.geomspace(0.1, 1, 5), np.array([1.0, -1, 0.03, 0.2, 0.02]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.UnsafeStepWarning)
        res = ps.minimize((q.value, q.gradient), prox.Box(-1, 1), np.zeros(5), method="fista", L=1e-9)
    assert not res.success


def test_backtracking_ends_in_a_sentence() -> None:
    f = (
        lambda x: float(np.logaddexp(0, -4 * x).sum() + 0.1 * x @ x),
        lambda x: -4 / (1 + np.exp(4 * x)) + 0.2 * x,
    )
    for most in range(1, 8):
        res = ps.minimize(f, prox.L1(0.1), np.array([1.0, 1.0]), method="fista", max_grad=most)
        assert res.status.name == "LIMIT"
        assert "gradients without reaching" in res.message


def test_a_callback_cannot_change_the_answer() -> None:
    def shift(row: dict[str, float], x: np.ndarray) -> None:
        x -= 1.0

    f = quadratic(5)
    assert np.array_equal(ps.minimize(f, prox.L1(0.1), callback=shift).x, ps.minimize(f, prox.L1(0.1)).x)


def test_the_same_inexact_operator_twice_counts_twice() -> None:
    P = prox.TV2D(0.5, (8, 8), max_iterations=5, tolerance=1e-10, warm=False)
    both = prox.Blocks([P, P], [64, 64])
    both.prox(np.concatenate([10 * np.random.default_rng(0).standard_normal(64), np.zeros(64)]), 1.0)
    assert both.last.accuracy > 0


def test_small_curvature_loses_no_digits() -> None:
    rng = np.random.default_rng(0)
    A, b = 1e-4 * rng.standard_normal((40, 10)), 1e4 * rng.standard_normal(40)
    assert ps.minimize(ps.LeastSquares(A, b), prox.L1(1e-3), np.zeros(10), method="fista", tol=1e-9).success


def test_a_gradient_may_reuse_its_buffer() -> None:
    w, buffer = np.geomspace(0.01, 3.0, 20), np.empty(20)

    def gradient(x: np.ndarray) -> np.ndarray:
        np.multiply(w, x, out=buffer)
        np.subtract(buffer, 1.0, out=buffer)
        return buffer

    f = (lambda x: float(0.5 * w @ x**2 - x.sum()), gradient)
    assert ps.minimize(f, prox.L1(0.1), np.zeros(20), method="fista", tol=1e-7).success


def test_operators_without_a_matrix_may_be_small() -> None:
    D = np.diff(np.eye(12), axis=0)
    f = ps.Quadratic(np.geomspace(0.1, 1, 12), np.arange(12) / 3)
    x = ps.minimize(f, prox.L1(0.3), D=D, method="splitskip").x
    assert np.abs(ps.minimize(f, prox.L1(0.3), D=aslinearoperator(D), method="splitskip").x - x).max() < 1e-6
    assert np.abs(ps.minimize(f, prox.L1(0.3), D=D.astype(np.int8), method="splitskip").x - x).max() < 1e-6


def test_numbers_that_are_whole_or_huge() -> None:
    assert prox.TV1D(1.0)(np.array([1, 0], np.uint8)) == 1.0
    assert np.allclose(prox.L2Ball().prox(np.array([1e200, 0.0]), 1.0), [1.0, 0.0])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": "auto", "max_grad": 50}, "no limits"),
        ({"method": "fista", "p": 0.5}, "has no p"),
        ({"method": "fista", "tau": 0.5}, "has no tau"),
        ({"method": ps.ProxSkip(0.5, 0.2), "p": 0.9}, "has its own p"),
        ({"method": ps.ProxSkip}, "neither a name nor a method"),
        ({"method": None}, "neither a name nor a method"),
        ({"inner_tol": -1.0}, "inner_tol"),
        ({"x0": np.zeros(20) + 1j}, "complex"),
        ({"D": np.zeros((3, 20)), "method": "splitskip"}, "finite numbers, and not zeros"),
        ({"D": np.full((3, 20), np.nan), "method": "splitskip"}, "finite numbers, and not zeros"),
    ],
)
def test_what_would_be_ignored_or_break_is_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ps.InputError, match=sentence):
        ps.minimize(quadratic(), prox.L1(0.1), **{"x0": np.zeros(20), **given})


def test_f_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ps.InputError, match="is the class"):
        ps.minimize(ps.LeastSquares, prox.L1(0.1), np.zeros(3))
    with pytest.raises(ps.InputError, match="not finite; start elsewhere"):
        ps.minimize((lambda x: float(np.log(x).sum()), lambda x: 1 / x), prox.L1(0.1), np.zeros(3), L=1.0, mu=1.0)
    with pytest.raises(ps.InputError, match="finite lam"):
        prox.L1(np.array([1.0, 2.0]))


def test_a_minimum_reads_like_a_mapping() -> None:
    res = ps.minimize(quadratic(), prox.L1(0.1))
    assert "x" in res
    assert set(dict(res)) == set(res.keys())


@pytest.mark.parametrize("seed", range(4))
def test_the_returned_x_is_the_best_certified_one(seed: int) -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((200, 10))
    f = ps.LeastSquares(A, A @ rng.standard_normal(10) + rng.standard_normal(200), l2=0.1)
    given = {"method": "sproxskip", "batch": 20, "tol": 1e-12, "max_grad": 4000, "seed": seed}
    res = ps.minimize(f, prox.L1(0.05), np.zeros(10), **given)
    seen = res.trace["certificate"]
    assert res.certificate <= seen.min() * (1 + 1e-9) < 0.9 * seen[-1]


def test_values_of_small_integers_do_not_overflow() -> None:
    x = np.array([100, -128, 100, 100], dtype=np.int8)
    for psi in (prox.L1(0.5), prox.L2(0.5), prox.GroupL1(0.5, (2, 2)), prox.Huber(0.5, 1.0), prox.SquaredL2(0.5)):
        assert psi(x) == psi(x.astype(np.float64))


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [[0, 1], [2]], 5, [], [2, 0], [1.5, 2.5], "ab"])
def test_groups_that_are_no_sizes_get_a_sentence(groups: object) -> None:
    with pytest.raises(ps.InputError, match="needs group sizes"):
        prox.GroupL1(0.5, groups)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"seed": "a"}, "seed = 'a'"),
        ({"costs": (-1.0, 2.0)}, "the seconds of a gradient"),
        ({"worth": 2.0}, "worth = 2"),
    ],
)
def test_a_plan_refuses_what_it_cannot_use(words: dict, message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.plan(quadratic(), prox.L1(0.1), **words)


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


@pytest.mark.parametrize("method", ["splitskip", "papc", "pdhg"])
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


# -- what a prox of unknown accuracy does to a result --------------------------------------------------------------------
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
    found = ps.minimize(quadratic(), psi, np.zeros(20), tol=1e-6)
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
            quadratic(), Rotates(), np.zeros(20) + 0.3, method="proxgd", gamma=0.5, tol=1e-6, max_iter=20_000
        )
    assert not found.success
    assert any("not firmly nonexpansive" in said for said in found.warnings)


def test_a_prox_that_stops_after_some_iterations_is_doubted_in_the_result() -> None:
    theirs = pytest.importorskip("pyproximal", reason="pyproximal is not installed")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = ps.minimize(quadratic(), theirs.TV(dims=(20,), sigma=0.5), np.zeros(20), method="fista", tol=1e-6)
    assert any("nobody knows how exact" in said for said in found.warnings)
    assert any("nobody knows how exact" in str(w.message) for w in heard)


# -- limits --------------------------------------------------------------------------------------------------------------
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


def test_the_corollary_keeps_to_the_limits_and_to_names() -> None:
    rng = np.random.default_rng(0)
    f = ps.LeastSquares(rng.standard_normal((50, 5)), rng.standard_normal(50), l2=0.1)
    found = ps.minimize(f, prox.L1(0.1), np.zeros(5), method="sproxskip", batch=1, eps=1e-2, max_grad=50)
    assert found.status == 1
    assert found.ngrad < 150
    with pytest.raises(ps.InputError, match="leave it out"):
        ps.minimize(f, prox.L1(0.1), np.zeros(5), method=ps.SProxSkip(0.01, 0.1), batch=1, eps=1e-2)
    assert ps.minimize(f, prox.L1(0.1), np.zeros(5), max_prox=1).nprox == 1


# -- parts that would be left out, and operators that are none -------------------------------------------------------------
def test_what_a_method_would_leave_out_is_refused() -> None:
    f, psi = quadratic(), prox.L1(0.1)
    for method in (ps.GD(0.1), ps.LocalGD(0.1, 3)):
        with pytest.raises(ps.InputError, match="has no psi"):
            ps.minimize(f, psi, np.zeros(20), method=method)
    with pytest.raises(ps.InputError, match="has no D"):
        ps.minimize(f, psi, np.zeros(20), D=np.eye(20), method=ps.Accelerated(0.1, 0.5))


def test_operators_without_a_right_transpose_are_refused() -> None:
    def operator(back: object) -> LinearOperator:
        return LinearOperator((20, 20), matvec=lambda v: v, rmatvec=back)

    for back, said in ((None, "no transpose"), (lambda v: 2 * v, "is not its transpose"), (lambda v: -v, "is not its")):
        with pytest.raises(ps.InputError, match=said):
            ps.minimize(quadratic(), prox.L1(0.1), np.zeros(20), D=operator(back), method="papc")
        with pytest.raises(ps.InputError, match=said):
            ps.LeastSquares(operator(back), np.ones(20))


def test_a_sparse_start_is_refused() -> None:
    with pytest.raises(ps.InputError, match="x0 is sparse"):
        ps.minimize(quadratic(), prox.L1(0.1), scipy.sparse.csr_array(np.zeros((1, 20))))


# -- numbers -------------------------------------------------------------------------------------------------------------
def test_a_strong_convexity_of_rounding_is_none() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((60, 6))
        f = ps.LeastSquares(np.column_stack([A, A[:, 0] + A[:, 1]]), rng.standard_normal(60))
        assert f.mu == 0.0
        with pytest.raises(ps.InputError, match="mu is unknown"):
            ps.minimize(f, prox.L1(0.01))
    H = np.outer(np.ones(4), np.ones(4))
    assert ps.Quadratic(H, np.ones(4)).mu == 0.0
    assert ps.Quadratic(np.diag([1e-9, 1.0]), np.ones(2)).mu == pytest.approx(1e-9)


@pytest.mark.parametrize("L", [1.0, None])
@pytest.mark.parametrize("method", ["proxskip", "fista", "proxgd"])
def test_a_gradient_that_stops_being_finite_ends_the_run(method: str, L: float | None) -> None:
    f, calls = quadratic(), 0

    def gradient(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return f.gradient(x) if calls < 20 or calls % 2 else np.full(20, np.nan)

    found = ps.minimize((f.value, gradient), prox.L1(0.1), np.zeros(20), L=L, mu=0.1, method=method, tol=1e-12)
    assert found.status == 2
    assert np.isfinite(found.x).all()


def test_with_minibatches_the_bound_of_proxgd_is_of_the_whole_gradient() -> None:
    """Rows of zeros have a gradient of zero, which says nothing about the sum."""
    A = scipy.sparse.random(400, 30, density=0.03, random_state=0, format="csr")
    f = ps.LeastSquares(A, np.random.default_rng(0).standard_normal(400))
    found = ps.minimize(f, prox.NonNegative(), np.zeros(30), method="proxgd", batch=1, tol=1e-6, max_grad=20_000)
    assert found.status == 1
    assert min(found.trace["certificate"]) > 1e-6


def test_a_coarse_inner_tolerance_is_named() -> None:
    f = ps.Quadratic(np.geomspace(0.01, 1, 64), np.random.default_rng(0).standard_normal(64))
    found = ps.minimize(f, prox.TV2D(0.01, (8, 8), isotropic=False), np.zeros((8, 8)), inner_tol=1e-2, tol=1e-10)
    assert found.status == 4
    assert "inner_tol" in found.message


def test_the_planner_does_not_give_up_on_methods_that_fall_late() -> None:
    n = 200
    D = scipy.sparse.diags_array([-np.ones(n - 1), np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n)).tocsr()
    f = ps.Quadratic(np.geomspace(0.1, 1, n), np.random.default_rng(0).standard_normal(n))
    found = ps.plan(f, prox.L1(0.1), D=D, eps=1e-3)
    assert all(np.isfinite(row.seconds) for row in found.rows)
    assert all(row.pilot >= 50 for row in found.rows)
