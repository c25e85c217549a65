"""Statistical estimators for scikit-learn: their coefficients are those of the pooled fit, and "auto" says what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proxskip as ps
from proxskip.sklearn import FederatedClassifier, FederatedCox, FederatedGLM
from proxskip.sklearn.statistics import concordance
from support.fits import CLASS, SITE, A, Y, sites, table

RNG = np.random.default_rng(6)
COUNT = RNG.poisson(np.exp(A @ [0.4, -0.2, 0.1]))
TIME = np.ceil(5 * RNG.exponential(np.exp(-A @ [0.5, 0.0, 0.2])))
EVENT = (RNG.random(120) > 0.3).astype(int)


@pytest.mark.parametrize(
    ("family", "y", "model"),
    [
        ("gaussian", Y, ps.LeastSquares(A, Y, intercept=True)),
        ("binomial", CLASS, ps.Logistic(A, CLASS, intercept=True)),
        ("poisson", COUNT, ps.Poisson(A, COUNT, intercept=True)),
    ],
)
def test_a_family_is_the_pooled_fit_whatever_the_groups(family: str, y: Any, model: Any) -> None:
    expected = table(sites(model))
    for groups in (None, SITE, np.arange(120) % 3):
        fitted = FederatedGLM(family).fit(A, y, groups=groups)
        np.testing.assert_allclose([*fitted.coef_, fitted.intercept_], expected.estimate, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(fitted.inference().standard_error, expected.standard_error, rtol=1e-7)
    # the mean of the predictions is that of the outcomes, as with every canonical link and an intercept
    assert np.mean(fitted.predict(A)) == pytest.approx(np.mean(y), rel=1e-8)
    assert fitted.result_.summary["method"] == "newton"


def test_cox_takes_columns_or_the_array_of_scikit_survival() -> None:
    expected = table(sites(ps.Cox(A, TIME, EVENT)))
    structured = np.array(list(zip(EVENT == 1, TIME, strict=True)), dtype=[("event", "?"), ("time", "f8")])
    for y in (np.column_stack([TIME, EVENT]), structured):
        fitted = FederatedCox().fit(A, y, groups=SITE)
        np.testing.assert_allclose(fitted.coef_, expected.estimate, rtol=1e-7)
        assert fitted.score(A, y) == concordance(TIME, EVENT, A @ fitted.coef_)
    with pytest.raises(ValueError, match=r"y has shape \(120,\)"):
        FederatedCox().fit(A, TIME)
    np.testing.assert_allclose(
        fitted.inference(level=0.9).high, expected.estimate + 1.6448536 * expected.standard_error
    )


def test_no_tolerance_is_advised_where_there_is_no_minimizer() -> None:
    X = np.column_stack([A, CLASS + 0.1 * A[:, 0]])
    with pytest.warns(ConvergenceWarning, match="the likelihood grows for ever along x4") as caught:
        FederatedGLM("binomial").fit(X, X[:, 3] > 0.5, groups=SITE)
    assert str(caught[0].message).endswith("are predicted without error.")
    with pytest.warns(ConvergenceWarning, match="Raise max_iter or tol"):
        FederatedGLM("binomial", max_iter=2).fit(A, CLASS, groups=SITE)


def test_concordance_counts_the_pairs_whose_order_is_known() -> None:
    time, event, risk = TIME[:40], EVENT[:40], np.round(A[:40, 0], 1)
    right = known = 0.0
    for i in range(40):
        for j in range(40):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                known += 1
                right += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    assert concordance(time, event, risk) == right / known
    assert concordance(time, event, -time) > 0.9


def test_names_and_offsets_reach_the_table() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(A, columns=["age", "dose", "weight"])
    assert FederatedCox().fit(frame, np.column_stack([TIME, EVENT])).inference().names == ("age", "dose", "weight")
    exposure = np.linspace(1, 9, 120)
    fitted = FederatedGLM("poisson").fit(frame, COUNT, groups=SITE, offset=np.log(exposure))
    expected = table(sites(ps.Poisson(A, COUNT, offset=np.log(exposure), intercept=True)))
    np.testing.assert_allclose(fitted.inference().p, expected.p, rtol=1e-6)
    with pytest.raises(ps.InputError, match="dose and twice"):
        FederatedGLM(tol=1e-6).fit(frame.assign(twice=2 * frame["dose"]), Y).inference()
    for family in ("gaussian", "binomial"):
        with pytest.raises(ValueError, match='an offset needs family="poisson"'):
            FederatedGLM(family).fit(A, CLASS, offset=np.ones(120))
    with pytest.raises(ValueError, match='family = "gamma" is not known'):
        FederatedGLM("gamma").fit(A, Y)


def test_a_pipeline_may_end_with_cox() -> None:
    piped = make_pipeline(StandardScaler(), FederatedCox()).fit(A, np.column_stack([TIME, EVENT]))
    np.testing.assert_allclose(
        piped[-1].coef_ / A.std(axis=0), FederatedCox().fit(A, np.column_stack([TIME, EVENT])).coef_
    )


# -- which solver ------------------------------------------------------------------------------------------------------
def wide(d: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, d))
    return X, (X[:, 0] > 0).astype(int)


def test_auto_takes_newton_for_few_unknowns_and_scaffnew_for_many() -> None:
    few = FederatedClassifier(tol=1e-2).fit(*wide(5), groups=np.arange(200) % 4)
    many = FederatedClassifier(tol=1e-2, l2_relative=0.1).fit(*wide(2000), groups=np.arange(200) % 4)
    for fitted, name, other in ((few, "newton", "scaffnew"), (many, "scaffnew", "newton")):
        why = fitted.result_.summary["solver"]
        assert fitted.result_.summary["method"] == name
        assert why.startswith(f"{name}: over this network {name} takes about")
        assert f"{other} takes about" in why


@pytest.mark.parametrize(("latency", "name"), [(100.0, "newton"), (0.0, "scaffnew")])
def test_auto_weighs_rounds_against_numbers(latency: float, name: str) -> None:
    """Rounds that take long speak for Newton; a network without delays and with little bandwidth, against it."""
    network = ps.Network(latency=latency, bandwidth=1e4)
    fitted = FederatedClassifier(tol=1e-2, l2_relative=0.1, network=network).fit(*wide(300))
    assert fitted.result_.summary["method"] == name


def test_auto_says_why_there_was_no_choice() -> None:
    X, y = wide(5)
    drawn = FederatedClassifier(tol=1e-2, cohort=2).fit(X, y, groups=np.arange(200) % 4)
    assert drawn.result_.summary["solver"] == "scaffnew, since newton needs every client in every round"
    counted = FederatedGLM("poisson").fit(A, COUNT)
    assert counted.result_.summary["solver"].startswith("newton, since no theorem")
    told = FederatedGLM("gaussian", solver="scaffnew", tol=1e-8).fit(A, Y, groups=SITE)
    assert (told.result_.summary["method"], told.result_.summary["solver"]) == ("scaffnew", "as asked for")
    np.testing.assert_allclose(told.coef_, FederatedGLM().fit(A, Y).coef_, rtol=1e-5, atol=1e-7)
