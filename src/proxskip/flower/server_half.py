"""The server half of a round in a federation: left while messages travel, and run again once they are back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from proxskip.core.exchange import ClientHalf, SettleHalf
from proxskip.core.gossip import Links
from proxskip.core.method import Method
from proxskip.problems.federated import Problem
from proxskip.prox import conjugate_prox
from proxskip.support.randomness import stream
from proxskip.types import Array, Indices, InputError, Vectors

Steps = int | Sequence[int]
"""Local steps, for all clients or for each of the n."""
Own = Mapping[str, Sequence[float]]
"""Numbers for each of the n clients, by name."""


@dataclass(frozen=True, slots=True)
class Mean:
    """The result of one exchange: who was averaged, and the means."""

    cohort: tuple[int, ...]
    vectors: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """An exchange that waits for its clients; K is one number for all, or one each."""

    half: str
    down: tuple[Array, ...]
    K: int | tuple[int, ...]
    weights: Array
    own: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def numbers(self, i: int) -> dict[str, float]:
        return {name: values[i] for name, values in self.own.items()}

    def steps(self, i: int) -> int:
        return self.K if isinstance(self.K, int) else self.K[i]


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a round: the server's vectors, and the outcome for its cohort."""

    vectors: Vectors
    settle: str
    outcome: tuple[Array, ...]


class _Waits(Exception):
    def __init__(self, call: Call) -> None:
        self.call = call


class MeansSoFar:
    """The Exchange of a federation's server half: it returns the means so far, and stops at the first one missing.

    ``Method.round`` is a pure function of the server's vectors, a generator keyed by (seed, round) and the means. So
    nothing of a server half is kept: it is run again from its beginning.

    Args:
        cohort: who was asked at first; after a mean, who was averaged.
    """

    def __init__(
        self, problem: Problem, seed: int, round: int, everyone: bool, cohort: Sequence[int], means: Sequence[Mean]
    ) -> None:
        self.problem, self.everyone, self.round = problem, everyone, round
        self.cohort: Indices = np.array(cohort, dtype=np.int64)
        self.rng = stream(seed, round, "server")
        self.means = iter(means)
        self.settled: tuple[str, tuple[Array, ...]] = ("", ())

    def __call__(
        self, half: ClientHalf, *down: Array, K: Steps = 0, own: Own | None = None, weights: Array | None = None
    ) -> tuple[Array, ...]:
        for mean in self.means:
            self.cohort = np.array(mean.cohort, dtype=np.int64)
            return mean.vectors
        steps = int(K) if isinstance(K, (int, np.integer)) else tuple(int(k) for k in K)
        w = self.problem.weights if weights is None else weights
        if isinstance(half, partial):  # its keywords travel like the clients' own numbers
            own = {name: (v,) * self.problem.n for name, v in half.keywords.items()} | dict(own or {})
            half = half.func
        numbers = {name: tuple(float(v) for v in values) for name, values in (own or {}).items()}
        raise _Waits(Call(half.__name__, down, steps, w, numbers))

    def gossip(self, half: ClientHalf, graph: Links, K: int) -> None:
        raise InputError("gossip methods have no server; use scaffnew in a federation.")

    def settle(self, half: SettleHalf, *outcome: Array) -> None:
        self.settled = (half.__name__, outcome)

    def prox(self, x: Array, t: float) -> Array:
        assert self.problem.psi is not None
        return self.problem.psi.prox(x, t)

    def prox_conjugate(self, y: Array, t: float) -> Array:
        assert self.problem.psi is not None
        return conjugate_prox(self.problem.psi, y, t)


def advance(method: Method, server: Vectors, exchange: MeansSoFar) -> Call | Done:
    """Run the server half as far as the means reach."""
    try:
        with np.errstate(all="ignore"):
            vectors = method.round(server, exchange)
    except _Waits as waits:
        return waits.call
    return Done(vectors, *exchange.settled)
