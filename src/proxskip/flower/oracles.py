"""The function of a client from its data: arrays, an svmlight file, or a PyTorch module with a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from proxskip import theory
from proxskip.data.svmlight import read_svmlight
from proxskip.problems.glm import LeastSquares, LinearModel, Logistic
from proxskip.problems.oracles import knows_L, row_smoothness_of, rows_of
from proxskip.problems.softmax import Softmax
from proxskip.types import InputError, Oracle, is_sparse

LOSSES: dict[str, Any] = {"logistic": Logistic, "squared": LeastSquares, "softmax": Softmax}
UNKNOWN_L = 1e-9
"""Stands for an unknown L: it allows every step size, and the server warns about it."""


def from_arrays(
    A: Any, b: Any, loss: str = "logistic", l2: float = 0.0, classes: Sequence[Any] = (-1, 1), **given: Any
) -> LinearModel:
    """A linear model on the rows of A (dense or sparse) with labels or targets b.

    Args:
        loss: "logistic", "squared" or "softmax".
        l2: lambda in lambda/2 |x|^2, the same number for every client.
        classes: the labels of the whole federation, in order and the same for every client, which may lack some.
        given: further arguments of Logistic, LeastSquares or Softmax.
    """
    if loss not in LOSSES:
        raise InputError(f'loss = "{loss}" is not known; use {", ".join(LOSSES)}.')
    # relative to each client's own L, which differ
    if given.get("l2_relative"):
        raise InputError("l2_relative would give every client its own lambda; give l2 instead.")
    if loss == "squared":
        return LeastSquares(A, b, l2=l2, **given)
    labels, known = np.asarray(b), np.unique(np.asarray(classes))
    unknown = [v for v in np.unique(labels).tolist() if v not in known.tolist()]
    if unknown:
        raise InputError(f"the label {unknown[0]} is not among the classes {known.tolist()}; name all of them.")
    # append one row of each class, so that the model knows all classes, and remove these rows again
    rows, blank = A.shape[0], np.zeros((len(known), A.shape[1]))
    sparse = is_sparse(A)
    padded = scipy.sparse.vstack([A, scipy.sparse.csr_matrix(blank)], "csr") if sparse else np.vstack([A, blank])
    model: LinearModel = LOSSES[loss](padded, np.concatenate([labels, known]), l2=l2, **given)
    return model.take(np.arange(rows))


def from_svmlight(
    path: str | Path, features: int, loss: str = "logistic", l2: float = 0.0, **given: Any
) -> LinearModel:
    """A linear model on an svmlight file.

    Args:
        features: the number of features of the whole federation; a client's file may lack the last ones.
        given: as for ``from_arrays``.
    """
    data = read_svmlight(Path(path), n_features=features)
    return from_arrays(data.A, data.b, loss, l2, **given)


def from_torch(module: Any, loss: Callable[..., Any], inputs: Any, targets: Any, **given: Any) -> Any:
    """A PyTorch module with its loss on this client's data: a ``proxskip.torch.Model``."""
    from proxskip.problems.torch_model import Model

    return Model(module, loss, inputs, targets, **given)


# -- what the server asks of any oracle, also of a user's own ----------------------------------------------------------
def kind(oracle: Oracle) -> str:
    """The name of the loss, or that of the class if the oracle does not name one."""
    loss = getattr(oracle, "loss", None)
    return loss if isinstance(loss, str) else type(oracle).__name__


def l2(oracle: Oracle) -> float:
    """The weight of the oracle's regularizer; 0 if it declares none."""
    return float(getattr(oracle, "l2", 0.0) or 0.0)


def smoothness(oracle: Oracle, batch: int | None) -> float | None:
    """The L that limits step sizes, with minibatches the A of expected smoothness; None if it is unknown."""
    if not knows_L(oracle):
        return None
    rows = None if batch is None else row_smoothness_of(oracle)
    if batch is None or rows is None:
        return float(oracle.L)
    A, _ = theory.expected_smoothness(rows_of(oracle), batch, float(oracle.L), rows, math.nan)
    return float(A)
