"""A client's function from its data: arrays, an svmlight file, or a PyTorch module with a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proxskip.datasets.files import read_svmlight
from proxskip.problems.glm import MODELS
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.poisson import Poisson
from proxskip.types import InputError

LOSSES = MODELS | {"poisson": Poisson}


def from_arrays(
    A: Any, b: Any, loss: str = "logistic", l2: float = 0.0, classes: Sequence[Any] = (-1, 1), **more: Any
) -> LinearModel:
    """A linear model on the rows of A (dense or sparse) with labels or targets b.

    Args:
        A: the data, one row per sample.
        b: the labels or targets, one per row.
        loss: "logistic", "squared", "softmax" or "poisson".
        l2: lambda in lambda/2 |x|^2, the same number for every client.
        classes: the labels of the whole federation, in order and the same for every client, which may lack some.
        more: further arguments of Logistic, LeastSquares, Softmax or Poisson.
    """
    if loss not in LOSSES:
        raise InputError(f'loss = "{loss}" is not known; use {", ".join(LOSSES)}.')
    # relative to L, which differs between clients
    if more.get("l2_relative") is not None:
        raise InputError("l2_relative would give each client its own lambda; use l2 instead.")
    of_loss = more if loss == "poisson" else more | {"classes": classes}
    return LOSSES[loss](A, b, l2=l2, **of_loss)  # type: ignore[no-any-return]


def from_svmlight(path: str | Path, features: int, loss: str = "logistic", l2: float = 0.0, **more: Any) -> LinearModel:
    """A linear model on an svmlight file.

    Args:
        path: the file.
        features: the number of features of the whole federation; a client's file may lack the last ones.
        loss, l2, more: as for ``from_arrays``.
    """
    data = read_svmlight(Path(path), n_features=features)
    return from_arrays(data.A, data.b, loss, l2, **more)


def from_torch(module: Any, loss: Callable[..., Any], inputs: Any, targets: Any, **more: Any) -> Any:
    """A PyTorch module with its loss on this client's data: a ``proxskip.torch.Model``.

    Args:
        module: any module without batch normalization, the same for every client.
        loss: ``loss(outputs, targets)``, a mean over the rows.
        inputs, targets: tensors with one row per sample.
        more: further arguments of ``proxskip.torch.Model``, such as l2.
    """
    from proxskip.problems.torch_model import Model

    return Model(module, loss, inputs, targets, **more)
