"""What the estimators share: checked input, coefficients, decisions and probabilities."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.special
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from proxskip.core.engine import Engine
from proxskip.core.method import Method
from proxskip.networks import Network
from proxskip.types import Array

__all__ = [
    "Engines",
    "LinearClassifier",
    "Networks",
    "Seeds",
    "Solver",
    "SparseEstimator",
    "classified",
    "seed_of",
    "validate_data",
    "warn_unless",
]

Solver = Method | type[Method] | str
"""A method of the library, its class or its name, or "auto"."""
Engines = Engine | str
Networks = Network | str
Seeds = int | np.random.RandomState | None
"""What scikit-learn takes for ``random_state``."""

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6

    def validate_data(estimator: Any, *args: Any, **options: Any) -> Any:
        """The older name of the same function."""
        return estimator._validate_data(*args, **options)


class SparseEstimator(BaseEstimator):
    """A linear estimator that takes sparse matrices, and says so."""

    coef_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _more_tags(self) -> dict[str, Any]:  # before scikit-learn 1.6
        return {"accept_sparse": True}

    def _margins(self, X: Any) -> Array:
        """What the coefficients make of each sample, without an intercept."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_.T)


class LinearClassifier(ClassifierMixin, SparseEstimator):
    """Predictions from ``coef_`` and ``intercept_``: one row for two classes, otherwise one row per class."""

    classes_: npt.NDArray[Any]
    intercept_: Array

    def decision_function(self, X: Any) -> Array:
        """The margins: one number per sample for two classes, otherwise one per class."""
        scores = self._margins(X) + self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each sample."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            # the logistic function is the softmax of the pair (0, score)
            scores = np.column_stack([np.zeros_like(scores), scores])
        return np.asarray(scipy.special.softmax(scores, axis=1))

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of the probabilities."""
        return np.log(self.predict_proba(X))


def classified(estimator: Any, X: Any, y: Any) -> tuple[Any, Array]:
    """X and the labels as 0, 1, ...; ``classes_`` is set."""
    X, y = validate_data(estimator, X, y, accept_sparse="csr", dtype=np.float64)
    check_classification_targets(y)
    estimator.classes_, codes = np.unique(y, return_inverse=True)
    if len(estimator.classes_) < 2:
        raise ValueError(f"There is only one class, {estimator.classes_[0]!r}; a classifier needs at least two.")
    return X, np.asarray(codes, dtype=np.float64)


def seed_of(estimator: Any) -> int:
    """The seed that ``random_state`` stands for: a number itself, 0 for None, otherwise drawn from it."""
    state = estimator.random_state
    if state is None or isinstance(state, (int, np.integer)):
        # None is a fixed seed here, so that a fit can be repeated
        return int(state or 0)
    return int(check_random_state(state).randint(2**31))


def warn_unless(done: bool, message: str) -> None:
    """A ConvergenceWarning where the tolerance was not reached."""
    if not done:
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
