"""A classifier that is trained over clients: each group of rows stays with one of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.problems.glm import Logistic, Softmax
from proxskip.problems.model_inputs import with_ones
from proxskip.sklearn.clients import FederatedEstimator
from proxskip.sklearn.conventions import Engines, LinearClassifier, Networks, Seeds, Solver, classified
from proxskip.types import Array

FAR_FROM_ZERO = 100.0
"""A sparse X whose squared means are this many times its variances is warned about."""

L2_RELATIVE = 1e-3
"""Lambda as a share of the smoothness of the loss, where none is given."""


class FederatedClassifier(LinearClassifier, FederatedEstimator):
    """Logistic regression (softmax for several classes) trained by one client per group.

    The objective is that of all rows together,  mean_j loss((a_j - m)' w + c, b_j) + lambda/2 (|w|^2 + c^2),  whatever
    the groups are. The intercept c is penalized too, so that the problem is strongly convex and the theorems apply. The
    mean m of all rows is subtracted, so that an offset of the features changes nothing; it is left out without an
    intercept, and for a sparse X, which it would fill.

    Args:
        fit_intercept: whether to add an intercept.
        solver: "auto" chooses Newton or Scaffnew by their costs, and ``result_.summary["solver"]`` says why; or a
            method of ``proxskip.run``, with its theorem's parameters if it is given by name.
        l2: lambda.
        l2_relative: lambda as a share of the smoothness of the loss, so that it does not depend on units; in place of
            l2. If neither is given, it is 1e-3.
        tol: stop when the gradient norm is below tol times that at zero.
        max_iter: communication rounds.
        cohort: clients per round, as in ``run``.
        network: that "auto" estimates the costs for, or its name.
        engine: as in ``run``.
        warm_start: start from the coefficients of the last ``fit``.
        random_state: the seed.

    Attributes:
        coef_, intercept_, classes_, n_features_in_: as in scikit-learn.
        n_iter_: communication rounds of the last fit.
        groups_: the group of each client.
        result_: what ``run`` returned, with the ledger of what was sent.

    >>> from sklearn.datasets import load_iris
    >>> from proxskip.sklearn import FederatedClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FederatedClassifier().fit(X, y, groups=y)  # each client has one kind of iris
    >>> bool(model.score(X, y) > 0.9), len(model.groups_)
    (True, 3)
    """

    def __init__(
        self,
        solver: Solver = "auto",
        *,
        l2: float | None = None,
        l2_relative: float | None = None,
        fit_intercept: bool = True,
        tol: float = 1e-4,
        max_iter: int = 5000,
        cohort: Any = None,
        network: Networks = "cross-silo",
        engine: Engines = "cpu",
        warm_start: bool = False,
        random_state: Seeds = None,
    ) -> None:
        # scikit-learn's clone asks that arguments are kept as they came; they are checked in ``fit``
        self.solver = solver
        self.l2 = l2
        self.l2_relative = l2_relative
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.cohort = cohort
        self.network = network
        self.engine = engine
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedClassifier:
        """Fit the coefficients.

        Args:
            groups: which client has each row, by any labels; without them all rows belong to one client.
        """
        X, codes = classified(self, X, y)
        d, kind = X.shape[1], Logistic if len(self.classes_) == 2 else Softmax
        # two classes share one row of coefficients, otherwise each class has its own
        rows = 1 if kind is Logistic else len(self.classes_)
        means = self._means(X)
        centered = X - means if means.any() else X
        columns = with_ones(centered) if self.fit_intercept else X
        model: Any = kind(columns, codes, self.l2 or 0.0, l2_relative=self._share())
        W = self._solve(model, groups, self._start(rows, means)).reshape(rows, -1)
        self.coef_ = W[:, :d]
        self.intercept_ = W[:, d] - self.coef_ @ means if self.fit_intercept else np.zeros(rows)
        return self

    def _share(self) -> float | None:
        """Lambda as a share of the smoothness, where it is not given itself."""
        if self.l2 is None and self.l2_relative is None:
            return L2_RELATIVE
        return self.l2_relative

    def _means(self, X: Any) -> Array:
        """What is subtracted from the rows: their mean, if there is an intercept that takes it up."""
        if not self.fit_intercept:
            return np.zeros(X.shape[1])
        means = np.asarray(X.mean(axis=0), dtype=np.float64).ravel()
        if not scipy.sparse.issparse(X):
            return means
        spread = float(X.multiply(X).mean(axis=0).sum()) - float(means @ means)
        if means @ means > FAR_FROM_ZERO * spread:
            warnings.warn(
                "the columns of the sparse X are far from zero beside their spread, and the penalty shrinks what makes "
                "up for that: centre them, or pass a dense X, which fit centres.",
                UserWarning,
                stacklevel=3,
            )
        return np.zeros(X.shape[1])

    def _start(self, rows: int, means: Array) -> Any:
        coef = getattr(self, "coef_", None) if self.warm_start else None
        # other features or classes than last time: nothing to start from
        if coef is None or coef.shape != (rows, len(means)):
            return None
        return (np.column_stack([coef, self.intercept_ + coef @ means]) if self.fit_intercept else coef).ravel()
