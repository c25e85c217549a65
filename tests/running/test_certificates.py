"""Success is proved: a tolerance that is said to hold does hold, whatever rounding did; otherwise the status says so."""

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")

import proxskip as ps  # noqa: E402
from campaigns.proofs import campaign, exact_gradient  # noqa: E402
from proxskip.problems import accuracy  # noqa: E402
from proxskip.results.result import Status  # noqa: E402
from support.lockstep import drive, federate  # noqa: E402
from support.tiers import thinned  # noqa: E402

pytestmark = pytest.mark.long


def some(kind: Any = ps.Logistic, rows: int = 40, **more: Any) -> Any:
    rng = np.random.Generator(np.random.Philox(1))
    A = rng.standard_normal((rows, 4))
    b = rng.integers(0, 3 if kind is ps.Softmax else 2, rows)
    return kind(A, b, l2=0.05, **more)


@pytest.mark.parametrize("kind", [ps.Logistic, ps.LeastSquares, ps.Softmax])
@pytest.mark.parametrize("more", [{}, {"dtype": np.float32}, {"intercept": True}])
def test_the_error_of_a_gradient_is_within_its_bound(kind: Any, more: dict[str, Any]) -> None:
    f = some(kind, row_weights=np.arange(1.0, 41.0), **more)
    x = np.cos(np.arange(f.d))
    true = exact_gradient(f, x)
    g, error = accuracy.gradient(f, x)
    off = mpmath.sqrt(sum((mpmath.mpf(float(a)) - t) ** 2 for a, t in zip(g, true, strict=True)))
    assert off <= error < 1e-13 * (1 + float(np.linalg.norm(g)))
    sparse = kind(scipy.sparse.csr_matrix(f.A), f.b, l2=0.05, row_weights=f.s, dtype=f.dtype)
    if not f.intercept:
        assert np.allclose(accuracy.gradient(sparse, x)[0], g, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_minimize_on_single_precision_does_not_claim_what_double_precision_denies() -> None:
    A, b = ps.datasets.load("digits")
    single, double = (ps.Logistic(A[:300], b[:300], l2=1e-2, dtype=t) for t in ("float32", "float64"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor does it warn of a curvature that rounding made
        found = ps.minimize(single, ps.prox.L1(1e-3), tol=1e-9)
    assert found.status is Status.PRECISION
    L = double.L
    true = L * np.linalg.norm(found.x - ps.prox.L1(1e-3).prox(found.x - double.gradient(found.x) / L, 1 / L))
    assert 1e-9 < true <= found.certificate * (1 + 1e-4)
    assert ps.minimize(single, ps.prox.L1(1e-3), tol=1e-5).success


def test_a_run_on_single_precision_is_judged_in_double_precision() -> None:
    problem = ps.split(some(dtype=np.float32), 3, "label")
    result = ps.run("scaffnew", problem, tol=1e-10)
    assert result.status is Status.PRECISION
    assert ps.run("scaffnew", problem, rounds=result.rounds + 200).status is Status.LIMIT  # not stalled
    assert min(result.trace["gap"]) >= -1e-16
    double = [f.double() for f in problem.clients]
    true = np.linalg.norm(sum(w * f.gradient(result.x) for w, f in zip(problem.weights, double, strict=True)))
    assert np.isclose(result.summary["grad_norm"], true, rtol=1e-9)


@pytest.mark.parametrize("tol", [1e-17, 1e-30])
def test_a_tolerance_below_rounding_has_a_status_of_its_own(tol: float) -> None:
    problem = ps.split(some(), 3, "label")
    result = ps.run("scaffnew", problem, tol=tol)
    assert result.status is Status.PRECISION
    assert "rounding" in result.message
    assert result.summary["grad_norm"] < 1e-10
    assert ps.minimize(some(), ps.prox.L1(1e-2), tol=tol).status is Status.PRECISION


def test_a_start_at_the_solution_is_no_stalling() -> None:
    problem = ps.Problem([ps.Quadratic([1.0, 1.0], [0.0, 0.0]), ps.Quadratic([1.0, 2.0], [0.0, 0.0])])
    assert ps.run(ps.GD.theory(problem), problem, rounds=100).status is Status.LIMIT
    moved = ps.Problem(ps.random_quadratics(4, 3, seed=2))
    start = {"x0": moved.solution.x, "h0": moved.solution.h - moved.weights @ moved.solution.h}
    assert ps.run(ps.Scaffnew.theory(moved), moved, rounds=300, **start).status is Status.LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("first", thinned([0, 1000], 1, 2))
def test_every_success_is_true_in_fifty_digits(first: int) -> None:
    counts, wrong = campaign(first, first + (6 if first == 0 else 100))
    assert not wrong
    assert first == 0 or (counts["CONVERGED"] >= 30 and counts["PRECISION"] > 0)


def test_a_federation_says_that_a_tolerance_is_below_rounding() -> None:
    """PRECISION long before its rounds are over; a tolerance that rounding allows is reached by the same run."""
    problem = ps.Problem(ps.random_quadratics(3, 4, L=1.0, mu=0.2, heterogeneity=10.0, seed=1))
    method = ps.Scaffnew.theory(problem)

    def end(tol: float) -> tuple[str, str, int, bool]:
        server, clients = federate(method, problem, 5000, tol=tol, measure=20)
        state, _ = drive(server, clients)
        status, message = server.verdict()
        return status.name, message, state.round, state.reached

    name, message, rounds, reached = end(1e-18)
    assert (name, reached) == ("PRECISION", False)
    assert "is at the level of rounding" in message
    assert rounds < 2000
    assert end(1e-9)[0] == "CONVERGED"
