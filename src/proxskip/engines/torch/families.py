"""Many clients' functions as one: gradients of all of them at once, for networks, linear models and quadratics.

A family lays the unknowns out in rows of D numbers: every parameter of a network begins at a multiple of ``ALIGNED``,
since the card's matrix units read aligned matrices only, and the gaps between them are zero and stay so.
"""

from __future__ import annotations

from typing import Any, Protocol

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
from proxskip.types import Array, Indices, InputError

ALIGNED = 64
"""Numbers; 256 bytes of float32."""
CONVOLVE_BY_PRODUCTS = {"cpu"}
"""Where convolutions of many clients are products of matrices; a card is faster with convolutions in groups."""
LARGEST_DENSE = 1 << 33
"""Bytes that sparse data may take once they are dense."""


class Family(Protocol):
    """What the engine needs of the clients' functions, all of one kind."""

    dtype: torch.dtype
    """Of what clients and server remember."""
    D: int
    is_random: bool

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        """One row of gradients for each row of Y."""
        ...

    def descend(self, Y: Any, H: Any, gamma: Any, batch: Any) -> None:
        """One step of every row,  y <- y - gamma (g(y) - h),  in its place; H is None for h = 0."""
        ...

    def batch(self, members: Any, rows: Any, word: Any) -> Any:
        """What ``gradient`` needs of these clients: the given rows of each, or all if None."""
        ...

    def inside(self, X: Any) -> torch.Tensor:
        """``(..., d)`` as ``(..., D)``."""
        ...

    def outside(self, X: Any) -> torch.Tensor:
        """And back."""
        ...


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


class _Plain:
    """A layout without gaps, and a step made of a gradient."""

    is_random = False

    def inside(self, X: Any) -> Any:
        return X

    def outside(self, X: Any) -> Any:
        return X

    def descend(self, Y: Any, H: Any, gamma: Any, batch: Any) -> None:
        g = self.gradient(Y, batch)
        Y.sub_(gamma * (g if H is None else g - H))

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        raise NotImplementedError


class _Rows:
    """All clients' rows end to end, and where each client's begin."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.sizes = np.array([rows_of(f) for f in problem.clients], dtype=np.int64)
        self.first = torch.as_tensor(np.append(0, np.cumsum(self.sizes))[:-1]).to(device)
        self.counts = torch.as_tensor(self.sizes).to(device)
        self.most, self.equal = int(self.sizes.max()), bool(np.ptp(self.sizes) == 0)

    def picks(self, members: Any, rows: Any) -> Any:
        """The places of the given rows of each member; of all rows of each, the last ones repeated, if None."""
        if rows is None:
            # clients with fewer rows repeat their last one, so that the stack is rectangular
            rows = torch.arange(self.most, device=self.first.device).minimum(self.counts[members][:, None] - 1)
        return self.first[members][:, None] + rows


class Networks(_Rows):
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
        self.module = first.module if first.device == device else _moved(first, device)
        self.X = torch.cat([f.inputs.to(device) for f in models])
        self.T = torch.cat([f.targets.to(device) for f in models])
        # half precisions compute in the module alone: what is remembered would lose small steps in them
        self.dtype = torch.float64 if first.torch_dtype == torch.float64 else torch.float32
        self.is_random, self.many = first.is_random, device.type in CONVOLVE_BY_PRODUCTS
        self.l2 = first.l2
        self._lay_out(first.shapes, device)
        slopes = grad(self._loss)
        # the keys of dropout are one per client, or None for all of them
        with_keys = (0, 0, 0, 0) if self.is_random else (0, 0, 0, None)
        self.slopes = vmap(slopes, in_dims=with_keys)
        self.losses = vmap(self._plain_loss, in_dims=(None, 0, 0, None))

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
        out = X.new_zeros((*X.shape[:-1], self.D))
        out[..., self.places] = X
        return out

    def outside(self, X: Any) -> Any:
        return X[..., self.places.to(X.device)]

    def _loss(self, parameters: Any, inputs: Any, targets: Any, key: Any) -> Any:
        names = dict(zip(self.model.names, parameters, strict=True))
        return self.model.loss_at(names, inputs, targets, key, self.module, self.many)

    def _plain_loss(self, parameters: Any, inputs: Any, targets: Any, key: Any) -> Any:
        """With one x for all clients, whose rows are then those of one large batch."""
        names = dict(zip(self.model.names, parameters, strict=True))
        return self.model.loss_at(names, inputs, targets, key, self.module)

    def _pieces(self, Y: Any) -> tuple[Any, ...]:
        """Views of the parameters of every row, in the dtype of the module."""
        kind, c = self.model.torch_dtype, Y.shape[:-1]
        return tuple(Y[..., lo:hi].view(*c, *shape).to(kind) for lo, hi, shape in self.spans)

    def batch(self, members: Any, rows: Any, word: Any) -> Any:
        """Inputs, targets and the keys of dropout."""
        # networks have no weights by which repeated rows could be left out, so that sizes must agree
        if rows is None and not self.equal and int(self.counts[members].min()) < int(self.counts[members].max()):
            raise AssertionError("clients of different sizes need different calls")
        if rows is None:
            rows = torch.arange(int(self.counts[members[0]]), device=self.first.device).expand(len(members), -1)
        picks = self.first[members][:, None] + rows
        keys = masks_of(word, members) if self.is_random and word is not None else None
        return self.X[picks], self.T[picks], keys

    def keyed(self, batch: Any, members: Any, word: Any) -> Any:
        """The same rows with other masks."""
        return (*batch[:2], masks_of(word, members))

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        """By parameters, in a new stack."""
        G = torch.zeros_like(Y)
        inputs, targets, keys = batch
        # without keys a module with dropout is evaluated without it, as for full gradients
        call = self.slopes if keys is not None or not self.is_random else vmap(grad(self._loss), (0, 0, 0, None))
        for (lo, hi, _), g in zip(self.spans, _batched(call, self._pieces(Y), inputs, targets, keys), strict=True):
            G[:, lo:hi] = g.reshape(len(Y), -1)
        # the gaps of Y are zero, so that they stay so
        return G.add_(Y, alpha=self.l2) if self.l2 else G

    def descend(self, Y: Any, H: Any, gamma: Any, batch: Any) -> None:
        """By parameters, in place: no stack of gradients is put together."""
        one = isinstance(gamma, float)
        slopes = _batched(self.slopes, self._pieces(Y), *batch)
        # y <- (1 - gamma l2) y - gamma (g - h);  the gradients at the old y are taken already
        if self.l2:
            Y.mul_(1.0 - gamma * self.l2)
        for (lo, hi, _), g in zip(self.spans, slopes, strict=True):
            part, g = Y[:, lo:hi], g.reshape(len(Y), -1)
            if one:
                part.sub_(g, alpha=gamma)
            else:
                part.addcmul_(g.to(Y.dtype), gamma.expand(len(Y), 1), value=-1.0)
        if H is not None:
            Y.add_(H, alpha=gamma) if one else Y.addcmul_(H, gamma.expand(len(Y), 1))

    def losses_at(self, x: Any, members: Any, rows: Any) -> Any:
        """The losses of these clients at one x, on these rows and without dropout."""
        inputs, targets, _ = self.batch(members, rows, None)
        return _batched(self.losses, self._pieces(x), inputs, targets, None)


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


def _moved(model: Model, device: torch.device) -> Any:
    """A copy of the module on the device; the user's own stays where it is."""
    return model.module_at(model.start()).to(device)


class LinearModels(_Rows, _Plain):
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
        picks = self.picks(members, rows)
        if rows is None:
            # the rows that were repeated have the weight zero
            own = torch.arange(self.most, device=picks.device) < self.counts[members][:, None]
            weights = self.s[picks] * own
        else:
            # N s_j over the size of the minibatch: its mean is then unbiased for any row weights
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


class Quadratics(_Plain):
    """x' H x / 2 - b' x."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        models: list[Any] = list(problem.clients)
        self.H, self.b = (torch.as_tensor(np.stack([v(f) for f in models])).to(device) for v in (_hessian, _linear))
        self.dtype, self.D = torch.float64, problem.d
        self.sizes, self.equal = np.ones(len(models), dtype=np.int64), True

    def batch(self, members: Any, rows: Any, word: Any) -> Any:
        """The matrices and vectors of these clients."""
        return self.H[members], self.b[members]

    def gradient(self, Y: Any, batch: Any) -> torch.Tensor:
        """H y - b."""
        H, b = batch
        # matrices that are diagonal are stored as their diagonals
        return (H * Y if H.ndim == 2 else (H @ Y[:, :, None])[:, :, 0]) - b


def _hessian(f: Quadratic) -> Array:
    return f.H


def _linear(f: Quadratic) -> Array:
    return f.b


def groups(members: Indices, sizes: Indices, most: int, apart: bool) -> list[Indices]:
    """The places of the members in calls of at most ``most``; with ``apart``, of equal sizes."""
    if not apart:
        return [np.arange(lo, min(lo + most, len(members))) for lo in range(0, len(members), most)]
    found = []
    for size in np.unique(sizes[members]):
        mine = np.flatnonzero(sizes[members] == size)
        found += [mine[lo : lo + most] for lo in range(0, len(mine), most)]
    return found
