"""A cohort on the GPU: all its members as one client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.codecs import Codec, Key
from proxskip.core.engine import Request
from proxskip.engines.gpu.launch import many
from proxskip.engines.stack_client import StackClient
from proxskip.types import Array, Column, Counts, Flags, Indices, InputError, Stack


class CardCohort(StackClient):
    """A whole cohort on CuPy's stacks: every vector is ``(c, d)``, or ``(d,)`` for all members."""

    def __init__(self, engine: Any, members: Indices, request: Request) -> None:
        super().__init__(members, request, engine.seed, engine.rows[members], engine.problem.batch)
        self.engine = engine
        self.numbers = engine.numbers(members)
        self.own_columns = {k: engine.cupy.asarray(v)[:, None] for k, v in request.own.items()}

    def plain_steps(self, x: Stack, h: Stack, gamma: Column, K: Counts, first: Counts, pull: float) -> Stack:
        engine = self.engine
        if not many(h):
            h = engine.cupy.full(engine.problem.d, float(h)) if h else None
        return engine.steps.descend(
            len(self.members), engine.dense(x), None if h is None else engine.dense(h), gamma, K,
            members=self.numbers, seed=engine.seed, round=self.request.round, step0=one_number(first),
            pull=pull, halt=self.request.halt,
        )  # fmt: skip

    def estimates(self, x: Stack, number: Counts, wanted: Flags) -> Stack:
        if self.batch is None:
            return self.full_gradients(x, wanted)
        # a member whose steps are over has a number that no longer matters
        step = one_number(np.broadcast_to(number, wanted.shape)[wanted])
        return self.engine.steps.step_gradient(
            len(self.members), self.engine.dense(x), _steps_of(wanted), members=self.numbers,
            seed=self.engine.seed, round=self.request.round, step=step,
        )  # fmt: skip

    def full_gradients(self, x: Stack, wanted: Flags) -> Stack:
        return self.engine.steps.gradient(
            len(self.members), self.engine.dense(x), _steps_of(wanted), members=self.numbers
        )

    def stack(self, v: Stack) -> Stack:
        return self.engine.cupy.broadcast_to(v, (len(self.members), self.engine.problem.d))

    def where(self, which: Flags, a: Stack, b: Stack) -> Stack:
        return self.engine.cupy.where(self.engine.place(which)[:, None], a, b)

    def fetch(self, v: Stack) -> Array:
        # a column that came with the request is known here, and need not be read from the GPU
        for name, column in self.own_columns.items():
            if column is v:
                return np.asarray(self.request.own[name])
        return np.asarray(self.engine.fetch(v))

    def read(self, v: Stack, codec: Codec, keys: Sequence[Key]) -> Stack:
        return self.engine.place(super().read(self.engine.fetch(v), codec, keys))

    def own(self, values: Any) -> Any:
        if not many(values):
            return values
        column = self.engine.sent_once(values)
        column = column[:, None] if column.ndim == 1 else column
        return self.engine.rows_of(column, self.members)


def _steps_of(wanted: Flags) -> Counts:
    """One step for the members that are wanted; a plain 1 for everyone, which needs no array on the GPU."""
    return 1 if wanted.all() else wanted.astype(np.int64)


def one_number(step: Counts) -> int:
    """The number of a step, which must be the same for all members, because one launch draws their minibatches."""
    numbers = set(np.ravel(step).tolist())
    if len(numbers) > 1:
        raise InputError('the gpu engine needs the same number of local steps for all clients; use engine="cpu".')
    return int(numbers.pop())
