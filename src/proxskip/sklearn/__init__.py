"""Estimators for scikit-learn: composite objectives with any prox, and federated classification.

They follow the conventions of scikit-learn: parameters in ``__init__``, ``fit``, ``predict``, and attributes that end
in an underscore after ``fit``. They work in pipelines and grid searches, and with sparse data.
"""

from proxskip.sklearn.federated import FederatedClassifier
from proxskip.sklearn.single import ProxClassifier, ProxRegressor

__all__ = ["FederatedClassifier", "ProxClassifier", "ProxRegressor"]
