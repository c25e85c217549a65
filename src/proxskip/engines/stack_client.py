"""The members of a cohort as one client on stacks of vectors: local steps of every kind, made of three primitives.

Plain steps go to the engine as they are, which may have a kernel for all of them. Momentum, a pull, ``until`` and
anchors are spelled out here, for every engine, with the gradients of one step at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.codecs import Key
from proxskip.core.engine import Request, look
from proxskip.core.exchange import Anchor, Pull
from proxskip.engines.local import Sender, check_descent, key_of, pull_to_zero
from proxskip.support.randomness import anchor_coin
from proxskip.types import AnyArray, Array, Column, Counts, Flags, Indices, Stack


class StackClient(Sender):
    """The members of a cohort, or some of them, as one client.

    An engine defines ``plain_steps``, ``estimates``, ``full_gradients``, and how its arrays are made and chosen from.

    Args:
        members: their numbers in the engine's problem.
        request: what they are asked to do.
        seed: of the run.
        rows: the rows of each member.
        batch: rows of a minibatch; None for full gradients.
        number0: the number of the engine's first client among all.
        place: of the first member in the request's cohort.
    """

    def __init__(
        self, members: Indices, request: Request, seed: int, rows: Indices, batch: int | None, number0: int = 0,
        place: int = 0,
    ) -> None:  # fmt: skip
        self.members = members
        self.request = request
        self.seed = seed
        self.place = place
        self.rows = rows
        self.batch = batch
        self.number0 = number0

    # -- what an engine defines ----------------------------------------------------------------------------------------
    @abstractmethod
    def plain_steps(self, x: Stack, h: Stack, gamma: Column, K: Counts, first: Counts, pull: float) -> Stack:
        """K times  x <- x - gamma (g(x) - h + pull x),  with minibatches numbered from ``first`` on, as a new stack."""

    @abstractmethod
    def estimates(self, x: Stack, number: Counts, wanted: Flags) -> Stack:
        """The gradients of the local step of this number, where they are wanted; anything elsewhere."""

    @abstractmethod
    def full_gradients(self, x: Stack, wanted: Flags) -> Stack:
        """The full gradients, where they are wanted; anything elsewhere."""

    @abstractmethod
    def stack(self, v: Stack) -> Stack:
        """v with a row for each member."""

    @abstractmethod
    def where(self, which: Flags, a: Stack, b: Stack) -> Stack:
        """The rows of a for the members that ``which`` names, those of b for the others."""

    def has_plain_steps(self, K: Counts, pull: float) -> bool:
        """Whether ``plain_steps`` takes these."""
        return True

    def fetch(self, v: Stack) -> AnyArray:
        """An array of the engine as one of numpy."""
        return np.asarray(v)

    # -- the client ----------------------------------------------------------------------------------------------------
    def keys(self, vector: int) -> Sequence[Key]:
        return [
            key_of(self.request, self.seed, self.number0 + int(i), self.place + j, vector)
            for j, i in enumerate(self.members)
        ]

    def descend(
        self,
        x: Stack,
        h: Stack,
        gamma: Column,
        K: Counts,
        *,
        pull: Pull | None = None,
        momentum: Column = 0.0,
        anchor: Anchor | None = None,
        until: Column | None = None,
    ) -> Any:
        has_momentum = np.ndim(momentum) > 0 or bool(momentum != 0.0)
        check_descent(self.request, K, pull, has_momentum, anchor, until)
        steps = np.broadcast_to(np.asarray(K, dtype=np.int64), (len(self.members),))
        if anchor is not None:
            return self.anchored_steps(x, h, gamma, steps, anchor)
        strength = pull_to_zero(pull)
        if has_momentum or strength is None or until is not None or not self.has_plain_steps(K, strength):
            return self._guided_steps(self.stack(x), h, gamma, steps, pull, momentum, until)
        first = self.step
        self.step = first + K
        self.gradients += self._rows_of(steps)
        return self.plain_steps(x, h, gamma, K, first, strength)

    def gradient(self, x: Stack, where: Column | None = None) -> Stack:
        wanted = np.ones(len(self.members), dtype=np.bool_)
        if where is not None:
            wanted = np.broadcast_to(np.ravel(self.fetch(where)) != 0, wanted.shape)
        self.gradients += int(self.rows[wanted].sum())
        gradients = self.full_gradients(self.stack(x), wanted)
        return gradients if wanted.all() else self.where(wanted, gradients, 0.0)

    # -- steps that no kernel takes ------------------------------------------------------------------------------------
    def _guided_steps(
        self, x: Stack, h: Stack, gamma: Column, K: Indices, pull: Pull | None, momentum: Column, until: Column | None
    ) -> Any:
        """Steps with momentum, a pull or a criterion; a member whose steps are over stays where it is."""
        y = before = x
        active, taken = K > 0, np.zeros(len(K), dtype=np.int64)
        while active.any():
            look(self.request.halt)
            z = y + momentum * (y - before)
            slope = self._next_estimates(z, active) - h
            if pull is not None:
                slope = slope + pull[0] * (z - pull[1])
            new = z - gamma * slope
            taken = taken + active
            going = active & (taken < K)
            if until is not None and pull is not None:
                ends = active & self._is_short(slope, until, z - pull[1])
                new = self._chosen(ends, z, new)
                going = going & ~ends
            before, y = self._chosen(active, y, before), self._chosen(active, new, y)
            active = going
        if until is None:
            return y
        self.had_criterion = True
        self.step = np.broadcast_to(self.step, taken.shape)
        return y, taken[:, None]

    def _is_short(self, slope: Stack, until: Column, way: Stack) -> Flags:
        """Whether  |slope| <= until |way|,  for each member."""
        short, far = ((v * v).sum(-1)[:, None] ** 0.5 for v in (slope, way))
        return np.asarray(self.fetch(short <= until * far)[:, 0] != 0)

    def anchored_steps(self, x: Stack, h: Stack, gamma: Column, K: Indices, anchor: Anchor) -> tuple[Stack, ...]:
        """Steps with L-SVRG's estimator: unbiased, and exact at the solution once the anchor is there."""
        w, gw = self.stack(anchor[0]), self.stack(anchor[1])
        q = np.broadcast_to(np.ravel(self.fetch(anchor[2])), K.shape)
        x = self.stack(x)
        for k in range(int(K.max(initial=0))):
            look(self.request.halt)
            active, number = k < K, self.step
            moves = active & (self._coins() < q)
            if self.batch is None:  # both minibatches are all rows, and cancel: the slope is the full gradient
                slope = self.full_gradients(x, active)
                self._count_step(active)
            else:
                slope = self._next_estimates(x, active) - self.estimates(w, number, active) + gw
                self.gradients += self._rows_of(active)
            if moves.any():
                full = slope
                if self.batch is not None:
                    full = self.full_gradients(x, moves)
                    self.gradients += int(self.rows[moves].sum())
                w, gw = self._chosen(moves, x, w), self._chosen(moves, full, gw)
            x = self._chosen(active, x - gamma * (slope - h), x)
        return x, w, gw

    def _next_estimates(self, x: Stack, active: Flags) -> Stack:
        """The gradients of the next local step of the active members, counted."""
        number = self.step
        self._count_step(active)
        return self.estimates(x, number, active)

    def _count_step(self, active: Flags) -> None:
        self.step = self.step + (1 if active.all() else active.astype(np.int64))
        self.gradients += self._rows_of(active)

    def _rows_of(self, steps: Indices | Flags) -> int:
        """The rows that so many steps of each member differentiate."""
        return int(np.sum(steps * (self.batch or self.rows)))

    def _coins(self) -> Array:
        """The coins of the next step, one for each member."""
        numbers = np.broadcast_to(self.step, self.members.shape).tolist()
        clients = (self.number0 + self.members).tolist()
        round = self.request.round
        return np.array([anchor_coin(self.seed, i, round, k) for i, k in zip(clients, numbers, strict=True)])

    def _chosen(self, which: Flags, a: Stack, b: Stack) -> Stack:
        return a if which.all() else self.where(which, a, b)
