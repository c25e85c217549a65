"""A classifier and a regressor for  mean loss + l2/2 |w|^2 + penalty(w),  by ``minimize``."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import RegressorMixin

from proxskip.minimizing.minimize import Minimum, minimize
from proxskip.problems.glm import LeastSquares, Logistic, Softmax
from proxskip.problems.linear_model import LinearModel
from proxskip.prox import Blocks, Zero, as_prox
from proxskip.sklearn.conventions import (
    LinearClassifier,
    Seeds,
    SparseEstimator,
    classified,
    seed_of,
    validate_data,
    warn_unless,
)
from proxskip.types import Array, Prox


class ProxEstimator(SparseEstimator):
    """The parameters of both estimators, and their fit by ``minimize``."""

    intercept_: Any

    def __init__(
        self,
        penalty: Prox | None = None,
        *,
        l2: float = 0.0,
        fit_intercept: bool = True,
        solver: str = "fista-restart",
        tol: float = 1e-6,
        max_iter: int = 20_000,
        warm_start: bool = False,
        random_state: Seeds = None,
    ) -> None:
        self.penalty = penalty
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.random_state = random_state

    def _solve(self, model: LinearModel, rows: int) -> Array:
        """The coefficients, one row per class with the intercept last if the model has one."""
        width, free = model.d // rows, int(model.intercept)
        slope = float(np.linalg.norm(model.gradient(np.zeros(model.d))))
        psi, start = self._penalty(rows, width - free, free), self._start(rows, width - free, free)
        result: Minimum = minimize(
            model, psi, start, method=self.solver, tol=self.tol * (slope or 1.0), seed=seed_of(self),
            max_iter=self.max_iter, progress=False,
        )  # fmt: skip
        self.result_ = result
        self.n_iter_ = max(1, result.nit)  # scikit-learn asks for at least one iteration
        warn_unless(result.success, result.message + " Raise max_iter or tol, or scale the features.")
        return result.x.reshape(rows, width)

    def _penalty(self, rows: int, d: int, free: int) -> Prox | None:
        """The penalty of each class's coefficients; copies, since some operators remember their last call."""
        psi = as_prox(self.penalty)
        if psi is None or (rows == 1 and not free):
            return copy.deepcopy(psi)
        # unknowns are laid out class by class, the intercept after its coefficients and free
        parts = [part for _ in range(rows) for part in [copy.deepcopy(psi), *[Zero()] * free]]
        return Blocks(parts, [d, *[1] * free] * rows)

    def _start(self, rows: int, d: int, free: int) -> Array | None:
        """The coefficients of the last fit, for a warm start; None where their shape differs."""
        coef = getattr(self, "coef_", None) if self.warm_start else None
        if coef is None or np.atleast_2d(coef).shape != (rows, d):
            return None
        # without an intercept none of this column is taken
        intercept = np.atleast_1d(self.intercept_)[:, None]
        return np.hstack([np.atleast_2d(coef), intercept[:, :free]]).ravel()


class ProxClassifier(LinearClassifier, ProxEstimator):
    """Logistic regression (softmax for several classes) with any penalty that has a prox.

    The objective is  mean_j loss(a_j' w + c, b_j) + l2/2 |w|^2 + penalty(w).  The intercept c is not penalized, and the
    penalty acts on the coefficients of each class.

    Args:
        fit_intercept: whether to add an intercept.
        penalty: an operator of ``proxskip.prox`` or pyproximal, such as ``proxskip.prox.L1(0.01)``; None for none.
        l2: the coefficient of the squared norm. Where the classes can be separated and there is no penalty, give one:
            there is no minimum otherwise.
        solver: a method of ``proxskip.minimize``; "auto" chooses by the clock, so that ``n_iter_`` may differ from fit
            to fit.
        tol: stop when the certificate is below tol times the gradient's norm at zero.
        max_iter: iterations.
        warm_start: start from the coefficients of the last ``fit``.
        random_state: the seed of methods that draw.

    Attributes:
        coef_, intercept_, classes_, n_features_in_: as in scikit-learn.
        n_iter_: iterations of the last fit.
        result_: what ``minimize`` returned.

    >>> from sklearn.datasets import load_iris
    >>> from proxskip.prox import L1
    >>> from proxskip.sklearn import ProxClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ProxClassifier(L1(0.02), tol=1e-4).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), int((model.coef_ == 0).sum()) > 0
    (True, True)
    """

    def fit(self, X: Any, y: Any) -> ProxClassifier:
        """Fit the coefficients to the rows of X and their labels."""
        X, codes = classified(self, X, y)
        kind: Any = Logistic if len(self.classes_) == 2 else Softmax
        model = kind(X, codes, l2=self.l2, intercept=self.fit_intercept)
        rows = 1 if kind is Logistic else len(self.classes_)
        W = self._solve(model, rows)
        self.coef_ = W[:, : X.shape[1]]
        self.intercept_ = W[:, -1] if self.fit_intercept else np.zeros(rows)
        return self


class ProxRegressor(RegressorMixin, ProxEstimator):
    """Least squares with any penalty that has a prox.

    The objective is  mean_j (a_j' w + c - b_j)^2 / 2 + l2/2 |w|^2 + penalty(w);  the intercept c is not penalized.

    Args:
        penalty: an operator of ``proxskip.prox`` or pyproximal, such as ``proxskip.prox.TV1D(0.1)``; None for none.
        l2, fit_intercept, solver, tol, max_iter, warm_start, random_state: as in ``ProxClassifier``.

    >>> from sklearn.datasets import load_diabetes
    >>> from proxskip.prox import L1
    >>> from proxskip.sklearn import ProxRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> bool(ProxRegressor(L1(0.1)).fit(X, y).score(X, y) > 0.45)
    True
    """

    def fit(self, X: Any, y: Any) -> ProxRegressor:
        """Fit the coefficients to the rows of X and their targets."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        y = np.asarray(y, dtype=np.float64)
        # without its mean a dense X needs no intercept, and is better conditioned; a sparse one would be filled
        centred = self.fit_intercept and not scipy.sparse.issparse(X)
        means = np.asarray(X.mean(axis=0)) if centred else np.zeros(X.shape[1])
        model = LeastSquares(
            X - means if centred else X,
            y - y.mean() if centred else y,
            l2=self.l2,
            intercept=self.fit_intercept and not centred,
        )
        (w,) = self._solve(model, 1)
        self.coef_ = w[: X.shape[1]]
        if centred:
            # the fitted plane passes through the means
            self.intercept_ = float(y.mean() - means @ self.coef_)
        else:
            self.intercept_ = float(w[-1]) if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> Array:
        """The fitted value of each sample."""
        return np.asarray(self._margins(X) + self.intercept_)
