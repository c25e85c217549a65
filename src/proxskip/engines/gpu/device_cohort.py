"""A cohort on the GPU: all its members as one client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from proxskip.codecs import Codec, Key
from proxskip.core.engine import Request
from proxskip.core.exchange import Pull
from proxskip.engines.gpu.launch import many
from proxskip.engines.local import Sender, key_of, momentum_steps, pull_to_zero
from proxskip.types import Column, Indices, InputError, Stack


class CardCohort(Sender):
    """A whole cohort as one client: every vector is a CuPy array, ``(c, d)``, or ``(d,)`` for all members."""

    def __init__(self, engine: Any, members: Indices, request: Request) -> None:
        self.engine = engine
        self.members = members
        self.request = request
        self.own_columns = {k: engine.cupy.asarray(v)[:, None] for k, v in request.own.items()}

    def keys(self, vector: int) -> Sequence[Key]:
        return [key_of(self.request, self.engine.seed, int(i), j, vector) for j, i in enumerate(self.members)]

    def descend(
        self,
        x: Stack,
        h: Stack,
        gamma: Column,
        K: int | Indices,
        *,
        pull: Pull | None = None,
        momentum: Column = 0.0,
        **more: object,
    ) -> Stack:
        """With momentum, or a pull to anything but zero, there is one launch per step."""
        _only_plain_steps(more)
        if not many(momentum) and not momentum and (strength := pull_to_zero(pull)) is not None:
            return self._plain_steps(x, h, gamma, K, strength)
        if many(K):
            raise InputError('the gpu engine needs one K for all clients with momentum or a pull; use engine="cpu".')

        def one_step(z: Stack, shift: Stack, gamma: Column, active: Indices) -> Stack:
            return self._plain_steps(z, shift, gamma, 1)

        return pulled_steps(one_step, x, h, gamma, K, pull, momentum)

    def _plain_steps(self, x: Stack, h: Stack, gamma: Column, K: int | Indices, pull: float = 0.0) -> Stack:
        """K times  x <- x - gamma (g(x) - h + pull x)."""
        engine, request = self.engine, self.request
        self.gradients += self._rows_taken(K)
        step0, self.step = self.step, self.step + (np.asarray(K) if many(K) else K)
        if not many(h):
            h = engine.cupy.full(engine.problem.d, float(h)) if h else None
        return engine.steps.descend(
            len(self.members), engine.dense(x), None if h is None else engine.dense(h), gamma, K,
            members=engine.numbers(self.members), seed=engine.seed, round=request.round, step0=_one_number(step0),
            pull=pull, halt=request.halt,
        )  # fmt: skip

    def _rows_taken(self, K: int | Indices) -> int:
        """Rows that K steps (a number, or one per member) differentiate."""
        rows = self.engine.problem.batch or self.engine.rows[self.members]
        return int(np.sum(np.broadcast_to(K, len(self.members)) * rows))

    def gradient(self, x: Stack, where: Column | None = None) -> Stack:
        """The members' full gradients, one row each; zeros where none is wanted."""
        engine, count = self.engine, len(self.members)
        members = engine.numbers(self.members)
        if where is None:
            self.gradients += self._rows_taken_by(np.ones(count, np.int64))
            return engine.steps.gradient(count, engine.dense(x), 1, members=members)
        wanted = self._zeros_and_ones(where)
        self.gradients += self._rows_taken_by(wanted)
        gradients = engine.steps.gradient(count, engine.dense(x), wanted, members=members)
        # the kernel takes no step for a member that wants none, and leaves its x
        return engine.cupy.where(engine.place(wanted)[:, None] != 0, gradients, 0.0)

    def _rows_taken_by(self, wanted: Indices) -> int:
        """Rows of the members whose full gradient is wanted."""
        return int(np.sum(wanted * self.engine.rows[self.members]))

    def _zeros_and_ones(self, where: Column) -> Indices:
        """For each member 1 where ``where``, a number or a column, is not zero."""
        # a column that came with the request is known here, and need not be read from the GPU
        sent = [self.request.own[name] for name, column in self.own_columns.items() if column is where]
        values = np.ravel(sent[0] if sent else self.engine.fetch(where))
        return np.broadcast_to(values != 0, len(self.members)).astype(np.int64)

    def read(self, v: Stack, codec: Codec, keys: Sequence[Key]) -> Stack:
        return self.engine.place(super().read(self.engine.fetch(v), codec, keys))

    def own(self, values: Any) -> Any:
        if not many(values):
            return values
        column = self.engine.sent_once(values)
        column = column[:, None] if column.ndim == 1 else column
        return self.engine.rows_of(column, self.members)


def pulled_steps(
    one_step: Callable[[Stack, Stack, Column, Indices], Stack],
    x: Stack,
    h: Stack,
    gamma: Column,
    K: int | Indices,
    pull: Pull | None,
    momentum: Column,
) -> Stack:
    """Steps with momentum and a pull, made of plain ones: the pull shifts h anew in every step.

    Args:
        one_step: ``(z, h, gamma, active) -> z - gamma (g(z) - h)``; ``active`` is one number or one per member, 0 where
            that member's K is reached.
    """

    def step(z: Stack, y: Stack, k: int) -> Stack:
        shift = h if pull is None else h - pull[0] * (z - pull[1])
        active = (np.asarray(K) > k).astype(np.int64)
        new = one_step(z, shift, gamma, active)
        return new if np.all(active) else np.where(active[:, None] > 0, new, y)

    return momentum_steps(step, x, int(np.max(K)), momentum)[0]


def _only_plain_steps(options: Mapping[str, object]) -> None:
    """Refuse options that the kernels do not support."""
    used = [name for name, v in options.items() if v is not None]
    if used:
        raise InputError(f'the gpu engine does not support {used[0]} in local steps; use engine="cpu".')


def _one_number(step0: int | Indices) -> int:
    """The number of the first step, which must be the same for all members."""
    if isinstance(step0, int):
        return step0
    numbers = set(np.ravel(step0).tolist())
    if len(numbers) > 1:
        raise InputError('the gpu engine needs the same number of local steps for all clients; use engine="cpu".')
    return int(numbers.pop())
