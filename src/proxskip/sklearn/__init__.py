"""Estimators for scikit-learn: composite objectives with any prox, federated classification, and statistics.

They follow the conventions of scikit-learn: parameters in ``__init__``, ``fit``, ``predict``, and attributes that end
in an underscore after ``fit``. They work in pipelines and grid searches, and with sparse data.
"""

from proxskip.sklearn.federated import FederatedClassifier
from proxskip.sklearn.single import ProxClassifier, ProxRegressor
from proxskip.sklearn.statistics import FederatedCox, FederatedGLM

__all__ = ["FederatedClassifier", "FederatedCox", "FederatedGLM", "ProxClassifier", "ProxRegressor"]
