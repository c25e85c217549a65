"""A cohort on the torch engine: all its members as one client."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxskip.codecs import Codec, Identity
from proxskip.core.engine import Request
from proxskip.engines.stack_client import StackClient
from proxskip.engines.torch.stacked_steps import minibatches, repeatable
from proxskip.types import Column, Counts, Flags, Indices


class DeviceCohort(StackClient):
    """The members of a cohort, or a share of them, on PyTorch's stacks."""

    def __init__(self, engine: Any, members: Indices, request: Request, place: int) -> None:
        super().__init__(members, request, engine.seed, engine.family.sizes[members], engine.problem.batch, place=place)
        self.engine = engine
        # dtype and device for plain numbers
        self.like = engine.zero

    def send(self, v: Any, codec: Codec | None = None) -> Any:
        if codec is None or isinstance(codec, Identity):
            return super().send(v)
        # codecs work on numpy rows: fetch, encode and decode, and move back
        sent = self.engine.place(super().send(self.engine.fetch(self.stack(v)), codec))
        self._sent = (*self._sent[:-1], (sent, self._sent[-1][1]))
        return sent

    def own(self, values: Any) -> Any:
        if np.ndim(values) == 0:
            return values
        mine = np.asarray(values)[self.members]
        return column(mine, self.like) if mine.ndim == 1 else self.engine.place(mine)

    def stack(self, v: Tensor | float) -> Tensor:
        """A ``(c, d)`` view of a stack, a vector or a number."""
        # ``expand`` repeats one entry without storing copies
        rows = v if isinstance(v, Tensor) else torch.full((1, 1), float(v)).to(self.like)
        return rows.expand(len(self.members), self.engine.problem.d)

    def where(self, which: Flags, a: Tensor, b: Tensor) -> Tensor:
        mask = torch.as_tensor(np.array(which)).to(self.like.device)[:, None]
        return torch.where(mask, a, b)

    def fetch(self, v: Any) -> Any:
        return self.engine.fetch(v)

    # -- gradients -----------------------------------------------------------------------------------------------------
    def estimates(self, x: Tensor, number: Counts, wanted: Flags) -> Tensor:
        rows = None
        if self.batch is not None:
            drawn = minibatches(
                self.seed, self.request.round, self.members, number, self.rows, self.batch, 1, self.like.device
            )
            rows = drawn[0]
        # minibatches are numbered from zero, dropout words from one
        return self._gradient(self.stack(x), rows, number + 1)

    def full_gradients(self, x: Tensor, wanted: Flags) -> Tensor:
        return self._gradient(self.stack(x), None, 0)

    def _gradient(self, Y: Tensor, rows: Tensor | None, step: Counts) -> Tensor:
        """Full gradients if ``rows`` is None and ``step`` is 0; otherwise those of a local step.

        Those of all members are computed, so that the stack keeps its shape.
        """
        engine, G = self.engine, torch.empty_like(Y, memory_format=torch.contiguous_format)
        word = engine.word(self.request.round, step)

        def compute(group: slice) -> None:
            members = torch.as_tensor(self.members[group]).to(Y.device)
            picked = None if rows is None else rows[group]
            with repeatable():
                batch = engine.family.batch(members, picked, word)
                G[group] = engine.family.stack(engine.family.gradient(engine.family.parts(Y[group]), batch))

        engine.each_group(self, compute)
        return G

    # -- local steps ---------------------------------------------------------------------------------------------------
    def descend(self, x: Any, h: Any, gamma: Any, K: Any, **options: Any) -> Any:
        gamma = gamma if isinstance(gamma, Tensor) else float(gamma)
        return super().descend(x, h, gamma, K, **options)

    def has_plain_steps(self, K: Counts, pull: float) -> bool:
        # plain steps can use CUDA graphs, which are for one number of steps
        return pull == 0.0 and np.ndim(K) == 0 and np.ndim(self.step) == 0

    def plain_steps(self, x: Tensor, h: Tensor | float, gamma: Column, K: Counts, first: Counts, pull: float) -> Tensor:
        engine, X = self.engine, self.stack(x)
        H = None if isinstance(h, (int, float)) and h == 0 else self.stack(h)
        Y = torch.empty_like(X, memory_format=torch.contiguous_format)

        def compute(group: slice) -> None:
            own = gamma[group] if isinstance(gamma, Tensor) and len(gamma) > 1 else gamma
            h = None if H is None else H[group]
            Y[group] = engine.steps.run(
                X[group], h, own, int(K), self.members[group], self.request.round, int(first), self.request.halt
            )

        engine.each_group(self, compute)
        return Y


def column(values: Any, like: Tensor) -> Tensor | float:
    """One number per client as a ``(c, 1)`` tensor; a single number stays one."""
    if np.ndim(values) == 0:
        return float(values)
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).to(like).reshape(-1, 1)
