"""A cohort on the torch engine: all its members as one client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from proxskip.engines.local import Sender, check_descent, key_of
from proxskip.engines.torch.stacked_steps import minibatches, repeatable
from proxskip.interfaces import Anchor, Pull, Request, look
from proxskip.links.codecs import Codec, Identity, Key
from proxskip.randomness import anchor_coin
from proxskip.types import Indices


class DeviceCohort(Sender):
    """The members of a cohort, or a share of them, with ``(c, d)`` stacks."""

    def __init__(self, engine: Any, members: Indices, request: Request, place: int) -> None:
        self.engine, self.members, self.request, self.place = engine, members, request, place
        # dtype and device for plain numbers
        self.like = engine.zero

    def keys(self, vector: int) -> Sequence[Key]:
        seed, first = self.engine.seed, self.place
        return [key_of(self.request, seed, int(i), first + j, vector) for j, i in enumerate(self.members)]

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

    def stack(self, v: Any) -> torch.Tensor:
        """A ``(c, d)`` view of a stack, a vector or a number."""
        # ``expand`` repeats one entry without storing copies
        rows = v if isinstance(v, torch.Tensor) else torch.full((1, 1), float(v)).to(self.like)
        return rows.expand(len(self.members), self.engine.problem.d)

    # -- gradients -----------------------------------------------------------------------------------------------------
    def gradient(self, x: Any, where: Any = None) -> Any:
        # compute the whole stack to keep its shape, but count only the wanted members
        G = self._gradient(self.stack(x), None, 0)
        rows = self.engine.family.sizes[self.members]
        if where is None:
            self.gradients += int(rows.sum())
            return G
        wanted = where.reshape(-1) != 0 if isinstance(where, torch.Tensor) else torch.full((len(G),), bool(where))
        self.gradients += int(rows[wanted.cpu().numpy()].sum())
        return torch.where(wanted.to(G.device)[:, None], G, 0.0)

    def _gradient(self, Y: Any, rows: Any, step: Any) -> torch.Tensor:
        """Full gradients if ``rows`` is None and ``step`` is 0; otherwise those of a local step."""
        engine, G = self.engine, torch.empty_like(Y)
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
    def descend(
        self,
        x: Any,
        h: Any,
        gamma: Any,
        K: Any,
        *,
        pull: Pull | None = None,
        momentum: Any = 0.0,
        anchor: Anchor | None = None,
        until: Any = None,
    ) -> Any:
        engine, c = self.engine, len(self.members)
        gamma = gamma if isinstance(gamma, torch.Tensor) else float(gamma)
        plain = pull is None and anchor is None and until is None and isinstance(momentum, (int, float))
        # plain steps can use CUDA graphs; all others take the loops below
        if plain and not momentum and np.ndim(K) == 0 and np.ndim(self.step) == 0:
            rows = engine.problem.batch or engine.family.sizes[self.members]
            self.gradients += int(K) * int(np.sum(np.broadcast_to(rows, (c,))))
            Y = self._plain(x, h, gamma, int(K))
            self.step += int(K)
            return Y
        check_descent(pull, None if isinstance(momentum, torch.Tensor) else momentum, anchor, until)
        steps = np.broadcast_to(np.asarray(K, dtype=np.int64), (c,))
        if anchor is not None:
            return self._anchored(self.stack(x), self.stack(h), gamma, steps, anchor)
        y, taken = self._guided(self.stack(x), self.stack(h), gamma, steps, pull, momentum, until)
        return y if until is None else (y, taken)

    def _plain(self, x: torch.Tensor, h: Any, gamma: Any, K: int) -> torch.Tensor:
        """K plain steps from x, as a new stack."""
        engine, X = self.engine, self.stack(x)
        H = None if isinstance(h, (int, float)) and h == 0 else self.stack(h)
        Y = torch.empty_like(X, memory_format=torch.contiguous_format)

        def compute(group: slice) -> None:
            own = gamma[group] if isinstance(gamma, torch.Tensor) and len(gamma) > 1 else gamma
            h = None if H is None else H[group]
            Y[group] = engine.steps.run(
                X[group], h, own, K, self.members[group], self.request.round, self.step, self.request.halt
            )

        engine.each_group(self, compute)
        return Y

    def _guided(self, x: Any, h: Any, gamma: Any, K: Indices, pull: Any, momentum: Any, until: Any) -> Any:
        """Steps with momentum, a pull or a criterion; a member whose steps are over stays where it is."""
        tau = None if pull is None else pull[0]
        centre = None if pull is None else self.stack(pull[1])
        self.had_criterion = self.had_criterion or until is not None
        active, taken = K > 0, np.zeros(len(K), dtype=np.int64)
        y = before = x
        for k in range(int(K.max(initial=0))):
            look(self.request.halt)
            z = y + momentum * (y - before)
            slope = self._estimate(z, active) - h
            taken += active
            if centre is not None:
                slope = slope + tau * (z - centre)
            # compute all members to keep the stack's shape, and mask those whose steps are over
            on = self._mask(active)
            new = torch.where(on, z - gamma * slope, y)
            going = k + 1 < K
            if until is not None:
                # if the criterion holds, the result is z
                small = (slope.norm(dim=1, keepdim=True) <= until * (z - centre).norm(dim=1, keepdim=True))[:, 0]
                new = torch.where(on & small[:, None], z, new)
                going = going & active & ~small.cpu().numpy()
            before, y, active = torch.where(on, y, before), new, going
            if not active.any():
                break
        return y, taken[:, None]

    def _estimate(self, z: Any, active: Any) -> torch.Tensor:
        """Gradients of the next minibatches; only active members are counted and advance."""
        batch, rows = self.engine.problem.batch, self._rows()
        self.gradients += int(np.sum(active * (batch or self.engine.family.sizes[self.members])))
        # minibatches are numbered from zero, dropout words from one, so the rows were drawn before
        self._advance(active)
        return self._gradient(z, rows, self.step)

    def _advance(self, active: Any) -> None:
        self.step = self.step + 1 if np.all(active) else self.step + active.astype(np.int64)

    def _rows(self) -> Any:
        if self.engine.problem.batch is None:
            return None
        sizes = self.engine.family.sizes[self.members]
        return minibatches(
            self.engine.seed, self.request.round, self.members, self.step, sizes, self.engine.problem.batch, 1,
            self.like.device,
        )[0]  # fmt: skip

    def _anchored(self, x: Any, h: Any, gamma: Any, K: Indices, anchor: Anchor) -> Any:
        """L-SVRG's estimator, with the coins of the reference engine."""
        batch, sizes = self.engine.problem.batch, self.engine.family.sizes[self.members]
        (w, gw), moves = (self.stack(v) for v in anchor[:2]), torch.as_tensor(anchor[2]).cpu().numpy()
        # one probability, or one per member
        q = np.broadcast_to(np.ravel(moves), (len(K),))
        for k in range(int(K.max(initial=0))):
            look(self.request.halt)
            active, numbers, rows = k < K, np.broadcast_to(self.step, (len(K),)), self._rows()
            self._advance(active)
            if batch is None:
                # a full gradient needs no correction, and also serves a moving anchor
                g = full = self._gradient(x, None, 0)
                self.gradients += int(np.sum(active * sizes))
            else:
                # the same rows at both points, so that the noise cancels as w approaches x
                g = self._gradient(x, rows, self.step) - self._gradient(w, rows, self.step) + gw
                self.gradients += 2 * batch * int(active.sum())
            coins = [
                anchor_coin(self.engine.seed, int(i), self.request.round, int(s))
                for i, s in zip(self.members, numbers, strict=True)
            ]
            moved = active & (np.array(coins) < q)
            if moved.any():
                if batch is not None:
                    full = self._gradient(x, None, 0)
                    self.gradients += int(sizes[moved].sum())
                # the anchor moves to this step's starting point, as on the reference engine
                w, gw = (torch.where(self._mask(moved), a, b) for a, b in ((x, w), (full, gw)))
            x = torch.where(self._mask(active), x - gamma * (g - h), x)
        return x, w, gw

    def _mask(self, which: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(which)).to(self.like.device)[:, None]


def column(values: Any, like: torch.Tensor) -> Any:
    """One number per client as a ``(c, 1)`` tensor; a single number stays one."""
    if np.ndim(values) == 0:
        return float(values)
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).to(like).reshape(-1, 1)
