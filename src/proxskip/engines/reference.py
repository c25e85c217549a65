"""The reference engine: plain numpy, one client at a time, no cleverness. The judge of all the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.links.sums import weighted_sum
from proxskip.problems.federated import Problem, checked_gradient
from proxskip.randomness import minibatch
from proxskip.seam import ClientHalf, SettleHalf
from proxskip.types import Array, Indices, Vectors


class OneClient:
    """One client: its oracle, its number, and its place in the stream of minibatches."""

    def __init__(self, problem: Problem, i: int, seed: int, round: int, number0: int = 0) -> None:
        self.oracle: Any = problem.clients[i]
        self.i, self.seed, self.round, self.step = number0 + i, seed, round, 0
        self.batch = problem.batch
        self.rows = getattr(self.oracle, "N", 1)
        self.gradients = 0

    def descend(self, x: Array, h: Array | float, gamma: float, K: int) -> Array:
        """K times  x <- x - gamma (g(x) - h)."""
        for _ in range(K):
            x = x - gamma * (self._estimate(x) - h)
        return x

    def _estimate(self, x: Array) -> Array:
        if self.batch is None:
            return self.gradient(x)
        picks = minibatch(self.seed, self.i, self.round, self.step, self.rows, self.batch)
        self.step += 1
        self.gradients += self.batch
        return np.asarray(self.oracle.minibatch_gradient(x, picks))

    def gradient(self, x: Array) -> Array:
        """The full local gradient."""
        self.gradients += self.rows
        return checked_gradient(self.oracle, x, self.i)

    def own(self, values: Any) -> Any:
        """This client's entry."""
        return values if np.ndim(values) == 0 else values[self.i]


class ReferenceEngine:
    """Runs client halves one after another on ``(d,)`` vectors."""

    name = "reference"

    def open(self, problem: Problem, memory: Vectors, seed: int) -> None:
        """Keep the problem and the initial memory."""
        self.problem, self.seed = problem, seed
        self.kept = {k: v.copy() for k, v in memory.items()}

    def run(
        self, half: ClientHalf, cohort: Indices, round: int, K: Any, down: tuple[Array, ...]
    ) -> tuple[tuple[Array, ...], int]:
        """One client after another."""
        rows, gradients = [], 0
        for j, i in enumerate(cohort):
            client = OneClient(self.problem, int(i), self.seed, round)
            up, memory = half(client, self._of(i), int(K if np.ndim(K) == 0 else K[j]), *down)
            self._keep(i, memory)
            rows.append(up)
            gradients += client.gradients
        return tuple(np.stack(column) for column in zip(*rows, strict=True)), gradients

    def tell(self, half: SettleHalf, cohort: Indices, outcome: tuple[Array, ...]) -> None:
        """One client after another."""
        for j, i in enumerate(cohort):
            client = OneClient(self.problem, int(i), self.seed, 0)
            self._keep(i, half(client, self._of(i), *(v if v.ndim == 1 else v[j] for v in outcome)))

    def _of(self, i: int) -> Vectors:
        return {k: v[i].copy() for k, v in self.kept.items()}

    def _keep(self, i: int, memory: Vectors) -> None:
        for k, v in memory.items():
            self.kept[k][i] = v

    def sum(self, w: Array, U: Array) -> Array:
        """In client order."""
        return weighted_sum(w, U)

    def memory(self) -> Vectors:
        """A copy of what the clients remember."""
        return {k: v.copy() for k, v in self.kept.items()}

    def close(self) -> None:
        """Nothing to give back."""
