"""Many clients' functions as one: gradients of all of them at once, for networks, linear models and quadratics.

A family lays the unknowns out in rows of D numbers: every parameter of a network begins at a multiple of ``ALIGNED``,
since the card's matrix units read aligned matrices only, and the gaps between them are zero and stay so.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch.func import grad, vmap

from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.oracles import rows_of
from proxskip.problems.quadratic import Quadratic
from proxskip.problems.softmax import Softmax
from proxskip.problems.torch_model import Model, masks_of
from proxskip.types import Indices, InputError

ALIGNED = 64
"""Numbers; 256 bytes of float32."""
CONVOLVE_BY_PRODUCTS = {"cpu"}
"""Where convolutions of many clients are products of matrices; a card is faster with convolutions in groups."""
LARGEST_DENSE = 1 << 33
"""Bytes that sparse data may take once they are dense."""


class Family:
    """The functions of many clients, all of one kind, on rows of D numbers.

    ``dtype`` is that of what clients and server remember, ``sizes`` the rows of each client.
    """

    dtype: torch.dtype
    D: int
    is_random = False

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.sizes = np.array([rows_of(f) for f in problem.clients], dtype=np.int64)
        # all clients' rows lie end to end: where each client's begin, and how many they are
        self.first = torch.as_tensor(np.append(0, np.cumsum(self.sizes))[:-1]).to(device)
        self.counts = torch.as_tensor(self.sizes).to(device)
        self.needs_equal_sizes = False

    def batch(self, members: Any, rows: Any, word: Any) -> Any:
        """What ``gradient`` needs of these clients: the given rows of each, or all if None."""
        raise NotImplementedError

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        """One row of gradients for each row of Y, as a new stack."""
        raise NotImplementedError

    def descend(self, Y: Any, H: Any, gamma: Any, batch: Any) -> None:
        """One step of every row,  y <- y - gamma (g(y) - h),  in its place; H is None for h = 0."""
        g = self.gradient(Y, batch)
        Y.sub_(gamma * (g if H is None else g - H))

    def inside(self, X: Any) -> Any:
        """``(..., d)`` as ``(..., D)``."""
        return X

    def outside(self, X: Any) -> Any:
        """And back."""
        return X


def family_of(problem: Problem, device: torch.device) -> Any:
    """The clients as a family; refused where they are not of one kind."""
    first = problem.clients[0]
    if all(isinstance(f, Model) for f in problem.clients):
        return Networks(problem, device)
    if isinstance(first, LinearModel) and all(type(f) is type(first) and f.has_rows for f in problem.clients):
        return LinearModels(problem, device)
    if all(isinstance(f, Quadratic) and f.H.ndim == first.H.ndim for f in problem.clients):  # type: ignore[attr-defined]
        return Quadratics(problem, device)
    raise InputError(
        "the torch engine needs clients of one kind: proxskip.torch.Model, linear models on matrices, or quadratics; "
        'use engine="cpu".'
    )


class Networks(Family):
    """Modules of one architecture; ``vmap(grad)`` over their stacked parameters."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        super().__init__(problem, device)
        models: list[Any] = list(problem.clients)
        self.model = first = models[0]
        for i, f in enumerate(models):
            alike = (f.names, f.shapes, f.torch_dtype, f.l2) == (first.names, first.shapes, first.torch_dtype, first.l2)
            if not (alike and type(f.module) is type(first.module) and f.loss is first.loss):
                raise InputError(
                    f"client {i} has a different module, loss or l2 from client 0; the torch engine needs one loss "
                    'object, and the same module and l2, for all of them: share them, or use engine="cpu".'
                )
            if f.module is not first.module and not _same(f.constants, first.constants):
                raise InputError(
                    f"client {i} has other buffers or frozen parameters than client 0, and the torch engine takes one "
                    'module for all of them; use engine="cpu".'
                )
        # on another device a copy: the user's own stays where it is
        self.module = first.module if first.device == device else first.module_at(first.start()).to(device)
        self.X = torch.cat([f.inputs.to(device) for f in models])
        self.T = torch.cat([f.targets.to(device) for f in models])
        # half precisions compute in the module alone: what is remembered would lose small steps in them
        self.dtype = torch.float64 if first.torch_dtype == torch.float64 else torch.float32
        self.is_random, self.l2, self.needs_equal_sizes = first.is_random, first.l2, bool(np.ptp(self.sizes))
        self.by_products = device.type in CONVOLVE_BY_PRODUCTS
        self._lay_out(first.shapes, device)

    def _lay_out(self, shapes: Any, device: torch.device) -> None:
        self.spans, at = [], 0
        for shape in shapes:
            self.spans.append((at, at + shape.numel(), shape))
            # the next parameter begins at a multiple of ALIGNED
            at += -(-shape.numel() // ALIGNED) * ALIGNED
        self.D = at
        # of each unknown, its place in a row with gaps
        self.places = torch.cat([torch.arange(lo, hi) for lo, hi, _ in self.spans]).to(device)

    def inside(self, X: Any) -> Any:
        rows = X.new_zeros((*X.shape[:-1], self.D))
        rows[..., self.places.to(X.device)] = X
        return rows

    def outside(self, X: Any) -> Any:
        return X[..., self.places.to(X.device)]

    def _loss(self, parameters: Any, inputs: Any, targets: Any, key: Any, by_products: bool = False) -> Any:
        named = dict(zip(self.model.names, parameters, strict=True))
        return self.model.loss_at(named, inputs, targets, key, self.module, by_products)

    def _pieces(self, Y: Any) -> tuple[Any, ...]:
        """Views of the parameters of every row, in the dtype of the module."""
        kind, c = self.model.torch_dtype, Y.shape[:-1]
        return tuple(Y[..., lo:hi].view(*c, *shape).to(kind) for lo, hi, shape in self.spans)

    def batch(self, members: Any, rows: Any, word: Any) -> Any:
        """Inputs, targets and the keys of dropout; all rows only of clients with equally many of them."""
        if rows is None:
            rows = torch.arange(int(self.counts[members[0]]), device=members.device).expand(len(members), -1)
        picks = self.first[members][:, None] + rows
        keys = masks_of(word, members) if self.is_random and word is not None else None
        return self.X[picks], self.T[picks], keys

    def keyed(self, batch: Any, members: Any, word: Any) -> Any:
        """The same rows with other masks."""
        return (*batch[:2], masks_of(word, members))

    def slopes(self, parameters: Any, batch: Any) -> Any:
        """The gradients by each parameter, ``(c, ...)`` as they are, without l2."""
        # one key of dropout for each client, or none: full gradients are without dropout
        in_dims = (0, 0, 0, None if batch[2] is None else 0)
        return _batched(vmap(grad(partial(self._loss, by_products=self.by_products)), in_dims), parameters, *batch)

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        """Parameter by parameter."""
        G = torch.zeros_like(Y)
        for (lo, hi, _), g in zip(self.spans, self.slopes(self._pieces(Y), batch), strict=True):
            G[:, lo:hi] = g.reshape(len(Y), -1)
        # the gaps of Y are zero, so that they stay so
        return G.add_(Y, alpha=self.l2) if self.l2 else G

    def descend(self, Y: Any, H: Any, gamma: Any, batch: Any) -> None:
        """Parameter by parameter: no stack of gradients is put together."""
        slopes = self.slopes(self._pieces(Y), batch)
        # y <- (1 - gamma l2) y - gamma (g - h);  the gradients at the old y are taken already
        if self.l2:
            Y.mul_(1.0 - gamma * self.l2)
        for (lo, hi, _), g in zip(self.spans, slopes, strict=True):
            _add(Y[:, lo:hi], g.reshape(len(Y), -1), -gamma)
        if H is not None:
            _add(Y, H, gamma)

    def losses_at(self, x: Any, members: Any, rows: Any) -> Any:
        """The losses of these clients at one x, on these rows and without dropout."""
        inputs, targets, _ = self.batch(members, rows, None)
        # one x for all clients: their rows are those of one large batch
        losses = vmap(self._loss, in_dims=(None, 0, 0, None))
        return _batched(losses, self._pieces(x), inputs, targets, None)


def _add(Y: torch.Tensor, V: torch.Tensor, factor: Any) -> None:
    """Y += factor V; the factor is one number, or a column."""
    if isinstance(factor, float):
        Y.add_(V, alpha=factor)
    else:
        Y.addcmul_(V.to(Y.dtype), factor.expand(len(Y), 1))


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[name]) for name, v in a.items())


def _batched(call: Any, *given: Any) -> Any:
    """The call; a sentence if PyTorch cannot batch what the module does."""
    try:
        return call(*given)
    except RuntimeError as error:
        if not any(word in str(error) for word in ("Batching rule", "vmap")):
            raise
        said = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise InputError(f'PyTorch cannot batch this module ({said}); use engine="cpu".') from error


class LinearModels(Family):
    """Logistic, least squares and softmax regression, in closed form."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        super().__init__(problem, device)
        models: list[Any] = list(problem.clients)
        first = models[0]
        kind = first.dtype
        if self.sizes.sum() * first.A.shape[1] * kind.itemsize > LARGEST_DENSE and scipy.sparse.issparse(first.A):
            raise InputError(
                'the torch engine stores data densely, and these are too large for that; use engine="cpu".'
            )

        def there(parts: Any) -> Any:
            return torch.as_tensor(np.concatenate([np.asarray(p, dtype=kind) for p in parts])).to(device)

        self.A = there(f.A.toarray() if scipy.sparse.issparse(f.A) else f.A for f in models)
        self.b, self.s = there(f.b for f in models), there(f.s for f in models)
        self.factors = there(np.broadcast_to(f.row_factors, (f.N,)) for f in models)
        self.reg = there(f.reg[None] for f in models)
        self.loss, self.dtype, self.D = first.loss, self.A.dtype, problem.d
        self.C = first.C if isinstance(first, Softmax) else 1

    def batch(self, members: Any, rows: Any, word: Any) -> Any:
        """Rows, labels, the weight of each row, and the regulariser."""
        if rows is None:
            # clients with fewer rows than others repeat their last one with the weight zero
            places, counts = torch.arange(int(self.sizes.max()), device=members.device), self.counts[members][:, None]
            picks = self.first[members][:, None] + places.minimum(counts - 1)
            weights = self.s[picks] * (places < counts)
        else:
            # N s_j over the size of the minibatch: its mean is then unbiased for any row weights
            picks = self.first[members][:, None] + rows
            weights = self.factors[picks] / rows.shape[1]
        return self.A[picks], self.b[picks], weights, self.reg[members]

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        """A' (weights * slopes) + reg y."""
        A, b, weights, reg = batch
        c = len(Y)
        # margins of every row and class, (c, rows, C); the unknowns of a class are consecutive
        Z = A @ Y.view(c, self.C, -1).transpose(1, 2)
        if self.loss == "softmax":
            slopes = torch.softmax(Z, 2) - torch.nn.functional.one_hot(b.long(), self.C)
        elif self.loss == "squared":
            slopes = Z - b[:, :, None]
        else:
            slopes = -b[:, :, None] * torch.sigmoid(-b[:, :, None] * Z)
        G = (weights[:, :, None] * slopes).transpose(1, 2) @ A
        return G.reshape(c, -1) + reg * Y


class Quadratics(Family):
    """x' H x / 2 - b' x."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        super().__init__(problem, device)
        models: list[Any] = list(problem.clients)
        self.H, self.b = (
            torch.as_tensor(np.stack(v)).to(device) for v in zip(*((f.H, f.b) for f in models), strict=True)
        )
        self.dtype, self.D = torch.float64, problem.d

    def batch(self, members: Any, rows: Any, word: Any) -> Any:
        """The matrices and vectors of these clients."""
        return self.H[members], self.b[members]

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        """H y - b."""
        H, b = batch
        # matrices that are diagonal are stored as their diagonals
        return (H * Y if H.ndim == 2 else (H @ Y[:, :, None])[:, :, 0]) - b


def groups(members: Indices, sizes: Indices, most: int, equal: bool) -> list[Any]:
    """The places of the members in calls of at most ``most``; with ``equal``, of clients with equally many rows."""
    if not equal:
        return [slice(lo, min(lo + most, len(members))) for lo in range(0, len(members), most)]
    places = (np.flatnonzero(sizes[members] == size) for size in np.unique(sizes[members]))
    return [some[lo : lo + most] for some in places for lo in range(0, len(some), most)]
