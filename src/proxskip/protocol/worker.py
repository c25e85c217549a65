"""One client's arithmetic on its own ``(d,)`` vectors: the compiled kernels of the cpu engine where they fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.engines.cpu.shards import Tiles, pack
from proxskip.problems.federated import Problem, checked_gradient
from proxskip.randomness import minibatch
from proxskip.seam import ClientHalf, SettleHalf
from proxskip.types import Array, InputError, Oracle, Vectors


class Worker:
    """Client i: its oracle, and the bytes that the cpu engine would compute for it.

    Args:
        oracle: the local function; minibatches need one with rows (``minibatch_gradient`` and ``N``).
        i: its number in the federation, which keys its minibatches.
        seed: the run's seed.
        batch: rows of a minibatch, or None for full gradients.
    """

    def __init__(self, oracle: Oracle, i: int, seed: int = 0, batch: int | None = None, d: int = 0) -> None:
        self.oracle: Any = oracle
        self.i, self.seed, self.batch = i, seed, batch
        alone = Problem([oracle], batch=batch if hasattr(oracle, "reg") else None, d=d)
        self.d, self.rows = alone.d, int(getattr(oracle, "N", 1))
        if batch is not None and not hasattr(oracle, "minibatch_gradient"):
            raise InputError(f"client {i} has no minibatch_gradient(x, rows); leave out the batch.")
        self.shards: Any = pack(alone)
        self.member = np.zeros(1, np.int64)
        if self.shards is not None and not isinstance(self.shards, Tiles):
            self.member = np.full(1, i, np.int64)
            self.shards.row0 = np.append(np.zeros(i + 1, np.int64), self.rows)
        self.round = self.step = self.gradients = 0

    def run(self, half: ClientHalf, memory: Vectors, K: int, round: int, down: tuple[Array, ...]) -> Any:
        """What goes up, and what is remembered."""
        self.round, self.step = round, 0
        with np.errstate(all="ignore"):
            return half(self, memory, K, *down)

    def settle(self, half: SettleHalf, memory: Vectors, outcome: tuple[Array, ...]) -> Vectors:
        """What is remembered once the outcome is known."""
        with np.errstate(all="ignore"):
            return half(self, memory, *outcome)

    # -- what a client half can do -------------------------------------------------------------------------------------
    def descend(self, x: Array, h: Array | float, gamma: float, K: int) -> Array:
        """K times  x <- x - gamma (g(x) - h)."""
        self.gradients += K * (self.batch or self.rows)
        if self.shards is None:
            for _ in range(K):
                x = x - gamma * (self._estimate(x) - h)
            return x
        kind = self.shards.dtype
        X = np.empty((1, self.d), kind)
        x0, H = (np.ascontiguousarray(np.broadcast_to(v, (1, self.d)), dtype=kind) for v in (x, h))
        steps = np.full(1, K, np.int64)
        self.shards.descend(self.member, x0, X, H, np.full(1, gamma, kind), steps, self.seed, self.round)(0, 1)
        return np.asarray(X[0], dtype=np.float64)

    def _estimate(self, x: Array) -> Array:
        if self.batch is None:
            return checked_gradient(self.oracle, x, self.i)
        picks = minibatch(self.seed, self.i, self.round, self.step, self.rows, self.batch)
        self.step += 1
        return np.asarray(self.oracle.minibatch_gradient(x, picks), dtype=np.float64)

    def gradient(self, x: Array) -> Array:
        """The full local gradient."""
        self.gradients += self.rows
        return checked_gradient(self.oracle, x, self.i)

    def own(self, values: Any) -> Any:
        """This client's entry."""
        return values if np.ndim(values) == 0 else values[self.i]

    def value(self, x: Array) -> float:
        """The local value."""
        return float(self.oracle.value(x))
