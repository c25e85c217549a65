"""A cohort on the CPU engine: all its members, or a range of them, as one client on numpy's stacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.core.engine import Request
from proxskip.core.exchange import Anchor
from proxskip.engines.local import OneClient
from proxskip.engines.stack_client import StackClient
from proxskip.types import Array, Column, Counts, Flags, Indices, Stack


class Cohort(StackClient):
    """Local steps by the engine's kernels; of functions without one, member by member on threads.

    Args:
        engine: the ``CpuEngine`` whose client this is.
        threads: how many its work may use.
    """

    def __init__(self, engine: Any, members: Indices, request: Request, threads: int) -> None:
        rows, batch = engine.rows[members], engine.problem.batch
        super().__init__(members, request, engine.seed, rows, batch, engine.number0)
        self.engine, self.threads = engine, threads
        self.shape = len(members), engine.problem.d

    def plain_steps(self, x: Stack, h: Stack, gamma: Column, K: Counts, first: Counts, pull: float) -> Array:
        steps, gammas = np.full(self.shape[0], K, dtype=np.int64), one_each(gamma, self.shape[0])
        if self.engine.shards is None:
            return self._one_by_one(self.stack(x), self.stack(h), gammas, steps, first, pull)
        ends: Array = self.engine.descend(
            self.members, np.atleast_2d(x), self.stack(h), gammas, steps, self.request.round, first,
            halt=self.request.halt, pull=pull, threads=self.threads,
        )  # fmt: skip
        return ends

    def _one_by_one(self, X: Array, H: Array, gammas: Array, K: Indices, first: Counts, pull: float) -> Array:
        """Every member takes all its steps on one thread, as on the reference engine."""
        clients = self._clients_at(first)
        ends = np.empty(self.shape)

        def one(j: int, _: int) -> None:
            centre = (pull, 0.0) if pull else None
            ends[j] = clients[j].descend(X[j].copy(), H[j], float(gammas[j]), int(K[j]), pull=centre)

        self.engine.each(one, len(clients), threads=self.threads)
        return ends

    def estimates(self, x: Stack, number: Counts, wanted: Flags) -> Array:
        x = self.stack(x)
        if self.engine.shards is None:
            return self._estimates_one_by_one(x, number, wanted)
        gradients: Array = self.engine.step_gradients(
            self.members, x, wanted, self.request.round, number, halt=self.request.halt, threads=self.threads
        )
        return gradients

    def _estimates_one_by_one(self, x: Array, number: Counts, wanted: Flags) -> Array:
        clients = self._clients_at(number)
        gradients = np.zeros(self.shape)
        at = np.flatnonzero(wanted)

        def one(k: int, _: int) -> None:
            gradients[at[k]] = clients[at[k]].estimate(x[at[k]])

        self.engine.each(one, len(at), threads=self.threads)
        return gradients

    def full_gradients(self, x: Stack, wanted: Flags) -> Array:
        gradients: Array = self.engine.gradients(self.members, x, wanted, self.request.halt, self.threads)
        return gradients

    def expansion(self, x: Array) -> Array:
        self.gradients += int(self.rows.sum())
        rows: Array = self.engine.expansions(self.members, self.stack(x), self.request.halt, self.threads)
        return rows

    def anchored_steps(self, x: Stack, h: Stack, gamma: Column, K: Indices, anchor: Anchor) -> tuple[Stack, ...]:
        if not self.engine.has_anchors():
            return super().anchored_steps(x, h, gamma, K, anchor)
        first = self.step
        self.step = first + K
        held = self.stack(anchor[0]), self.stack(anchor[1]), one_each(anchor[2], self.shape[0])
        ends, moved = self.engine.descend_anchored(
            self.members, self.stack(x), self.stack(h), one_each(gamma, self.shape[0]), K, held, self.request, first,
            self.threads,
        )  # fmt: skip
        self.gradients += 2 * self._rows_of(K) + int(moved @ self.rows)
        return tuple(ends)

    def _clients_at(self, number: Counts) -> list[OneClient]:
        """The members one by one, as they are before the local step of this number."""
        e, numbers = self.engine, np.broadcast_to(number, self.members.shape).tolist()
        clients = [OneClient(e.problem, int(i), e.seed, self.request, j, e.number0) for j, i in enumerate(self.members)]
        for client, k in zip(clients, numbers, strict=True):
            client.step = k
        return clients

    def own(self, values: Any) -> Any:
        numbers = self.number0 + self.members
        if isinstance(values, tuple):
            return np.array([values[i] for i in numbers.tolist()])[:, None]
        if np.ndim(values) == 0:
            return values
        mine = np.asarray(values)[numbers]
        return mine if mine.ndim == 2 else mine[:, None]

    def stack(self, v: Stack) -> Array:
        # one that has a row per member is not touched, because numpy's views take microseconds
        return v if isinstance(v, np.ndarray) and v.shape == self.shape else np.broadcast_to(v, self.shape)

    def where(self, which: Flags, a: Stack, b: Stack) -> Array:
        return np.asarray(np.where(which[:, None], a, b))


def one_each(v: Column, members: int) -> Array:
    """One number per member, from a number or a column."""
    return np.full(members, v if isinstance(v, float) else np.ravel(v), dtype=np.float64)
