"""The functions of many clients as one: gradients of all at once, for networks, linear models and quadratics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.func import vmap

from proxskip.problems.federated import Problem
from proxskip.problems.glm import Softmax
from proxskip.problems.linear_model import LinearModel
from proxskip.problems.oracles import rows_of
from proxskip.problems.quadratic import Quadratic
from proxskip.problems.torch_model import Model, Rows, Tensors, masks_of, picked, same_bytes
from proxskip.types import Array, Indices, InputError

CONVOLVE_BY_PRODUCTS = {"cpu"}
"""Devices on which convolutions are matrix products; GPUs are faster with grouped convolutions."""
LARGEST_DENSE = 1 << 33
"""The most bytes of sparse data once made dense."""


Parts = list[Tensor]


class Family:
    """The functions of many clients, all of one kind.

    Vectors of c clients are ``(c, d)`` stacks. Local steps work on their *parts*: one ``(c, ...)`` tensor per parameter
    of a network, and the stack itself for other functions. ``dtype`` is that of the memory, ``sizes`` the rows of each
    client.
    """

    dtype: torch.dtype
    is_random = False

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.sizes = np.array([rows_of(f) for f in problem.clients], dtype=np.int64)
        # all rows lie end to end: the first row of each client, and their number
        self.first = torch.as_tensor(np.append(0, np.cumsum(self.sizes))[:-1]).to(device)
        self.counts = torch.as_tensor(self.sizes).to(device)
        self.smallest = int(self.sizes.min())

    def batch(self, members: Tensor, rows: Tensor | None, word: Tensor | None) -> Any:
        """The data of these clients for ``gradient``: the given rows of each, or all if None."""
        raise NotImplementedError

    def gradient(self, parts: Parts, batch: Any) -> Parts:
        """The gradients of all clients, as parts."""
        raise NotImplementedError

    def descend(self, parts: Parts, H: Parts | None, gamma: Tensor | float, batch: Any) -> None:
        """One step of every client in place,  y <- y - gamma (g(y) - h);  H is None for h = 0."""
        gradients = self.gradient(parts, batch)
        for y, g, h in zip(parts, gradients, H or [None] * len(parts), strict=True):
            if isinstance(gamma, float):
                y.add_(g, alpha=-gamma)
                if h is not None:
                    y.add_(h, alpha=gamma)
            else:
                y.sub_(gamma.view(-1, *[1] * (y.ndim - 1)) * (g if h is None else g - h))

    def views(self, Y: Tensor) -> Parts:
        """The parts of a stack as views."""
        return [Y]

    def parts(self, Y: Tensor) -> Parts:
        """The parts of a stack as new contiguous tensors."""
        return [v.clone(memory_format=torch.contiguous_format) for v in self.views(Y)]

    def stack(self, parts: Parts) -> Tensor:
        """The stack with these parts."""
        return torch.cat([v.reshape(len(v), -1) for v in parts], dim=1)


def family_of(problem: Problem, device: torch.device) -> Family:
    """The clients as a family; refused if they are not of one kind."""
    first = problem.clients[0]
    if all(isinstance(f, Model) for f in problem.clients):
        return Networks(problem, device)
    has_kernels = isinstance(first, LinearModel) and first.has_kernels
    if has_kernels and all(type(f) is type(first) and f.has_rows for f in problem.clients):  # type: ignore[attr-defined]
        return LinearModels(problem, device)
    if all(isinstance(f, Quadratic) and f.H.ndim == first.H.ndim for f in problem.clients):  # type: ignore[attr-defined]
        return Quadratics(problem, device)
    kinds = sorted({type(f).__name__ for f in problem.clients})
    raise InputError(
        "the torch engine needs clients that are all proxskip.torch.Model, all linear models or all quadratics, and "
        f'these are {", ".join(kinds)}; use engine="cpu".'
    )


class Portion(NamedTuple):
    """The data of some clients: their places among all, a stack of rows for each, and their dropout keys."""

    places: Tensor | slice
    rows: Rows
    keys: Tensor | None


def portions(batch: list[Portion], most: int) -> list[Portion]:
    """The same data in portions of at most this many clients."""
    pieces = []
    for places, rows, keys in batch:
        count = len(next(iter(rows.values())))
        for lo in range(0, count, most):
            s = slice(lo, min(lo + most, count))
            at = s if isinstance(places, slice) else places[s]
            pieces.append(Portion(at, picked(rows, s), None if keys is None else keys[s]))
    return pieces


class Networks(Family):
    """Modules of one architecture; ``vmap`` over their stacked parameters."""

    def __init__(self, problem: Problem, device: torch.device, one_by_one: bool = False) -> None:
        """``one_by_one``: compute what PyTorch cannot batch one client after another, in place of refusing it."""
        super().__init__(problem, device)
        models: list[Any] = list(problem.clients)
        self.model = first = models[0]
        self.apart = False
        for i, f in enumerate(models):
            alike = (f.names, f.shapes, f.torch_dtype, f.l2) == (first.names, first.shapes, first.torch_dtype, first.l2)
            if not (alike and type(f.module) is type(first.module) and f.loss is first.loss):
                raise InputError(
                    f"client {i} has a different module, loss or l2 from client 0; share one module, loss object and "
                    'l2, or use engine="cpu".'
                )
            if _shapes(f.rows) != _shapes(first.rows):
                raise InputError(
                    f"client {i} has rows of {_shapes(f.rows)} and client 0 of {_shapes(first.rows)}; make them alike."
                )
            if f.module is not first.module and not _same(f.constants, first.constants):
                raise InputError(
                    f"client {i} has other buffers or frozen parameters than client 0; share one module, or use "
                    'engine="cpu".'
                )
        # on another device use a copy
        self.module = first.module if first.device == device else first.module_at(first.start()).to(device)
        self.quiet = self.module
        """The module where it is evaluated: with buffers that move, a copy in eval mode."""
        if first.moving:
            self.quiet = copy.deepcopy(self.module).eval()
        self.data = {name: torch.cat([f.rows[name].to(device) for f in models]) for name in first.rows}
        # half precision is for the module only: memory would lose small steps
        self.dtype = torch.float64 if first.torch_dtype == torch.float64 else torch.float32
        self.is_random, self.l2 = first.is_random, first.l2
        self.by_products = device.type in CONVOLVE_BY_PRODUCTS
        self.numels = [shape.numel() for shape in first.shapes]
        self.transposed = [False] * len(self.numels)
        # autograd returns the gradient of a linear layer's matrix transposed, and a step on parts that lie in memory as
        # their gradients do is several times faster
        start, row = torch.as_tensor(first.start())[None], torch.zeros((1, 2), dtype=torch.int64, device=device)
        y, batch = self.parts(start.to(device, self.dtype)), self.batch(row[0, :1], row, None)
        buffers = [v.clone()[None] for v in self.buffers()]
        try:
            slopes = self.gradient(y, batch, buffers)
        except InputError:
            if not one_by_one:
                raise
            self.apart = True
            slopes = self.gradient(y, batch, buffers)
        self.transposed = [g.ndim == 3 and not g.is_contiguous() for g in slopes]

    def views(self, Y: Tensor) -> Parts:
        pieces = zip(Y.split(self.numels, dim=-1), self.model.shapes, strict=True)
        return [v.reshape((*Y.shape[:-1], *shape)) for v, shape in pieces]

    def parts(self, Y: Tensor) -> Parts:
        """Each in the layout of its gradient."""
        new = partial(torch.clone, memory_format=torch.contiguous_format)
        return [new(v.mT).mT if turn else new(v) for v, turn in zip(self.views(Y), self.transposed, strict=True)]

    def buffers(self) -> Parts:
        """The module's buffers that move."""
        return [self.module.get_buffer(name) for name in self.model.moving]

    def tensors(self, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> Tensors:
        """The parameters and moving buffers of one client by their names."""
        named = {k: v.to(self.model.torch_dtype) for k, v in zip(self.model.names, parameters, strict=True)}
        return named | dict(zip(self.model.moving, buffers, strict=True))

    def _loss(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], rows: Rows, key: Tensor | None,
        module: torch.nn.Module, by_products: bool,
    ) -> Tensor:  # fmt: skip
        return self.model.loss_at(self.tensors(parameters, buffers), rows, key, module, by_products)

    def _losses(
        self, at: Sequence[Tensor], own: int | None, buffers: Sequence[Tensor], portion: Portion,
        module: torch.nn.Module, by_products: bool,
    ) -> Tensor:  # fmt: skip
        """The loss of each client, at its own parameters (``own`` is 0) or at those of all (``own`` is None)."""
        _, rows, keys = portion
        if not self.apart:
            # one dropout key per client; none for full gradients
            in_dims = (own, 0, 0, None if keys is None else 0)
            losses = vmap(partial(self._loss, module=module, by_products=by_products), in_dims)
            return _batched(losses, tuple(at), tuple(buffers), rows, keys)
        each = []
        for i in range(len(next(iter(rows.values())))):
            mine = at if own is None else [v[i] for v in at]
            key = None if keys is None else keys[i]
            each.append(self._loss(mine, [v[i] for v in buffers], picked(rows, i), key, module, by_products))
        return torch.stack(each)

    def batch(self, members: Tensor, rows: Tensor | None, word: Tensor | None) -> list[Portion]:
        """Portions of clients with equally many rows."""
        places: list[Tensor | slice] = [slice(0, len(members))]
        if rows is None or self.smallest < rows.shape[1]:
            sizes = self.sizes[members.cpu().numpy()]
            alike = groups(sizes if rows is None else np.minimum(sizes, rows.shape[1]), len(members))
            places = places if len(alike) == 1 else [torch.as_tensor(g).to(members.device) for g in alike]
        return self.keyed([self._portion(at, members, rows) for at in places], members, word)

    def _portion(self, places: Tensor | slice, members: Tensor, rows: Tensor | None) -> Portion:
        mine = members[places]
        count = int(self.counts[mine[0]]) if rows is None or self.smallest < rows.shape[1] else rows.shape[1]
        if rows is None:
            rows = torch.arange(count, device=members.device).expand(len(mine), -1)
        else:  # a client with fewer rows than the minibatch has takes all of its own
            rows = rows[places][:, :count]
        picks = (self.first[mine][:, None] + rows).reshape(-1)
        c = len(mine)
        some = {name: v.index_select(0, picks).view(c, -1, *v.shape[1:]) for name, v in self.data.items()}
        return Portion(places, some, None)

    def keyed(self, batch: list[Portion], members: Tensor, word: Tensor | None) -> list[Portion]:
        """The same rows with the masks of this dropout word."""
        if word is None or not self.is_random:
            return batch
        return [g._replace(keys=masks_of(word, members[g.places])) for g in batch]

    def gradient(self, parts: Parts, batch: list[Portion], buffers: Sequence[Tensor] = ()) -> Parts:
        """Args:
        buffers: the moving buffers of each client, which a training step changes in place.
        """
        if len(batch) == 1:
            return self._gradient(parts, buffers, batch[0])
        G = [torch.empty_like(y) for y in parts]
        for portion in batch:
            mine = [v[portion.places] for v in buffers]
            for g, some in zip(G, self._gradient([y[portion.places] for y in parts], mine, portion), strict=True):
                g[portion.places] = some.to(g.dtype)
            for v, some in zip(buffers, mine, strict=True):
                v[portion.places] = some
        return G

    def _gradient(self, parts: Parts, buffers: Sequence[Tensor], portion: Portion) -> Parts:
        leaves = tuple(y.detach().requires_grad_() for y in parts)
        with torch.enable_grad():
            # each loss depends on its own client's parameters alone, so that the gradient of the sum holds all of them
            total = self._losses(leaves, 0, buffers, portion, self.module, self.by_products).sum()
        slopes = torch.autograd.grad(total, leaves, materialize_grads=True)
        return [g.add(y, alpha=self.l2) for g, y in zip(slopes, parts, strict=True)] if self.l2 else list(slopes)

    def losses_at(self, x: Tensor, members: Tensor, rows: Tensor, buffers: Sequence[Tensor] = ()) -> Tensor:
        """The losses of these clients at one x, on these rows and without dropout.

        Args:
            buffers: the moving buffers of each of them.
        """
        (portion,) = self.batch(members, rows, None)
        return self._losses(self.views(x), None, buffers, portion, self.quiet, by_products=False)


def _shapes(rows: Rows) -> str:
    """What the rows of a client look like."""
    kinds = (f"{name} {tuple(v.shape[1:])} {str(v.dtype).removeprefix('torch.')}" for name, v in rows.items())
    return ", ".join(kinds)


def _same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(same_bytes(v, b[name]) for name, v in a.items())


def _batched(call: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Make the call; a clear error if PyTorch cannot batch the module."""
    try:
        return call(*arguments)
    except RuntimeError as error:
        if not any(word in str(error) for word in ("Batching rule", "vmap", "data pointer")):
            raise
        reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise InputError(f'PyTorch cannot batch this module ({reason}); use proxskip.run with engine="cpu".') from error


class LinearModels(Family):
    """Logistic, least squares and softmax regression, in closed form."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        super().__init__(problem, device)
        models: list[Any] = list(problem.clients)
        first = models[0]
        kind = first.dtype
        if self.sizes.sum() * first.A.shape[1] * kind.itemsize > LARGEST_DENSE and scipy.sparse.issparse(first.A):
            raise InputError(
                'these sparse data are too large for the torch engine, which stores them densely; use engine="cpu".'
            )

        def joined(parts: Iterable[Array]) -> Tensor:
            return torch.as_tensor(np.concatenate([np.asarray(p, dtype=kind) for p in parts])).to(device)

        self.A = joined(f.A.toarray() if scipy.sparse.issparse(f.A) else f.A for f in models)
        self.b, self.s = joined(f.b for f in models), joined(f.s for f in models)
        self.factors = joined(np.broadcast_to(f.row_factors, (f.N,)) for f in models)
        self.reg = joined(f.reg[None] for f in models)
        self.loss, self.dtype = first.loss, self.A.dtype
        self.C = first.C if isinstance(first, Softmax) else 1

    def batch(self, members: Tensor, rows: Tensor | None, word: Tensor | None) -> Any:
        """Rows, labels, the weight of each row, and the regulariser."""
        if rows is None:
            # clients with fewer rows repeat their last one with weight zero
            places, counts = torch.arange(int(self.sizes.max()), device=members.device), self.counts[members][:, None]
            picks = self.first[members][:, None] + places.minimum(counts - 1)
            weights = self.s[picks] * (places < counts)
        else:
            # N s_j over the batch size makes the mean unbiased for any row weights
            picks = self.first[members][:, None] + rows
            weights = self.factors[picks] / rows.shape[1]
        return self.A[picks], self.b[picks], weights, self.reg[members]

    def gradient(self, parts: Parts, batch: Any) -> Parts:
        """A' (weights * slopes) + reg y."""
        (Y,), (A, b, weights, reg) = parts, batch
        c = len(Y)
        # margins (c, rows, C); the unknowns of a class are consecutive
        Z = A @ Y.view(c, self.C, -1).transpose(1, 2)
        if self.loss == "softmax":
            slopes = torch.softmax(Z, 2) - torch.nn.functional.one_hot(b.long(), self.C)
        elif self.loss == "squared":
            slopes = Z - b[:, :, None]
        else:
            slopes = -b[:, :, None] * torch.sigmoid(-b[:, :, None] * Z)
        G = (weights[:, :, None] * slopes).transpose(1, 2) @ A
        return [G.reshape(c, -1) + reg * Y]


class Quadratics(Family):
    """x' H x / 2 - b' x."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        super().__init__(problem, device)
        models: list[Any] = list(problem.clients)
        self.H, self.b = (
            torch.as_tensor(np.stack(v)).to(device) for v in zip(*((f.H, f.b) for f in models), strict=True)
        )
        self.dtype = torch.float64

    def batch(self, members: Tensor, rows: Tensor | None, word: Tensor | None) -> Any:
        return self.H[members], self.b[members]

    def gradient(self, parts: Parts, batch: Any) -> Parts:
        """H y - b."""
        (Y,), (H, b) = parts, batch
        # diagonal matrices are stored as vectors
        return [(H * Y if H.ndim == 2 else (H @ Y[:, :, None])[:, :, 0]) - b]


def groups(sizes: Indices, most: int) -> list[Indices]:
    """Groups of at most ``most`` clients with equally many rows."""
    places = (np.flatnonzero(sizes == size) for size in np.unique(sizes))
    return [some[lo : lo + most] for some in places for lo in range(0, len(some), most)]
