"""One client's arithmetic on its own ``(d,)`` vectors: a cohort of one on the cpu engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from proxskip.codecs import Codec, Identity, Key
from proxskip.core.engine import Request
from proxskip.core.exchange import ClientHalf, SettleHalf
from proxskip.engines.cpu.cohort import Cohort
from proxskip.engines.cpu.engine import CpuEngine
from proxskip.engines.local import no_half
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import in_double
from proxskip.types import Array, InputError, Oracle, Vectors

Noise = Callable[[Array, Array], Array]
"""``noise(x, xhat)``, sent instead of xhat, the point that local steps reached from x."""


class Worker:
    """Client i: its function, with the bytes that the cpu engine would compute for it.

    Args:
        oracle: the local function; minibatches need one with rows (``minibatch_gradient`` and ``N``).
        i: its number in the federation, which keys its minibatches.
        seed: the run's seed.
        batch: rows of a minibatch, or None for full gradients.
        d: the number of unknowns, needed only if the function does not know it.
    """

    def __init__(self, oracle: Oracle, i: int, seed: int = 0, batch: int | None = None, d: int = 0) -> None:
        problem = Problem([oracle], batch=batch, d=d)
        self.oracle, self.i, self.seed, self.d = oracle, i, seed, problem.d
        self.rows, self.gradients = int(problem.rows_each[0]), 0
        self.least_rows = 0  # it sends no Hessian of fewer
        self.engine = CpuEngine(1)
        self.engine.open(problem, {}, seed, i)
        self.codec: Codec | None = None
        self.noise: Noise | None = None
        self._begin(Key(seed, 0, i))

    def _begin(self, key: Key) -> None:
        """Start a half: number its minibatches and vectors from zero."""
        member = np.zeros(1, np.int64)
        self.cohort = Cohort(self.engine, member, Request(no_half, member, key.round), threads=1)
        self.key = key
        self.sent: list[tuple[Array, bytes | None]] = []

    def run(
        self, half: ClientHalf, memory: Vectors, K: int, key: Key, down: tuple[Array, ...], own: dict[str, float]
    ) -> Any:
        """What goes up, and the new memory.

        Args:
            key: of the exchange: its round keys the minibatches, all of it the codecs.
        """
        self._begin(key)
        with np.errstate(all="ignore"):
            result = half(self, memory, K, *down, **own)
        self.gradients += self.cohort.gradients
        return result

    def settle(self, half: SettleHalf, memory: Vectors, outcome: tuple[Array, ...]) -> Vectors:
        """The new memory once the outcome is known."""
        with np.errstate(all="ignore"):
            return half(self, memory, *outcome)

    def as_sent(self, v: Array) -> Array | bytes:
        """A vector that goes up, or its encoded bytes."""
        return next((data for sent, data in self.sent if sent is v and data is not None), v)

    # -- the Client of a half ------------------------------------------------------------------------------------------
    def descend(self, x: Array, h: Array | float, gamma: float, K: int, **options: Any) -> Any:
        """Local steps; noise for privacy is added to the point they reach."""
        reached = self.cohort.descend(x, h, gamma, K, **options)
        point, *rest = (v[0] for v in (reached if isinstance(reached, tuple) else (reached,)))
        if self.noise is not None:  # before h is computed, so that h depends on what is sent
            point = self.noise(x, point)
        return (point, *rest) if rest else point

    def gradient(self, x: Array, where: Any = None) -> Array:
        (row,) = self.cohort.gradient(x, where)
        return np.asarray(row)

    def expansion(self, x: Array) -> Array:
        if self.rows < self.least_rows:
            raise InputError(
                f"this site has {self.rows} rows, and sends no Hessian of fewer than {self.least_rows}, which would "
                "reveal much about each; client_app(..., least_rows=) sets the limit."
            )
        (row,) = self.cohort.expansion(x)
        return np.asarray(row)

    def own(self, values: Any) -> Any:
        return values[self.i] if isinstance(values, tuple) or np.ndim(values) else values

    def measured_gradient(self, x: Array) -> Array:
        """The full local gradient for a measurement, in double precision whatever the data."""
        self.gradients += self.rows
        return checked_gradient(in_double(self.oracle), x, self.i)

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """v as the server will read it; its bytes are kept for the message."""
        codec = codec or self.codec
        if codec is None or isinstance(codec, Identity):
            self.sent.append((v, None))
            return v
        key = replace(self.key, vector=len(self.sent))
        data = codec.encode(np.asarray(v, dtype=np.float64), key)
        self.sent.append((codec.decode(data, len(v), key), data))
        return self.sent[-1][0]

    def value(self, x: Array) -> float:
        return float(in_double(self.oracle).value(x))
