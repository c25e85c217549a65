"""The estimators follow scikit-learn's rules, and solve what they say."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn import config_context
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import proxskip as ps
from proxskip.sklearn import FederatedClassifier, FederatedCox, FederatedGLM, ProxClassifier, ProxRegressor
from proxskip.sklearn.conventions import validate_data
from support.tiers import thinned

pytestmark = pytest.mark.long

CANCER = StandardScaler().fit_transform(load_breast_cancer().data[:, :8]), load_breast_cancer().target
IRIS = load_iris(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)


class CoxOfTargets(FederatedCox):
    """The checks' targets are times, all of which are events."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Any:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        return super().fit(X, np.column_stack([y - y.min(), np.ones(len(y))]), groups)

    def score(self, X: Any, y: Any) -> float:
        return super().score(X, np.column_stack([y - np.min(y), np.ones(len(y))]))


class ClassesOfTargets(FederatedGLM):
    """The checks' targets are two classes, divided by the median."""

    def __init__(self, family: str = "binomial", *, l2: float = 1e-3) -> None:
        super().__init__(family, l2=l2)

    def fit(self, X: Any, y: Any, groups: Any = None, offset: Any = None) -> Any:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        return super().fit(X, y > np.median(y), groups, offset)

    def score(self, X: Any, y: Any) -> float:
        return float(np.mean((self.predict(X) > 0.5) == (y > np.median(y))))


ESTIMATORS = [
    ProxClassifier(tol=1e-5), ProxRegressor(ps.prox.L1(1e-3)), FederatedClassifier(), FederatedGLM(),
    FederatedGLM("poisson"), ClassesOfTargets(), CoxOfTargets(l2=1e-3),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.filterwarnings("ignore")
def test_check_estimator(estimator: Any) -> None:
    check_estimator(estimator)


def penalties(weight: float) -> list[Any]:
    pyproximal = pytest.importorskip("pyproximal", reason="pyproximal is not installed")
    return [ps.prox.L1(weight), pyproximal.L1(weight)]


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [True, False])
def test_the_classifier_solves_what_scikit_learn_solves(sparse: bool) -> None:
    X, y = CANCER
    theirs = LogisticRegression(penalty="l1", C=1 / (0.02 * len(y)), solver="saga", tol=1e-8, max_iter=20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.fit(X, y)
    for penalty in penalties(0.02):
        ours = ProxClassifier(penalty, tol=1e-9).fit(scipy.sparse.csr_matrix(X) if sparse else X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
        assert np.mean(ours.predict(X) == y) == ours.score(X, y)


def test_the_estimators_add_no_square_that_was_not_asked_for() -> None:
    for kind in (ProxClassifier, ProxRegressor):
        assert kind(ps.prox.L1(0.01)).get_params()["l2"] == 0.0


@pytest.mark.parametrize("sparse", thinned([True, False], 2))
def test_the_regressor_is_the_lasso(sparse: bool) -> None:
    X, y = DIABETES
    theirs = Lasso(alpha=0.5, tol=1e-10, max_iter=100_000).fit(X, y)
    for penalty in penalties(0.5):
        ours = ProxRegressor(penalty, tol=1e-10).fit(scipy.sparse.csr_matrix(X) if sparse else X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)
        assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-3)


def test_several_classes_and_a_penalty_for_each() -> None:
    X, y = IRIS
    model = ProxClassifier(ps.prox.L1(0.05), tol=1e-8).fit(X, np.array(["a", "b", "c"])[y])
    assert model.coef_.shape == (3, 4)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert set(model.predict(X)) <= {"a", "b", "c"}
    # at the optimum each class meets the lasso's condition: the slope is at most the weight where a coefficient is zero
    x = np.hstack([model.coef_, model.intercept_[:, None]]).ravel()
    slope, zero = ps.Softmax(X, y, l2=0.0, intercept=True).gradient(x).reshape(3, 5), model.coef_ == 0
    assert np.abs(slope[:, :4][zero]).max() <= 0.05 + 1e-6
    np.testing.assert_allclose(slope[:, :4][~zero], -0.05 * np.sign(model.coef_[~zero]), atol=1e-6)
    np.testing.assert_allclose(slope[:, 4], 0.0, atol=1e-6)


@pytest.mark.parametrize("labels", thinned([(IRIS[1] > 0).astype(int), IRIS[1]], 2))
def test_the_groups_do_not_change_the_federated_solution(labels: Any) -> None:
    X = IRIS[0]
    groups = np.arange(len(X)) % 7
    one, seven = (FederatedClassifier(l2_relative=1e-2, tol=1e-7).fit(X, labels, groups=g) for g in (None, groups))
    np.testing.assert_allclose(one.coef_, seven.coef_, atol=1e-4)
    assert seven.groups_.tolist() == list(range(7))
    assert seven.result_.summary["clients"] == 7
    assert seven.n_iter_ == seven.result_.rounds
    with pytest.raises(ValueError, match="groups has shape"):
        FederatedClassifier().fit(X, labels, groups=groups[:-1])


def test_an_offset_of_the_features_changes_nothing_for_the_federated_classifier() -> None:
    X, y = CANCER
    plain, shifted = (FederatedClassifier(warm_start=True).fit(X + offset, y) for offset in (0.0, 1000.0))
    np.testing.assert_allclose(shifted.coef_, plain.coef_, rtol=1e-6)
    assert np.array_equal(shifted.predict(X + 1000.0), plain.predict(X))
    # the intercept that a warm start begins with is that of the centred rows
    assert shifted.fit(X + 1000.0, y).n_iter_ == 1


def test_a_sparse_offset_is_warned_about() -> None:
    X, y = CANCER
    FederatedClassifier(tol=1e-2).fit(scipy.sparse.csr_matrix(X), y)
    with pytest.warns(UserWarning, match="far from zero beside their spread"):
        FederatedClassifier(tol=1e-2).fit(scipy.sparse.csr_matrix(X + 1000.0), y)


def test_a_grid_search_hands_on_the_groups() -> None:
    X, y = CANCER
    groups = np.arange(len(y)) % 6
    with config_context(enable_metadata_routing=True):
        model = FederatedClassifier(tol=1e-2).set_fit_request(groups=True)
        search = GridSearchCV(model, {"l2_relative": [1e-2, 1.0]}, cv=GroupKFold(3)).fit(X, y, groups=groups)
    assert search.best_estimator_.groups_.tolist() == list(range(6))
    assert search.score(X, y) > 0.9


@pytest.mark.parametrize("make", [
    lambda **more: ProxClassifier(ps.prox.L1(0.01), **more),
    lambda **more: FederatedClassifier(l2_relative=1e-2, **more),
])  # fmt: skip
def test_a_warm_start_needs_fewer_iterations(make: Any) -> None:
    X, y = CANCER
    warm, cold = make(warm_start=True).fit(X, y), make().fit(X, y)
    first = warm.n_iter_
    assert first == cold.n_iter_
    assert warm.fit(X, y).n_iter_ < first / 2
    assert cold.fit(X, y).n_iter_ == first


@pytest.mark.parametrize("kind", [ProxClassifier, FederatedClassifier])
def test_too_few_iterations_are_warned_about(kind: Any) -> None:
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        kind(max_iter=2).fit(*CANCER)


def test_fit_leaves_the_penalty_alone() -> None:
    penalty = ps.prox.Sum(ps.prox.L1(0.1), ps.prox.NonNegative())
    ProxRegressor(penalty, fit_intercept=False, tol=1e-4).fit(DIABETES[0][:, :4], DIABETES[1])
    assert (penalty.calls, penalty.last) == (0, None)


def test_constant_columns_leave_the_mean() -> None:
    fitted = ProxRegressor(ps.prox.L1(0.1)).fit(np.ones((5, 3)), np.arange(5.0))
    assert np.array_equal(fitted.coef_, np.zeros(3))
    assert fitted.predict(np.ones((2, 3))).tolist() == [2.0, 2.0]
