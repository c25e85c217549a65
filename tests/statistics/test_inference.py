"""Tables of coefficients: the errors follow from the pooled likelihood, and where it has no maximum there is no table."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import scipy.stats

import proxskip as ps
from proxskip.problems import information
from proxskip.results.inference import inference
from proxskip.types import Array, InputError
from support.fits import CLASS, SITE, A, Y, minimizer, sites, table


# -- what the numbers are ----------------------------------------------------------------------------------------------
def test_least_squares_is_the_textbook() -> None:
    found = table(sites(ps.LeastSquares(A, Y, intercept=True)))
    X = np.column_stack([A, np.ones(120)])
    beta = np.linalg.lstsq(X, Y)[0]
    sigma2 = np.sum((Y - X @ beta) ** 2) / (120 - 4)
    error = np.sqrt(sigma2 * np.diag(np.linalg.inv(X.T @ X)))
    np.testing.assert_allclose(found.estimate, beta, rtol=1e-10)
    np.testing.assert_allclose(found.standard_error, error, rtol=1e-10)
    np.testing.assert_allclose(found.p, 2 * scipy.stats.t.sf(np.abs(beta / error), 116), rtol=1e-8)
    np.testing.assert_allclose(found.high, beta + scipy.stats.t.ppf(0.975, 116) * error, rtol=1e-10)
    assert (found.degrees, found.rows, found.clients) == (116, 120, 5)


def test_the_hessian_is_that_of_the_sum_over_rows() -> None:
    """By differences of the log likelihood of all rows, written down without the library."""
    problem = sites(ps.Logistic(A, CLASS))
    x, sign = minimizer(problem), np.where(CLASS == 1, 1.0, -1.0)

    def score(v: Array) -> Array:
        return A.T @ (sign / (1 + np.exp(sign * (A @ v))))

    H = -np.stack([(score(x + 1e-6 * e) - score(x - 1e-6 * e)) / 2e-6 for e in np.eye(3)])
    np.testing.assert_allclose(table(problem).covariance, np.linalg.inv(H), rtol=1e-7)
    np.testing.assert_allclose(information.measure(problem, x + 0.1).gradient, -score(x + 0.1), rtol=1e-10)


@pytest.mark.parametrize("model", [ps.Logistic(A, CLASS, intercept=True), ps.LeastSquares(A, Y)])
def test_how_the_rows_are_split_changes_nothing(model: Any) -> None:
    alone = table(ps.split(model, 1, by="contiguous"))
    for problem in (sites(model), ps.split(model, 7, by="iid"), ps.split(model, 120, by="contiguous")):
        np.testing.assert_allclose(table(problem).standard_error, alone.standard_error, rtol=1e-9)
        np.testing.assert_allclose(table(problem).estimate, alone.estimate, rtol=1e-7, atol=1e-12)


def test_units_change_what_they_must() -> None:
    """A column in other units: its row is divided, z and p stay; up to units of a hundred orders of magnitude."""
    units = np.array([1e-9, 1.0, 1e9])
    plain, scaled = (table(sites(ps.Logistic(A * u, CLASS))) for u in (np.ones(3), units))
    np.testing.assert_allclose(scaled.estimate * units, plain.estimate, rtol=1e-7)
    np.testing.assert_allclose(scaled.standard_error * units, plain.standard_error, rtol=1e-7)
    np.testing.assert_allclose(scaled.p, plain.p, rtol=1e-6)


def test_robust_errors_are_the_sandwich_of_the_clients_scores() -> None:
    problem = sites(ps.LeastSquares(A, Y))
    found, x = table(problem, robust=True), minimizer(problem)
    bread = np.linalg.inv(A.T @ A)
    scores = np.stack([A[i == SITE].T @ (Y - A @ x)[i == SITE] for i in range(5)])
    np.testing.assert_allclose(found.covariance, bread @ scores.T @ scores @ bread, rtol=1e-8)


def test_with_a_penalty_that_was_asked_for_the_hessian_has_it() -> None:
    problem = sites(ps.LeastSquares(A, Y, l2=0.3))
    found = table(problem, penalized=True)
    residuals = Y - A @ found.estimate
    sigma2 = residuals @ residuals / (120 - 3)
    np.testing.assert_allclose(found.covariance, sigma2 * np.linalg.inv(A.T @ A + 120 * 0.3 * np.eye(3)), rtol=1e-9)
    assert "prior" in repr(found)


def test_intervals_are_of_the_level_and_a_result_gives_the_table() -> None:
    problem = sites(ps.Logistic(A, CLASS))
    result = ps.run(ps.GD.theory(problem), problem, x0=minimizer(problem), rounds=1, progress=False)
    found = result.inference(problem, level=0.5)
    np.testing.assert_allclose(found.high - found.low, 2 * scipy.stats.norm.ppf(0.75) * found.standard_error, rtol=1e-9)
    np.testing.assert_allclose(found.z**2, scipy.stats.chi2.isf(found.p, 1), rtol=1e-9)


def test_a_table_looks_the_same_everywhere() -> None:
    found = table(sites(ps.Logistic(A, CLASS, intercept=True)))
    lines = repr(found).splitlines()
    assert lines[0] == "Logistic regression: 120 rows on 5 clients; errors from the Hessian"
    assert lines[1].split() == ["estimate", "std.", "error", "z", "p", "95%", "from", "to"]
    assert [line.split()[0] for line in lines[2:]] == ["x1", "x2", "x3", "intercept"]
    for shown in (found._repr_html_(), found.to_latex()):
        assert all(f"{v:.5g}" in shown for v in (*found.estimate, *found.p))
    assert r"95\% from" in found.to_latex()
    frame = pytest.importorskip("pandas") and found.to_frame()
    assert list(frame.columns) == ["name", "estimate", "standard_error", "z", "p", "low", "high"]
    np.testing.assert_array_equal(frame["low"], found.low)


# -- what is refused ---------------------------------------------------------------------------------------------------
def weighted(model: Any, weights: Any) -> ps.Problem:
    return ps.split(model, by="group", groups=SITE, weights=weights)


ZERO, DOUBLE = np.ones(120), np.ones(120)
ZERO[7], DOUBLE[7] = 0.0, 2.0


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (sites(ps.Logistic(A, CLASS, l2=0.1)), "l2 = 0.1 shrinks the coefficients"),
        (sites(ps.Logistic(A, CLASS)).with_psi(ps.prox.L1(0.1)), "psi = .* shrinks"),
        (sites(ps.Logistic(A, CLASS)).with_batch(5), "minibatches"),
        (weighted(ps.Logistic(A, CLASS), "equal"), "rows count differently"),
        (ps.Problem([ps.Logistic(A[:50], CLASS[:50]), ps.Logistic(A, CLASS)]), r"weights=\[f.N for f in clients\]\)"),
        (sites(ps.Logistic(A, CLASS, row_weights=DOUBLE)), "rows count differently"),
        (sites(ps.Logistic(A, CLASS, row_weights=ZERO)), "weight zero"),
        (sites(ps.Softmax(A, CLASS)), "the loss of the clients is softmax; a table needs one of squared, logistic"),
        (ps.Problem(ps.random_quadratics(3, 2, 1.0, 0.1, seed=0)), "the loss of the clients is None"),
    ],
)
def test_what_is_no_likelihood_is_refused(problem: ps.Problem, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        inference(problem, np.zeros(problem.d))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e-3])
@pytest.mark.parametrize("kind", [ps.Logistic, ps.LeastSquares])
def test_the_tolerance_that_a_refusal_names_gives_a_table(kind: Any, scale: float) -> None:
    """It follows from the gradient, whatever the units are: a tol is no distance in standard errors."""
    problem = sites(kind(scale * A, CLASS))
    method, start = ps.Scaffnew(p=0.3), np.linalg.norm(problem.gradient(np.zeros(3)))
    rough = ps.run(method, problem, tol=1e-3 * start, rounds=2000)
    with pytest.raises(InputError, match=r"standard errors away; run to a smaller tol, until") as refused:
        rough.inference(problem)
    named = re.search(r"the gradient norm is (\S+) in place of (\S+)\.$", str(refused.value))
    assert named is not None
    enough, before = map(float, named.groups())
    assert before == pytest.approx(rough.summary["grad_norm"], rel=0.5)
    assert 1e-3 * before > enough > 1e-9 * before
    fine = ps.run(method, problem, tol=enough, rounds=2000)
    assert fine.success
    assert fine.inference(problem).names == ("x1", "x2", "x3")


def test_a_point_that_is_not_the_minimizer_is_refused() -> None:
    problem = sites(ps.Logistic(A, CLASS))
    x = minimizer(problem)
    with pytest.raises(InputError, match=r"still .* standard errors away.*smaller tol"):
        inference(problem, x + 1e-5)
    inference(problem, x + 1e-9)
    with pytest.raises(InputError, match="4 unknowns and the problem 3"):
        inference(problem, np.zeros(4))
    with pytest.raises(InputError, match="level = 95"):
        inference(problem, x, level=95)
    with pytest.raises(InputError, match="more clients than coefficients; there are 3 and 3"):
        inference(ps.split(ps.Logistic(A, CLASS), 3, by="contiguous"), x, robust=True)
