"""What a client minimises, from the data it has: arrays, an svmlight file, or a PyTorch module and its loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from proxskip.data.svmlight import read_svmlight
from proxskip.problems.glm import LeastSquares, LinearModel, Logistic
from proxskip.problems.softmax import Softmax
from proxskip.types import Array, InputError, Oracle

LOSSES: dict[str, Any] = {"logistic": Logistic, "squared": LeastSquares, "softmax": Softmax}
UNKNOWN_L = 1e-9
"""The L of a function that does not know its L: no step is too long for it, and the server says so."""


def from_arrays(
    A: Any, b: Any, loss: str = "logistic", l2: float = 0.0, classes: Sequence[Any] = (-1, 1), **given: Any
) -> LinearModel:
    """A linear model on the rows of A (dense or sparse) with labels or targets b.

    Args:
        l2: lambda of lambda/2 |x|^2, the same number on every client.
        classes: the labels of the whole federation, in order; a client may lack some, and all must name the same.
        given: further arguments of Logistic, LeastSquares or Softmax.
    """
    if loss not in LOSSES:
        raise InputError(f'loss = "{loss}" is not known; use {", ".join(LOSSES)}.')
    if given.get("l2_relative"):
        raise InputError("l2_relative would give every client its own lambda; give l2 itself.")
    if loss == "squared":
        return LeastSquares(A, b, l2=l2, **given)
    labels, known = np.asarray(b), np.unique(np.asarray(classes))
    strange = np.setdiff1d(labels, known)
    if len(strange):
        raise InputError(f"the label {strange[0]} is not among the classes {known.tolist()}; name all of them.")
    rows, blank = A.shape[0], np.zeros((len(known), A.shape[1]))
    sparse = scipy.sparse.issparse(A)
    padded = scipy.sparse.vstack([A, scipy.sparse.csr_matrix(blank)], "csr") if sparse else np.vstack([A, blank])
    model: LinearModel = LOSSES[loss](padded, np.concatenate([labels, known]), l2=l2, **given)
    return model.take(np.arange(rows))  # one row of each class, and away with them: the classes stay


def from_svmlight(
    path: str | Path, features: int, loss: str = "logistic", l2: float = 0.0, **given: Any
) -> LinearModel:
    """A linear model on an svmlight file.

    Args:
        features: how many there are in the whole federation; a client's own file may lack the last ones.
        given: as for ``from_arrays``.
    """
    data = read_svmlight(Path(path), n_features=features)
    return from_arrays(data.A, data.b, loss, l2, **given)


def from_torch(module: Any, loss: Callable[..., Any], inputs: Any, targets: Any, **given: Any) -> TorchOracle:
    """A PyTorch module with its loss on this client's data; see ``TorchOracle``."""
    return TorchOracle(module, loss, inputs, targets, **given)


class TorchOracle:
    """A PyTorch module as an oracle: x is all its parameters end to end, and gradients come from autograd.

    Args:
        module: any module; its parameters are overwritten at every call, its buffers are left alone and not averaged.
        loss: ``loss(outputs, targets)``, a mean over the rows.
        inputs, targets: tensors with one row a sample.
        l2: adds l2/2 |x|^2.
        L: the smoothness constant where you know one; without it step sizes are not checked.
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
        self.L, self.L_known = UNKNOWN_L if L is None else float(L), L is not None
        if not self.N or len(targets) != self.N:
            raise InputError(f"there are {self.N} inputs and {len(targets)} targets; each needs one of the other.")
        if any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in module.modules()):
            raise InputError(
                "batch normalisation keeps running means that are not averaged; use GroupNorm or LayerNorm."
            )

    def start(self) -> Array:
        """The module's parameters as they are now: an x0."""
        flat = self.torch.nn.utils.parameters_to_vector(self.parameters)
        return np.asarray(flat.detach().cpu().numpy(), dtype=np.float64)

    def load(self, x: Array) -> Any:
        """The module with parameters x."""
        first = self.parameters[0]
        flat = self.torch.as_tensor(np.array(x), dtype=first.dtype, device=first.device)
        self.torch.nn.utils.vector_to_parameters(flat, self.parameters)
        return self.module

    def value(self, x: Array) -> float:
        """The mean loss over all rows, with the regulariser."""
        with self.torch.no_grad():
            return float(self.loss(self.load(x)(self.inputs), self.targets)) + 0.5 * self.l2 * float(x @ x)

    def gradient(self, x: Array) -> Array:
        """Over all rows."""
        return self.minibatch_gradient(x, None)

    def minibatch_gradient(self, x: Array, rows: Any) -> Array:
        """Over these rows, or all."""
        module = self.load(x)
        picks = slice(None) if rows is None else self.torch.as_tensor(np.asarray(rows), device=self.inputs.device)
        loss = self.loss(module(self.inputs[picks]), self.targets[picks])
        parts = self.torch.autograd.grad(loss, self.parameters)
        flat = self.torch.cat([g.reshape(-1) for g in parts])
        return np.asarray(flat.cpu().numpy(), dtype=np.float64) + self.l2 * x


def smoothness(oracle: Oracle, batch: int | None) -> float | None:
    """The L that step sizes must respect, with minibatches the A of expected smoothness; None where it is unknown."""
    if not getattr(oracle, "L_known", True):
        return None
    if batch is None or not isinstance(oracle, LinearModel):
        return float(oracle.L)
    from proxskip import theory

    spread = float("nan")
    return float(theory.expected_smoothness(oracle.N, batch, float(oracle.L), oracle.L_rows, spread)[0])
