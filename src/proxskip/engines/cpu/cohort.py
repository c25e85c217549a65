"""A cohort on the CPU engine: all its members, or a range of them, as one client on numpy's stacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from proxskip.core.engine import BrokenOff, Request, look
from proxskip.core.exchange import Anchor
from proxskip.engines.cpu.kernels import Anchors, Draws, Steps
from proxskip.engines.cpu.shards import RangeTask, Rows, Tiles, with_pull, writable
from proxskip.engines.local import OneClient
from proxskip.engines.sparse_rows import balanced, pieces
from proxskip.engines.stack_client import StackClient
from proxskip.problems.clients import checked_gradient, expansion, expansion_length
from proxskip.types import Array, Column, Counts, Flags, Indices, Stack

# Starting t threads takes c t, so that work W takes W / t + c t, least for t = sqrt(W / c).
ENTRIES_PER_START = 3e4
"""Matrix entries or stack numbers that a thread processes in the time c."""
ENTRIES_PER_PIECE = 2.5e5
"""Entries of the smallest piece of work."""
SHORT_WORK = 2e7
"""Entries of one kernel call (some 10 ms), after which a thread checks for interrupts."""


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

    def plain_steps(
        self, x: Stack, h: Stack, gamma: Column, K: Counts, first: Counts, pull: float, only_gradient: bool = False
    ) -> Array:
        """Each member is on one thread, or large ones' blocks of rows on all.

        Args:
            pull: added to the l2 term.
            only_gradient: a step replaces x by the gradient there; K is then 1, or 0 where none is wanted.
        """
        engine, c = self.engine, self.shape[0]
        K, gammas = np.full(c, K, dtype=np.int64), one_each(gamma, c)
        if engine.shards is None:
            return self._one_by_one(self.stack(x), self.stack(h), gammas, K, first, pull)
        shards = engine.shards if pull == 0.0 else with_pull(engine.shards, pull)
        members = writable(self.members, np.int64)
        x, h, gammas = (writable(v, shards.dtype) for v in (np.atleast_2d(x), self.stack(h), gammas))
        ends = np.empty(self.shape, shards.dtype)
        steps = Steps(members, x, ends, h, gammas, K, only_gradient)
        draws = shards.draws(self.seed, self.request.round, first, c)
        if self._shares_blocks(shards, K):
            ends[...] = x
            shards.spread(steps._replace(X0=ends), draws, self._share)
            return ends.astype(np.float64, copy=False)
        load = self._load(K)
        threads = threads_for(load.sum(), self.threads)
        task = partial(shards.descend, steps=steps, draws=draws)
        if load.sum() > SHORT_WORK:
            task = partial(self._in_short_calls, shards.descend, steps=steps, draws=draws)
        if threads == 1:
            task(0, c)
        else:
            engine.spread(task, pieces(load, threads, ENTRIES_PER_PIECE), threads)
        return ends.astype(np.float64, copy=False)

    def _load(self, K: Counts) -> Array:
        """The entries and numbers that K steps of each member read."""
        return np.asarray(K * (self.engine.shards.work[self.members] + self.shape[1]))

    def _shares_blocks(self, shards: Rows | Tiles, K: Indices) -> bool:
        """Whether threads share the members' blocks: better balanced, but they wait for each other in every step."""
        threads = self.threads
        if threads == 1 or shards.most_blocks == 1:
            return False
        load = K * shards.work[self.members]
        whole = max(load[lo:hi].sum() for lo, hi in balanced(load, threads))
        shared = load.sum() / min(threads, shards.block_counts(self.members).sum())
        return bool(shared + K.max() * threads * ENTRIES_PER_START < whole)

    def _share(self, task: RangeTask, loads: Array) -> None:
        look(self.request.halt)
        self.engine.spread(task, pieces(loads, self.threads, ENTRIES_PER_PIECE), self.threads)

    def _in_short_calls(self, call: Callable[..., None], lo: int, hi: int, *, steps: Steps, draws: Draws) -> None:
        """The steps of the members lo to hi - 1, in calls of about SHORT_WORK with a check for interrupts in between.

        A step depends only on x and its number, so the bytes are those of one call.

        Args:
            call: ``call(lo, hi, steps=, draws=)`` takes these steps.
        """
        load, of_one = self._load(steps.K)[lo:hi], self._load(1)
        for a, b in balanced(load, 1 + int(load.sum() / SHORT_WORK)):
            some = slice(lo + a, lo + b)
            most = max(1, int(SHORT_WORK / of_one[some].sum()))
            for done in range(0, max(1, int(steps.K[some].max())), most):
                self._look()
                now = steps._replace(X0=steps.X if done else steps.X0, K=np.clip(steps.K - done, 0, most))
                call(some.start, some.stop, steps=now, draws=draws._replace(step0=draws.step0 + done))

    def _look(self) -> None:
        look(self.request.halt)
        if self.engine.abandoned.is_set():
            raise BrokenOff

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
        return self.plain_steps(x, x, 0.0, wanted.astype(np.int64), number, 0.0, only_gradient=True)

    def _estimates_one_by_one(self, x: Array, number: Counts, wanted: Flags) -> Array:
        clients = self._clients_at(number)
        gradients = np.zeros(self.shape)
        at = np.flatnonzero(wanted)

        def one(k: int, _: int) -> None:
            gradients[at[k]] = clients[at[k]].estimate(x[at[k]])

        self.engine.each(one, len(at), threads=self.threads)
        return gradients

    def full_gradients(self, x: Stack, wanted: Flags) -> Array:
        gradients, at = np.zeros(self.shape), np.flatnonzero(wanted)

        def one(k: int, _: int) -> None:
            self._look()
            j = at[k]
            i = int(self.members[j])
            gradients[j] = checked_gradient(self.engine.problem.clients[i], x[j], self.number0 + i)

        self.engine.each(one, len(at), self.engine.entries(self.members[at]), self.threads)
        return gradients

    def expansion(self, x: Array) -> Array:
        self.gradients += int(self.rows.sum())
        points = self.stack(x)
        c, d = self.shape
        rows = np.empty((c, expansion_length(d)))

        def one(j: int, _: int) -> None:
            self._look()
            i = int(self.members[j])
            rows[j] = expansion(self.engine.problem.clients[i], points[j], self.number0 + i)

        self.engine.each(one, c, self.engine.entries(self.members) * d, self.threads)
        return rows

    def anchored_steps(self, x: Stack, h: Stack, gamma: Column, K: Indices, anchor: Anchor) -> tuple[Stack, ...]:
        engine, shards = self.engine, self.engine.shards
        if not (isinstance(shards, Rows) and shards.batch > 0):  # the kernel is for minibatches read row by row
            return super().anchored_steps(x, h, gamma, K, anchor)
        c = self.shape[0]
        X, w, gw = (np.array(self.stack(v), dtype=shards.dtype, order="C") for v in (x, *anchor[:2]))
        h, gammas = (writable(v, shards.dtype) for v in (self.stack(h), one_each(gamma, c)))
        members, K = (writable(v, np.int64) for v in (self.members, K))
        moved = np.zeros(c, np.int64)
        anchors = Anchors(w, gw, one_each(anchor[2], c), moved)
        load = self._load(K)
        threads = threads_for(load.sum(), self.threads)
        task = partial(
            self._in_short_calls, partial(shards.descend_anchored, anchors=anchors),
            steps=Steps(members, X, X, h, gammas, K),
            draws=shards.draws(self.seed, self.request.round, self.step, c),
        )  # fmt: skip
        engine.spread(task, pieces(load, threads, ENTRIES_PER_PIECE), threads)
        self.step = self.step + K
        self.gradients += 2 * self._rows_of(K) + int(moved @ self.rows)
        return tuple(v.astype(np.float64, copy=False) for v in (X, w, gw))

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


def threads_for(work: float, most: int) -> int:
    """The number of threads that is worthwhile for this many entries or numbers."""
    return max(1, min(most, int(math.sqrt(work / ENTRIES_PER_START))))
