"""The function of a client from its data: arrays, an svmlight file, or a PyTorch module with a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from proxskip import theory
from proxskip.data.svmlight import read_svmlight
from proxskip.problems.glm import LeastSquares, LinearModel, Logistic
from proxskip.problems.softmax import Softmax
from proxskip.types import Array, InputError, Oracle

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
    unknown = np.setdiff1d(labels, known)
    if len(unknown):
        raise InputError(f"the label {unknown[0]} is not among the classes {known.tolist()}; name all of them.")
    # append one row of each class, so that the model knows all classes, and remove these rows again
    rows, blank = A.shape[0], np.zeros((len(known), A.shape[1]))
    sparse = scipy.sparse.issparse(A)
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


def from_torch(module: Any, loss: Callable[..., Any], inputs: Any, targets: Any, **given: Any) -> TorchOracle:
    """A PyTorch module with its loss on this client's data; see ``TorchOracle``."""
    return TorchOracle(module, loss, inputs, targets, **given)


class TorchOracle:
    """A PyTorch module as an oracle: x is the vector of all its parameters, and autograd computes the gradients.

    Args:
        module: any module; every call overwrites its parameters; its buffers are neither changed nor averaged.
        loss: ``loss(outputs, targets)``, a mean over the rows.
        inputs, targets: tensors with one row per sample.
        l2: adds l2/2 |x|^2.
        L: the smoothness constant, if you know it. Without it a federation does not check step sizes, and ``run``,
            which derives them from L, refuses the module.
    """

    mu: float | None = None
    thread_safe = False

    def __init__(
        self, module: Any, loss: Callable[..., Any], inputs: Any, targets: Any, l2: float = 0.0, L: float | None = None
    ) -> None:
        import torch

        self.torch, self.module, self.loss, self.inputs, self.targets = torch, module, loss, inputs, targets
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.d, self.N, self.l2 = sum(p.numel() for p in self.parameters), len(inputs), float(l2)
        self.given_L, self.L_known = None if L is None else theory.positive("L", L), L is not None
        flat = torch.nn.utils.parameters_to_vector(self.parameters)
        self.initial = np.array(flat.detach().cpu().numpy(), dtype=np.float64)
        if not self.N or len(targets) != self.N:
            raise InputError(f"there are {self.N} inputs and {len(targets)} targets; give equally many.")
        if any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in module.modules()):
            raise InputError(
                "batch normalization keeps running means that are not averaged; use GroupNorm or LayerNorm."
            )

    @property
    def L(self) -> float:
        """The smoothness constant that was given."""
        if self.given_L is None:
            raise InputError("nobody knows the L of this module, from which step sizes follow; give from_torch its L.")
        return self.given_L

    def start(self) -> Array:
        """The parameters that the module had when it was given, as a starting point."""
        return self.initial.copy()

    def load(self, x: Array) -> Any:
        """The module, with its parameters set to x."""
        first = self.parameters[0]
        flat = self.torch.as_tensor(np.array(x), dtype=first.dtype, device=first.device)
        self.torch.nn.utils.vector_to_parameters(flat, self.parameters)
        return self.module

    def value(self, x: Array) -> float:
        """The mean loss over all rows, with the regularizer."""
        with self.torch.no_grad():
            return float(self.loss(self.load(x)(self.inputs), self.targets)) + 0.5 * self.l2 * float(x @ x)

    def gradient(self, x: Array) -> Array:
        """The gradient over all rows."""
        return self.minibatch_gradient(x, None)

    def minibatch_gradient(self, x: Array, rows: Any) -> Array:
        """The gradient over these rows, or over all if ``rows`` is None."""
        module = self.load(x)
        picks = slice(None) if rows is None else self.torch.as_tensor(np.asarray(rows), device=self.inputs.device)
        loss = self.loss(module(self.inputs[picks]), self.targets[picks])
        parts = self.torch.autograd.grad(loss, self.parameters)
        flat = self.torch.cat([g.reshape(-1) for g in parts])
        return np.asarray(flat.cpu().numpy(), dtype=np.float64) + self.l2 * x


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
    if not getattr(oracle, "L_known", True):
        return None
    if batch is None or not isinstance(oracle, LinearModel):
        return float(oracle.L)
    A, _ = theory.expected_smoothness(oracle.N, batch, float(oracle.L), oracle.L_rows, math.nan)
    return float(A)
