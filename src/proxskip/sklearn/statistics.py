"""Estimators for statistics: generalized linear models and Cox's, with the standard errors of the pooled fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from proxskip.problems.cox import Cox
from proxskip.problems.glm import LeastSquares, Logistic
from proxskip.problems.poisson import Poisson
from proxskip.results.inference import Inference
from proxskip.sklearn.clients import FederatedEstimator
from proxskip.sklearn.conventions import Engines, Networks, Solver, validate_data
from proxskip.types import Array

FAMILIES: dict[str, tuple[Any, Any]] = {
    "gaussian": (LeastSquares, np.asarray),
    "binomial": (Logistic, scipy.special.expit),
    "poisson": (Poisson, np.exp),
}
"""The model of each family, and the mean that belongs to a margin."""


class StatisticalEstimator(FederatedEstimator):
    """A federated estimator with a table."""

    random_state = None

    def inference(self, **options: Any) -> Inference:
        """The table of coefficients with their standard errors, p-values and intervals.

        Args:
            options: ``level``, ``robust`` and ``penalized``, as in ``RunResult.inference``.
        """
        check_is_fitted(self)
        return self.result_.inference(self._problem, **options)

    def _named(self, model: Any) -> Any:
        """The model with the names of the columns, where X was a data frame."""
        model.names = None if not hasattr(self, "feature_names_in_") else tuple(map(str, self.feature_names_in_))
        return model


class FederatedGLM(RegressorMixin, StatisticalEstimator):
    """A generalized linear model with the canonical link, fitted to rows that stay with their clients.

    The coefficients are those of all rows together, whatever the groups are, and ``inference`` gives their table.

    Args:
        family: "gaussian", "binomial" (two classes, of which the larger is counted) or "poisson".
        l2: the coefficient of  l2/2 |w|^2,  added to the mean of the losses; the intercept is not penalized.
        fit_intercept: whether to add an intercept.
        solver: "auto" chooses Newton or Scaffnew by their costs, and ``result_.summary["solver"]`` says why; or a
            method of ``proxskip.run``.
        tol: stop when the gradient norm is below tol times that at zero.
        max_iter: communication rounds.
        network: that "auto" estimates the costs for, or its name.
        engine: as in ``run``.

    Attributes:
        coef_, intercept_, n_features_in_: as in scikit-learn.
        n_iter_: communication rounds of the last fit.
        groups_: the group of each client.
        result_: what ``run`` returned, with the ledger of what was sent.

    >>> import numpy as np
    >>> from proxskip.sklearn import FederatedGLM
    >>> X = np.arange(12.0)[:, None]
    >>> model = FederatedGLM("poisson").fit(X, np.arange(12) // 2, groups=np.arange(12) % 3)
    >>> model.inference().names, bool(model.inference().p[0] < 0.05)
    (('x1', 'intercept'), True)
    """

    def __init__(
        self,
        family: str = "gaussian",
        *,
        l2: float = 0.0,
        fit_intercept: bool = True,
        solver: Solver = "auto",
        tol: float = 1e-10,
        max_iter: int = 1000,
        network: Networks = "cross-silo",
        engine: Engines = "cpu",
    ) -> None:
        self.family = family
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.network = network
        self.engine = engine

    def fit(self, X: Any, y: Any, groups: Any = None, offset: Any = None) -> FederatedGLM:
        """Fit the coefficients.

        Args:
            groups: which client has each row, by any labels; without them all rows belong to one client.
            offset: added to the margins of "poisson", such as the logarithm of an exposure.
        """
        if self.family not in FAMILIES:
            raise ValueError(f'family = "{self.family}" is not known; use {", ".join(FAMILIES)}.')
        if offset is not None and self.family != "poisson":
            raise ValueError(f'an offset needs family="poisson", not "{self.family}".')
        numeric = self.family != "binomial"
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=numeric, ensure_min_samples=2)
        kind, _ = FAMILIES[self.family]
        more = {} if offset is None else {"offset": offset}
        x = self._solve(self._named(kind(X, y, l2=self.l2, intercept=self.fit_intercept, **more)), groups)
        self.coef_, self.intercept_ = x[: X.shape[1]], float(x[-1]) if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> Array:
        """The mean of each sample: a probability for "binomial", a count for "poisson" with offset 0."""
        _, mean = FAMILIES[self.family]
        return np.asarray(mean(self._margins(X) + self.intercept_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.family == "poisson"
        return tags

    def _more_tags(self) -> dict[str, Any]:  # before scikit-learn 1.6
        return {**super()._more_tags(), "requires_positive_y": self.family == "poisson"}


class FederatedCox(StatisticalEstimator):
    """Cox's proportional hazards model of rows that stay with their clients; every client is a stratum of its own.

    Args:
        ties: how events at the same time are treated, "efron" or "breslow".
        l2: the coefficient of  l2/2 |w|^2,  added to the negative log partial likelihood per row.
        solver, tol, max_iter, network, engine: as in ``FederatedGLM``.

    Attributes:
        coef_: the logarithms of the hazard ratios.
        n_features_in_, n_iter_, groups_, result_: as in ``FederatedGLM``.
    """

    def __init__(
        self,
        ties: str = "efron",
        *,
        l2: float = 0.0,
        solver: Solver = "auto",
        tol: float = 1e-10,
        max_iter: int = 1000,
        network: Networks = "cross-silo",
        engine: Engines = "cpu",
    ) -> None:
        self.ties = ties
        self.l2 = l2
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.network = network
        self.engine = engine

    def fit(self, X: Any, y: Any, groups: Any = None) -> FederatedCox:
        """Fit the coefficients.

        Args:
            y: two columns, the time and whether the event happened then; or as in scikit-survival, a structured array
                of an event and a time.
            groups: which client has each row, by any labels; without them all rows belong to one client.
        """
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, ensure_min_samples=2)
        time, event = times_and_events(y)
        ties: Any = self.ties
        self.coef_ = self._solve(self._named(Cox(X, time, event, ties=ties, l2=self.l2)), groups)
        return self

    def predict(self, X: Any) -> Array:
        """The logarithm of each sample's hazard, relative to that of a sample of zeros at the same client."""
        return self._margins(X)

    def score(self, X: Any, y: Any) -> float:
        """The share of the pairs that are predicted in their order, see ``concordance``."""
        return concordance(*times_and_events(y), self.predict(X))


def times_and_events(y: Any) -> tuple[Array, Array]:
    """The times, and 1 for an event, of two columns or of a structured array."""
    y = np.asarray(y)
    if y.dtype.names is not None and len(y.dtype.names) == 2:
        event, time = (y[name].astype(np.float64) for name in y.dtype.names)
        return time, event
    if y.ndim != 2 or y.shape[1] != 2:
        raise ValueError(f"y has shape {y.shape}; give two columns, the time and whether the event happened then.")
    return y[:, 0].astype(np.float64), y[:, 1].astype(np.float64)


def concordance(time: Array, event: Array, risk: Array) -> float:
    """Of all pairs in which one is known to have its event first, the share where its risk is higher; equal ones half.

    F. E. Harrell et al., Evaluating the Yield of Medical Tests, 1982.
    """
    right = pairs = 0.0
    for t, r in zip(time[event == 1], risk[event == 1], strict=True):
        later = (time > t) | ((time == t) & (event == 0))
        pairs += np.count_nonzero(later)
        right += np.count_nonzero(later & (risk < r)) + 0.5 * np.count_nonzero(later & (risk == r))
    return right / pairs if pairs else float("nan")
