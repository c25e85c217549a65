"""The CPU engine: the whole cohort as one stack, its local steps spread over threads, compiled where they can be."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from proxskip.engines.cpu import kernels
from proxskip.engines.cpu.lazy import Lazy, Sheet
from proxskip.engines.cpu.lazy_kernels import KEPT, TEMPORARY
from proxskip.engines.cpu.shards import Census, pack
from proxskip.engines.reference import OneClient
from proxskip.links.sums import SUM_BLOCK, sum_in_order
from proxskip.problems.federated import Problem, checked_gradient
from proxskip.problems.glm import LinearModel
from proxskip.problems.quadratic import Quadratic
from proxskip.seam import ClientHalf, SettleHalf
from proxskip.types import Array, Indices, InputError, Vectors

OURS = (LinearModel, Quadratic)
LAZY = 1 << 18
"""Entries of a cohort's stack from which its halves are computed in one kernel, see ``engines.lazy``."""


WORTH_CUTTING = 4e6
"""Entries of a round from which the members are dealt to the threads in several pieces each, as they become free."""


class Cohort:
    """A whole cohort as one client: every vector is a ``(c, d)`` stack."""

    def __init__(self, engine: CpuEngine, members: Indices, round: int) -> None:
        self.engine, self.members, self.round = engine, members, round
        self.gradients = 0

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any) -> Array:
        """K times  x <- x - gamma (g(x) - h),  for every member."""
        shape = (len(self.members), self.engine.problem.d)
        steps = np.broadcast_to(np.asarray(K, dtype=np.int64), (shape[0],)).copy()
        gammas = np.broadcast_to(np.asarray(gamma, dtype=np.float64).ravel(), (shape[0],)).copy()
        x0 = np.atleast_2d(self._plain(x))
        H = np.broadcast_to(self._plain(h), shape)
        problem = self.engine.problem
        rows = problem.batch or self.engine.rows[self.members]
        self.gradients += int(np.sum(steps * rows))
        return self.engine.descend(self.members, x0, H, gammas, steps, self.round)

    def _plain(self, v: Any) -> Any:
        """A vector that is already there as it is; one that is written down, computed."""
        if not isinstance(v, Lazy):
            return v
        if v.kind == KEPT:
            everyone = len(self.members) == self.engine.problem.n
            return v.value if everyone else v.value[self.members]
        if v.kind != TEMPORARY:
            return v.value
        out = np.empty((len(self.members), self.engine.problem.d))
        self.engine.compute(v, out, self.members)
        return out

    def gradient(self, x: Array) -> Array:
        """The members' full gradients, one row each."""
        x = np.broadcast_to(self._plain(x), (len(self.members), self.engine.problem.d))
        clients = self.engine.problem.clients
        self.gradients += int(self.engine.rows[self.members].sum())
        number0 = self.engine.number0
        return np.stack([checked_gradient(clients[i], x[j], number0 + int(i)) for j, i in enumerate(self.members)])

    def own(self, values: Any) -> Any:
        """The members' entries as a column."""
        return values if np.ndim(values) == 0 else np.asarray(values)[self.engine.number0 + self.members, None]


class CpuEngine:
    """Clients on threads. The same trajectory, bit for bit, for any number of threads."""

    name = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads = {threads} must be at least 1.")
        self.threads = threads or available_cores()
        self.pool: ThreadPoolExecutor | None = None

    def open(
        self, problem: Problem, memory: Vectors, seed: int, number0: int = 0, census: Census | None = None
    ) -> None:
        """Pack the shards for the kernels, where there is one for them, and compile it before the clock runs.

        Args:
            number0, census: where these are only some of a problem's clients, the number of the first among all, and
                the census of all.
        """
        self.problem, self.seed, self.number0 = problem, seed, number0
        self.kept = {k: v.copy() for k, v in memory.items()}
        self.rows = np.array([getattr(f, "N", 1) for f in problem.clients], dtype=np.int64)
        self.shards = pack(problem, census, number0)
        # oracles of unknown make may share buffers, so they run one after another unless they say that they need not
        self.shareable = all(isinstance(f, OURS) or getattr(f, "thread_safe", False) for f in problem.clients)
        self.buffers: dict[int, Array] = {}
        self.spare: Array | None = None
        if self.threads > 1 and self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="proxskip")
        if self.shards is not None:
            nothing = np.zeros((1, problem.d))
            self.descend(np.zeros(1, np.int64), nothing, nothing, np.zeros(1), np.zeros(1, np.int64), 0)

    def descend(self, members: Indices, x0: Array, H: Array, gamma: Array, K: Indices, round: int) -> Array:
        """All local steps of all members, from x0 (a row each, or one for all), as a new stack.

        Each member is on one thread, or a large one's rows on all of them if there are few members.
        """
        X = self._room((len(members), self.problem.d))
        if self.shards is None:
            X[...] = x0
            return self._descend_any(members, X, H, gamma, K, round)
        kind = self.shards.dtype
        x0, H, gamma = (np.ascontiguousarray(v, dtype=kind) for v in (x0, H, gamma))
        X = X if kind == X.dtype else np.empty(X.shape, kind)
        if len(members) < self.threads and self.shards.large(int(members[0])):
            X[...] = x0
            for j, i in enumerate(members):
                self.shards.spread(int(i), X[j], H[j], gamma[j], int(K[j]), self.seed, round, self._spread)
        else:
            work = self.shards.descend(members, x0, X, H, gamma, K, self.seed, round)
            load = K * self.shards.work[members]
            pieces = 16 if self.threads > 1 and float(load.sum()) > WORTH_CUTTING else 1
            self._spread(work, balanced(load, pieces * self.threads))
        return X.astype(np.float64, copy=False)

    def _descend_any(self, members: Indices, X: Array, H: Array, gamma: Array, K: Indices, round: int) -> Array:
        def one(j: int, _: int) -> None:
            client = OneClient(self.problem, int(members[j]), self.seed, round, self.number0)
            with np.errstate(all="ignore"):  # a thread does not inherit the loop's
                X[j] = client.descend(X[j].copy(), H[j], float(gamma[j]), int(K[j]))

        ranges = [(j, j + 1) for j in range(len(members))]
        if self.shareable:
            self._spread(one, ranges)
        else:
            for j, k in ranges:
                one(j, k)
        return X

    def _spread(self, work: Any, ranges: list[tuple[int, int]]) -> None:
        if self.pool is None or len(ranges) == 1:
            for lo, hi in ranges:
                work(lo, hi)
            return
        for job in [self.pool.submit(work, lo, hi) for lo, hi in ranges]:
            job.result()

    def run(
        self, half: ClientHalf, cohort: Indices, round: int, K: Any, down: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], int]:
        """The whole cohort in one call of the half; a large cohort's arithmetic in one kernel."""
        client = Cohort(self, cohort, round)
        up, memory = half(client, self._of(cohort), K, *down)
        shape = (len(cohort), self.problem.d)
        return self._compute(cohort, up, memory, shape), client.gradients

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """The same."""
        memory = half(Cohort(self, cohort, 0), self._of(cohort), *outcome)
        self._compute(cohort, (), memory, (len(cohort), self.problem.d))

    def _of(self, cohort: Indices) -> Vectors:
        if len(cohort) * self.problem.d >= LAZY:
            return {k: Lazy.of(v, kept=True) for k, v in self.kept.items()}  # type: ignore[misc]
        everyone = len(cohort) == self.problem.n
        return {k: v if everyone else v[cohort] for k, v in self.kept.items()}

    def _compute(self, cohort: Indices, up: Any, memory: Any, shape: tuple[int, int]) -> tuple[Array, ...]:
        """Do what the half wrote down: what goes up into buffers, what is remembered into its place."""
        sheet, ready = Sheet(shape[1], cohort), {}
        for k, v in enumerate(up):
            if isinstance(v, Lazy):
                ready[k] = self._buffer(k, shape)
                sheet.store(v, ready[k], kept=False)
        for name, v in memory.items():
            if isinstance(v, Lazy):
                sheet.store(v, self.kept[name], kept=True)
        if sheet.out and sheet.fits:
            self._spread(sheet.work(), balanced(np.ones(shape[0]), self.threads))
        elif sheet.out:
            raise InputError("this client half is too long for a large cohort; split it into two exchanges.")
        for name, v in memory.items():
            if not isinstance(v, Lazy):
                self._keep(cohort, name, v, shape)
        return tuple(
            ready[k] if k in ready else np.ascontiguousarray(np.broadcast_to(v, shape)) for k, v in enumerate(up)
        )

    def _keep(self, cohort: Indices, name: str, v: Array, shape: tuple[int, int]) -> None:
        if len(cohort) == self.problem.n and v.shape == shape:
            self.spare, self.kept[name] = self.kept[name], v
        else:
            self.kept[name][cohort] = v

    def _buffer(self, k: int, shape: tuple[int, int]) -> Array:
        """A stack that is used again in every round: what goes up is read before the next exchange."""
        if k not in self.buffers or self.buffers[k].shape != shape:
            self.buffers[k] = np.empty(shape)
        return self.buffers[k]

    def _room(self, shape: tuple[int, int]) -> Array:
        """A stack to write to: a large one that is no longer needed, where there is one."""
        spare, self.spare = self.spare, None
        fits = spare is not None and spare.shape == shape and shape[0] * shape[1] >= LAZY
        return spare if fits and spare is not None else np.empty(shape)

    def compute(self, v: Lazy, out: Array, members: Indices) -> None:
        """One written-down stack at once."""
        sheet = Sheet(out.shape[1], members)
        sheet.store(v, out, kept=False)
        self._spread(sheet.work(), balanced(np.ones(len(out)), self.threads))

    def sum(self, w: Array, U: Array) -> Array:
        """Block after block, the blocks spread over threads."""
        blocks = np.empty((-(-len(U) // SUM_BLOCK), U.shape[1]))
        w, U = np.ascontiguousarray(w), np.ascontiguousarray(U)
        self._spread(
            lambda lo, hi: kernels.block_sums(lo, hi, w, U, SUM_BLOCK, blocks),
            balanced(np.ones(len(blocks)), self.threads),
        )
        return sum_in_order(blocks)

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        return {k: v.copy() for k, v in self.kept.items()}

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def balanced(load: Array, parts: int) -> list[tuple[int, int]]:
    """Ranges of clients with about equal loads."""
    n, total = len(load), float(load.sum())
    parts = min(parts, n)
    ends = np.cumsum(load)
    goals = total * np.arange(1, parts) / parts
    after = np.minimum(np.searchsorted(ends, goals), n - 1)
    nearer = np.abs(ends[after] - goals) <= np.abs(np.append(0.0, ends)[after] - goals)
    inner = [int(c) for c in np.maximum.accumulate(after + nearer)] if total > 0 else []
    bounds = [0, *inner, n]
    return list(pairwise(bounds))
