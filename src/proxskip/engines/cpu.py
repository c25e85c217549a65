"""The CPU engine: the whole cohort as one stack, its local steps spread over threads, compiled where they can be."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from proxskip.engines import kernels
from proxskip.engines.reference import OneClient
from proxskip.engines.shards import pack
from proxskip.links import SUM_BLOCK, sum_in_order
from proxskip.problems.federated import Problem
from proxskip.seam import Array, ClientHalf, Indices, InputError, SettleHalf, Vectors

PIECE = 1 << 18
"""Bytes of one vector of a piece of a large cohort: a few of them fit a core's cache."""


class Cohort:
    """A whole cohort as one client: every vector is a ``(c, d)`` stack."""

    def __init__(self, engine: CpuEngine, members: Indices, round: int, alone: bool) -> None:
        self.engine, self.members, self.round, self.alone = engine, members, round, alone
        self.gradients = 0

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any) -> Array:
        """K times  x <- x - gamma (g(x) - h),  for every member."""
        shape = (len(self.members), self.engine.problem.d)
        steps = np.broadcast_to(np.asarray(K, dtype=np.int64), (shape[0],)).copy()
        gammas = np.broadcast_to(np.asarray(gamma, dtype=np.float64).ravel(), (shape[0],)).copy()
        X = np.array(np.broadcast_to(x, shape))
        H = np.broadcast_to(h, shape)
        problem = self.engine.problem
        rows = problem.batch or self.engine.rows[self.members]
        self.gradients += int(np.sum(steps * rows))
        return self.engine.descend(self.members, X, H, gammas, steps, self.round, self.alone)

    def gradient(self, x: Array) -> Array:
        """The members' full gradients, one row each."""
        x = np.broadcast_to(x, (len(self.members), self.engine.problem.d))
        clients = self.engine.problem.clients
        self.gradients += int(self.engine.rows[self.members].sum())
        return np.stack([np.asarray(clients[i].gradient(x[j])) for j, i in enumerate(self.members)])

    def own(self, values: Any) -> Any:
        """The members' entries as a column."""
        return values if np.ndim(values) == 0 else np.asarray(values)[self.members, None]


class CpuEngine:
    """Clients on threads. The same trajectory, bit for bit, for any number of threads."""

    name = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads = {threads} must be at least 1.")
        self.threads = threads or available_cores()
        self.pool: ThreadPoolExecutor | None = None

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Pack the shards for the kernels, where there is one for them, and compile it before the clock runs."""
        self.problem, self.seed = problem, seed
        self.kept = {k: v.copy() for k, v in memory.items()}
        self.rows = np.array([getattr(f, "N", 1) for f in problem.clients], dtype=np.int64)
        self.shards = pack(problem)
        if self.threads > 1 and self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="proxskip")
        if self.shards is not None:
            nothing = np.zeros((1, problem.d))
            self.descend(np.zeros(1, np.int64), nothing, nothing, np.zeros(1), np.zeros(1, np.int64), 0)

    def descend(
        self, members: Indices, X: Array, H: Array, gamma: Array, K: Indices, round: int, alone: bool = False
    ) -> Array:
        """All local steps of all members: each on one thread, or a large one's rows on all if there are few members.

        Args:
            alone: this call has one thread to itself.
        """
        if self.shards is None:
            return self._descend_any(members, X, H, gamma, K, round)
        kind = self.shards.dtype
        X, H, gamma = (np.ascontiguousarray(v, dtype=kind) for v in (X, H, gamma))
        if not alone and len(members) < self.threads and self.shards.large(int(members[0])):
            for j, i in enumerate(members):
                self.shards.spread(int(i), X[j], H[j], gamma[j], int(K[j]), self.seed, round, self._share)
        else:
            work = self.shards.descend(members, X, H, gamma, K, self.seed, round)
            self._spread(work, balanced(K * self.shards.work[members], 1 if alone else self.threads))
        return X.astype(np.float64, copy=False)

    def _share(self, work: Any, ranges: Any) -> None:
        """A list of ranges as it is, or one range (lo, hi) cut into one piece a thread."""
        if isinstance(ranges, tuple):
            lo, hi = ranges
            cuts = [lo + (hi - lo) * k // self.threads for k in range(self.threads + 1)]
            ranges = list(pairwise(cuts))
        self._spread(work, ranges)

    def _descend_any(self, members: Indices, X: Array, H: Array, gamma: Array, K: Indices, round: int) -> Array:
        def one(j: int, _: int) -> None:
            client = OneClient(self.problem, int(members[j]), self.seed, round)
            X[j] = client.descend(X[j].copy(), H[j], float(gamma[j]), int(K[j]))

        self._spread(one, [(j, j + 1) for j in range(len(members))])
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
        """The whole cohort in one call of the half, or, where it is large, many calls on pieces that fit the cache."""
        pieces = self._pieces(len(cohort))
        results: dict[int, tuple[tuple[Array, ...], int]] = {}
        whole: list[Array] = []

        def work(lo: int, hi: int) -> None:
            client = Cohort(self, cohort[lo:hi], round, alone=len(pieces) > 1)
            up, memory = half(client, self._of(cohort, lo, hi), K if np.ndim(K) == 0 else K[lo:hi], *down)
            self._keep(cohort, lo, hi, memory)
            results[lo] = up, client.gradients

        if len(pieces) == 1:
            work(*pieces[0])
            up, gradients = results[0]
            shape = (len(cohort), self.problem.d)
            return tuple(np.ascontiguousarray(np.broadcast_to(u, shape)) for u in up), gradients

        def piece(lo: int, hi: int) -> None:
            work(lo, hi)
            up, gradients = results[lo]
            for total, u in zip(whole, up, strict=True):
                total[lo:hi] = u
            results[lo] = (), gradients

        work(*pieces[0])
        for u in results[0][0]:
            whole.append(np.empty((len(cohort), self.problem.d)))
            whole[-1][: pieces[0][1]] = u
        self._spread(piece, pieces[1:])
        return tuple(whole), sum(gradients for _, gradients in results.values())

    def _pieces(self, c: int) -> list[tuple[int, int]]:
        """Ranges of the cohort whose vectors fit the cache; one range where that is all there is to spread."""
        size = max(1, PIECE // (8 * self.problem.d))
        if c < 4 * self.threads * size or self.shards is None:
            return [(0, c)]
        return list(pairwise([*range(0, c, size), c]))

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """The same pieces as in ``run``."""
        pieces = self._pieces(len(cohort))

        def work(lo: int, hi: int) -> None:
            told = (v if v.ndim == 1 else v[lo:hi] for v in outcome)
            client = Cohort(self, cohort[lo:hi], 0, alone=True)
            self._keep(cohort, lo, hi, half(client, self._of(cohort, lo, hi), *told))

        self._spread(work, pieces)

    def _of(self, cohort: Indices, lo: int, hi: int) -> Vectors:
        everyone = len(cohort) == self.problem.n
        return {k: v[lo:hi] if everyone else v[cohort[lo:hi]] for k, v in self.kept.items()}

    def _keep(self, cohort: Indices, lo: int, hi: int, memory: Vectors) -> None:
        everyone = len(cohort) == self.problem.n
        for k, v in memory.items():
            if everyone and hi - lo == self.problem.n and v.shape == self.kept[k].shape:
                self.kept[k] = v
            else:
                self.kept[k][slice(lo, hi) if everyone else cohort[lo:hi]] = v

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
    goals = total * np.arange(1, parts) / parts
    inner = [min(int(c) + 1, n) for c in np.searchsorted(np.cumsum(load), goals)] if total > 0 else []
    bounds = [0, *inner, n]
    return list(pairwise(bounds))
