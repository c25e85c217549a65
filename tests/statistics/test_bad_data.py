"""Where the pooled likelihood has no single maximum there is no table, and a sentence says why and names the columns."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import proxskip as ps
from proxskip.results.inference import inference
from proxskip.sklearn import FederatedCox
from proxskip.types import Array, InputError
from support.fits import CLASS, SITE, A, Y, minimizer, sites, table

RNG = np.random.default_rng(7)


def beside(column: Any) -> Array:
    """The columns with one more."""
    return np.column_stack([A, column])


TAIL = np.where(CLASS == 1, 1.0, -1.0) * (1.0 + np.abs(A[:, 0]))
ONLY_ONE = ((CLASS == 1) & (A[:, 1] > 0.5)).astype(float)
PEAK = np.where(CLASS == 1, 5.0 + A[:, 2], 5.0 - 1e-3)


@pytest.mark.parametrize("solver", ["newton", "early"])
@pytest.mark.parametrize(
    ("column", "named"),
    [
        (TAIL, "x4"),  # a threshold of the column separates the classes
        (1e-6 * TAIL, "x4"),  # also in other units
        (ONLY_ONE, "x4"),  # where it is one, there is one class only
        (A[:, 0] + TAIL, "x[14], x[14]|x[14] and x[14]"),  # a direction between two columns
    ],
)
@pytest.mark.parametrize("intercept", [True, False])
def test_classes_that_can_be_separated_have_no_table(column: Array, named: str, intercept: bool, solver: str) -> None:
    problem = sites(ps.Logistic(beside(column), CLASS, intercept=intercept))
    steps = 60 if solver == "newton" else 12  # the coefficients are then moderate, and still grow
    with pytest.raises(InputError, match=f"grows for ever along ({named}).*, by which the outcomes"):
        inference(problem, minimizer(problem, steps))


def test_classes_that_are_almost_separated_have_a_table() -> None:
    """One row on the wrong side is enough for a maximum, however large the coefficients are."""
    column = TAIL.copy()
    column[3] = -column[3]
    problem = sites(ps.Logistic(np.column_stack([column]), CLASS))
    assert table(problem).estimate[0] > 1
    rare = np.zeros(120, dtype=int)
    rare[11] = 1  # one case among all
    found = table(sites(ps.Logistic(np.ones((120, 1)), rare)))
    np.testing.assert_allclose(found.estimate, -np.log(119), rtol=1e-10)
    np.testing.assert_allclose(found.standard_error, np.sqrt(1 + 1 / 119), rtol=1e-10)


@pytest.mark.parametrize("kind", [ps.Logistic, ps.LeastSquares])
@pytest.mark.parametrize(
    ("columns", "intercept", "sentence"),
    [
        (beside(A[:, 0] - 2 * A[:, 2]), True, "the columns x1, x3 and x4 are collinear"),
        (beside(3 * A[:, 1]), False, "the columns x2 and x4 are collinear"),
        (beside(np.full(120, 0.1)), True, "the column x4 is constant, as the intercept is"),
        (beside(np.zeros(120)), False, "the likelihood does not depend on x4: the values are all zero"),
        (np.column_stack([i == SITE for i in range(5)]).astype(float), True, "x1, x2, x3, x4, x5 and intercept are"),
        (np.column_stack([beside(A[:, 0]), A[:, 1]]), False, "the columns x1 and x4 are collinear"),
    ],
)
def test_collinear_columns_are_named(kind: Any, columns: Array, intercept: bool, sentence: str) -> None:
    problem = sites(kind(columns, CLASS, intercept=intercept))
    with pytest.raises(InputError, match=f"there is no table, because .*{sentence}"):
        table(problem)


def test_columns_that_are_almost_collinear_have_a_table() -> None:
    found = table(sites(ps.LeastSquares(beside(A[:, 0] + 1e-4 * RNG.standard_normal(120)), Y)))
    assert found.standard_error[3] > 100 * found.standard_error[1]


def test_too_few_rows_and_too_good_a_fit_are_told() -> None:
    few = slice(0, 3)
    for kind in (ps.Logistic, ps.LeastSquares):
        problem = ps.split(kind(np.eye(3, 4) + 1.0, [0, 1, 1]), 3, by="contiguous")
        with pytest.raises(InputError, match="3 rows are too few for 4 coefficients"):
            inference(problem, np.zeros(4))
    problem = ps.split(ps.LeastSquares(A[few], Y[few]), 3, by="contiguous")
    with pytest.raises(InputError, match="3 rows are too few for 3 coefficients and their errors"):
        table(problem)
    with pytest.raises(InputError, match="fits every row exactly"):
        table(sites(ps.LeastSquares(A, A @ [1.0, 2.0, 3.0])))


def test_a_site_may_lack_what_all_sites_together_have() -> None:
    """A column that is constant within a site, a site with one class, a site with fewer rows than columns: right data."""
    X = A.copy()
    X[SITE == 4, 0] = 2.0
    labels = np.where(SITE == 3, 1, CLASS)
    wide = np.column_stack([X, RNG.standard_normal((120, 9))])
    assert np.count_nonzero(SITE == 4) < 12
    for columns in (X, wide):
        model = ps.Logistic(columns, labels, intercept=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            apart, together = table(sites(model)), table(ps.split(model, 1, by="contiguous"))
        np.testing.assert_allclose(apart.standard_error, together.standard_error, rtol=1e-9)


# -- counts and times --------------------------------------------------------------------------------------------------
TIME = RNG.exponential(np.exp(-A @ [0.5, 0.0, 0.2]))
EVENT = (RNG.random(120) > 0.3).astype(int)
COUNT = RNG.poisson(np.exp(A @ [0.3, 0.2, 0.0]))
NEVER = ((np.arange(120) % 7 == 0) & (EVENT == 0)).astype(float)
NOTHING = ((np.arange(120) % 5 == 0) & (COUNT == 0)).astype(float)


@pytest.mark.parametrize("steps", [25, 60])
@pytest.mark.parametrize(
    ("model", "named"),
    [
        (ps.Cox(beside(-TIME), TIME, EVENT), "x4"),  # whoever has more of it is next: a monotone likelihood
        (ps.Cox(beside(-1e-6 * TIME), TIME, EVENT), "x4"),
        (ps.Cox(beside(NEVER), TIME, EVENT), "x4"),  # where it is one, nobody has an event
        (ps.Poisson(beside(NOTHING), COUNT, intercept=True), "x4"),
        (ps.Poisson(A, 0 * COUNT, intercept=True), "intercept"),  # there is nothing to count
    ],
)
def test_times_and_counts_that_are_fitted_without_error_have_no_table(model: Any, named: str, steps: int) -> None:
    problem = sites(model)
    with pytest.raises(InputError, match=f"grows for ever along {named}.*, by which the outcomes"):
        inference(problem, minimizer(problem, steps))


@pytest.mark.parametrize("steps", [25, 60])
@pytest.mark.parametrize("seed", [1, 13, 27, 34])
def test_the_column_is_named_also_where_a_step_is_rounding_alone(seed: int, steps: int) -> None:
    """So far out that no curvature is left along any column, steps lead anywhere."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((120, 3))
    time, event = rng.exponential(np.exp(-X @ [0.5, 0.0, 0.2])), (rng.random(120) > 0.3).astype(int)
    problem = sites(ps.Cox(np.column_stack([X, -time]), time, event))
    with pytest.raises(InputError, match="grows for ever along x4, by which"):
        inference(problem, minimizer(problem, steps))


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (np.full(120, 0.1), "does not depend on x4: .* alike among those at risk"),
        (1e6 + 0.1 * SITE, "does not depend on x4"),  # constant within every site, and each site is a stratum
        (A[:, 0] + A[:, 1], "the columns x1, x2 and x4 are collinear"),
        (A[:, 0] + 1.0, "the columns x1 and x4 are collinear"),  # a shift changes no risk
    ],
)
def test_columns_that_a_cox_model_cannot_tell_apart_are_named(column: Array, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        table(sites(ps.Cox(beside(column), TIME, EVENT)))


@pytest.mark.parametrize(
    ("model", "site"),
    [
        (ps.Cox(A, TIME, 0 * EVENT), SITE),
        (ps.Cox(A, TIME, EVENT), np.arange(120)),  # every row alone
        (ps.Cox(A, np.ones(120), np.ones(120)), SITE),  # by Efron's formula there would even be errors
        (ps.Cox(A, np.ones(120), np.ones(120), ties="breslow"), SITE),
    ],
)
def test_times_without_an_order_have_neither_a_run_nor_a_table(model: Any, site: Array) -> None:
    problem = ps.split(model, by="group", groups=site)
    nobody = "no client has an event while another of its rows was still at risk: nobody is compared"
    for attempt in (
        lambda: inference(problem, np.zeros(3)),
        lambda: ps.run("newton", problem, tol=1e-9),
        lambda: FederatedCox().fit(A, np.column_stack([model.time, model.event]), groups=site),
    ):
        with pytest.raises(InputError, match=nobody):
            attempt()


def test_rare_counts_of_large_exposures_have_a_table() -> None:
    """The rate is a millionth, and everything is well determined: no doubt follows from units."""
    exposure = 1e6 * RNG.uniform(1, 3, 120)
    count = RNG.poisson(1e-6 * exposure * np.exp(A @ [0.3, 0.2, 0.0]))
    problem = sites(ps.Poisson(A, count, offset=np.log(exposure), intercept=True))
    found, scaled = table(problem), table(sites(ps.Poisson(A, count, offset=np.log(exposure / 1e6), intercept=True)))
    np.testing.assert_allclose(found.standard_error, scaled.standard_error, rtol=1e-7)
    with pytest.raises(InputError, match="standard errors away"):  # from zero, the first steps are far too long
        inference(problem, minimizer(problem, 8))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: ps.Cox(np.where(A > 2, np.nan, A), TIME, EVENT), "NaN"),
        (lambda: ps.Poisson(A, np.full(120, np.nan)), "count nan of row 0 is not finite"),
        (lambda: table(sites(ps.Poisson(A, COUNT, row_weights=1.0 * (COUNT > 0)))), "weight zero"),
    ],
)
def test_rows_that_cannot_be_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        make()


def test_sites_without_events_or_counts_are_right_data() -> None:
    """They say nothing of a hazard, or lower a rate: the table is that of all rows."""
    quiet = np.where(SITE == 3, 0, EVENT)
    apart = table(sites(ps.Cox(A, TIME, quiet)))
    left = SITE != 3
    without = table(ps.split(ps.Cox(A[left], TIME[left], quiet[left]), by="group", groups=SITE[left]))
    np.testing.assert_allclose(apart.covariance, without.covariance, rtol=1e-9)
    counts = np.where(SITE == 3, 0, COUNT)
    model = ps.Poisson(A, counts, intercept=True)
    one = table(ps.split(model, 1, by="contiguous"))
    np.testing.assert_allclose(table(sites(model)).covariance, one.covariance, rtol=1e-8)


# -- what a run says of itself -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize(
    ("model", "named"),
    [
        (ps.Logistic(beside(TAIL), CLASS, intercept=True), "x4"),
        (ps.Logistic(beside(1e-2 * ONLY_ONE), CLASS), "x4"),
        (ps.Cox(beside(-TIME), TIME, EVENT), "x4"),
        (ps.Cox(beside(NEVER), TIME, EVENT), "x4"),
        (ps.Poisson(A, 0 * COUNT, intercept=True), "intercept"),
        (ps.Softmax(beside(TAIL), CLASS), "x4 of class [01]"),  # equally far
        (ps.Logistic(beside(np.column_stack([TAIL, A[:, 0], np.zeros(len(A))])), CLASS), "x4"),
    ],
)
def test_a_run_on_its_way_to_infinity_does_not_say_that_it_converged(model: Any, named: str, tol: float) -> None:
    problem = sites(model)
    start = float(np.linalg.norm(problem.gradient(np.zeros(problem.d))))
    result = ps.run("newton", problem, tol=tol * start, rounds=100)
    assert result.status is ps.Status.INEXACT
    assert not result.success
    assert re.search(f"which proves nothing: the likelihood grows for ever along {named}", result.message)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"rounds": 12}, ps.Status.LIMIT),
        ({"rounds": 45}, ps.Status.LIMIT),
        ({"tol": 1e-30, "rounds": 100}, ps.Status.PRECISION),
    ],
)
def test_however_such_a_run_ends_it_says_so(given: Any, status: ps.Status) -> None:
    result = ps.run("newton", sites(ps.Logistic(beside(TAIL), CLASS, intercept=True)), **given)
    assert result.status is status
    assert "; the likelihood grows for ever along x4" in result.message


ALMOST = TAIL.copy()
ALMOST[3] = -ALMOST[3]
RARE = (np.arange(120) == 11).astype(int)


EXPOSURE = 1e6 * RNG.uniform(1, 3, 120)
FEW = RNG.poisson(1e-6 * EXPOSURE * np.exp(A @ [0.3, 0.2, 0.0]))


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize(
    "model",
    [
        ps.Logistic(np.column_stack([ALMOST]), CLASS),
        ps.Logistic(np.ones((120, 1)), RARE),
        ps.Poisson(A, RARE, intercept=True),
        ps.Poisson(A, FEW, offset=np.log(EXPOSURE), intercept=True),
        ps.Logistic(beside(A[:, 0]), CLASS),  # collinear: there are many minimizers, and this is one
        ps.Logistic(beside(np.zeros(len(A))), CLASS),
        ps.Poisson(A, np.round(1e5 * np.exp(2 * A[:, 0])), intercept=True),
        ps.Cox(A, TIME, EVENT),
        ps.LeastSquares(1e-4 * A, Y),
    ],
)
def test_a_run_to_a_minimizer_converges_to_any_tolerance(model: Any, tol: float) -> None:
    problem = sites(model)
    start = float(np.linalg.norm(problem.gradient(np.zeros(problem.d))))
    assert ps.run("newton", problem, tol=tol * start, rounds=100).status is ps.Status.CONVERGED


@pytest.mark.parametrize(
    ("model", "estimate", "error"),
    [
        (ps.Logistic(np.repeat([[0.0], [1.0]], 10, axis=0), [0, 1] * 10, intercept=True), [0, 0], np.sqrt([0.8, 0.4])),
        (ps.Logistic(np.ones((4, 1)), [0, 1, 0, 1]), [0], [1.0]),
        (ps.Poisson(np.ones((4, 1)), [0, 1, 1, 2]), [0], [0.5]),
        (ps.LeastSquares(np.ones((4, 1)), [1.0, -1.0, 2.0, -2.0]), [0], np.sqrt([10 / 12])),
        (ps.Cox([[1.0], [-1.0]] * 4, [1, 1, 2, 2] * 2, [1, 1, 0, 0] * 2), [0], None),
    ],
)
def test_a_run_whose_gradient_is_exactly_zero_has_converged(model: Any, estimate: Any, error: Any) -> None:
    """Newton's step then has no length, and no direction of which one could say anything."""
    problem = ps.split(model, 2, by="contiguous")
    result = ps.run("newton", problem, tol=1e-9)
    assert result.status is ps.Status.CONVERGED
    assert not problem.gradient(result.x).any()
    found = result.inference(problem)
    np.testing.assert_array_equal(found.estimate, estimate)
    if error is not None:
        np.testing.assert_allclose(found.standard_error, error, rtol=1e-12)


@pytest.mark.parametrize("rounds", range(1, 30, 4))
def test_a_run_that_ends_on_its_way_does_not_say_that_it_has_no_end(rounds: int) -> None:
    """Each step to rare counts is as long as the one before, and the curvature falls as it does without a maximum."""
    problem = sites(ps.Poisson(A, FEW, offset=np.log(EXPOSURE), intercept=True))
    result = ps.run("newton", problem, rounds=rounds)
    assert "grows for ever" not in result.message
    assert result.status is ps.Status.LIMIT
