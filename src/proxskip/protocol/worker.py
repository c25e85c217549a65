"""One client's arithmetic on its own ``(d,)`` vectors: the compiled kernels of the cpu engine where they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from proxskip.engines.cpu.kernels import Anchors, Steps
from proxskip.engines.cpu.shards import Rows, pack, with_pull
from proxskip.engines.local import OneClient, no_half, pull_to_zero, pulled_steps
from proxskip.interfaces import Anchor, ClientHalf, Pull, Request, SettleHalf
from proxskip.links.codecs import Codec, Identity, Key
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.glm import LinearModel
from proxskip.problems.oracles import can_sample, in_double
from proxskip.types import Array, InputError, Oracle, Vectors

Noise = Callable[[Array, Array], Array]
"""``noise(x, xhat)``, to be sent in the place of xhat, the point to which local steps led from x."""


class Worker(OneClient):
    """Client i: its oracle, and the bytes that the cpu engine would compute for it.

    Args:
        oracle: the local function; minibatches need one with rows (``minibatch_gradient`` and ``N``).
        i: its number in the federation, which keys its minibatches.
        seed: the run's seed.
        batch: rows of a minibatch, or None for full gradients.
    """

    def __init__(self, oracle: Oracle, i: int, seed: int = 0, batch: int | None = None, d: int = 0) -> None:
        alone = Problem([oracle], batch=batch if isinstance(oracle, LinearModel) else None, d=d)
        nobody = Request(no_half, np.zeros(1, np.int64), 0)
        super().__init__(alone, 0, seed, nobody, 0, i)
        self.d, self.batch = alone.d, batch
        if batch is not None and not can_sample(oracle):
            raise InputError(f"client {i} has no minibatch_gradient(x, rows); leave out the batch.")
        self.shards: Any = pack(alone, number0=i)
        self.member = np.zeros(1, np.int64)
        self.key = Key(seed, 0, i)
        self.codec: Codec | None = None
        self.noise: Noise | None = None
        self.sends: list[tuple[Array, bytes | None]] = []

    def run(
        self, half: ClientHalf, memory: Vectors, K: int, key: Key, down: tuple[Array, ...], own: dict[str, float]
    ) -> Any:
        """What goes up, and what is remembered.

        Args:
            key: of the exchange; its round keys the minibatches, all of it the codecs.
        """
        self.request, self.step, self.key, self.sends = replace(self.request, round=key.round), 0, key, []
        with np.errstate(all="ignore"):
            return half(self, memory, K, *down, **own)

    def settle(self, half: SettleHalf, memory: Vectors, outcome: tuple[Array, ...]) -> Vectors:
        """What is remembered once the outcome is known."""
        with np.errstate(all="ignore"):
            return half(self, memory, *outcome)

    def coded(self, v: Array) -> bytes | None:
        """The bytes in which this vector travels; None for one that travels as it is."""
        return next((data for sent, data in self.sends if sent is v), None)

    # -- what a client half can do -------------------------------------------------------------------------------------
    def descend(
        self,
        x: Array,
        h: Array | float,
        gamma: float,
        K: int,
        *,
        pull: Pull | None = None,
        momentum: float = 0.0,
        anchor: Anchor | None = None,
        until: float | None = None,
    ) -> Any:
        """The local steps of ``interfaces.Client.descend``; noise for privacy is added to where they lead."""
        compiled = isinstance(self.shards, Rows) and self.shards.batch > 0
        if anchor is not None and compiled and pull is None and not momentum and until is None:
            return self._noisy(x, self._anchored_steps(x, h, gamma, K, anchor))
        # no kernel for these: the plain loop of the reference engine
        if self.shards is None or anchor is not None or until is not None:
            return self._noisy(
                x, super().descend(x, h, gamma, K, pull=pull, momentum=momentum, anchor=anchor, until=until)
            )
        self.gradients += K * (self.batch or self.rows)
        if not momentum and (more := pull_to_zero(pull)) is not None:
            return self._noisy(x, self._steps(x, h, gamma, K, more))
        return self._noisy(x, pulled_steps(self._one_step, x, h, gamma, K, pull, momentum))

    def _one_step(self, z: Array, h: Array | float, gamma: float, active: object) -> Array:
        return self._steps(z, h, gamma, 1)

    def _steps(self, x: Array, h: Array | float, gamma: float, K: int, pull: float = 0.0) -> Array:
        shards = with_pull(self.shards, pull) if pull else self.shards
        kind = shards.dtype
        X = np.empty((1, self.d), kind)
        x0, H = (np.ascontiguousarray(np.broadcast_to(v, (1, self.d)), dtype=kind) for v in (x, h))
        steps = Steps(self.member, x0, X, H, np.full(1, gamma, kind), np.full(1, K, np.int64))
        shards.descend(steps, shards.draws(self.seed, self.request.round, self.step, 1))(0, 1)
        self.step += K
        return np.asarray(X[0], dtype=np.float64)

    def _anchored_steps(self, x: Array, h: Array | float, gamma: float, K: int, anchor: Anchor) -> Any:
        kind, moved = self.shards.dtype, np.zeros(1, np.int64)
        X, H, w, gw = (np.array(np.broadcast_to(v, (1, self.d)), kind, order="C") for v in (x, h, *anchor[:2]))
        steps = Steps(self.member, X, X, H, np.full(1, gamma, kind), np.full(1, K))
        draws = self.shards.draws(self.seed, self.request.round, self.step, 1)
        self.shards.descend_anchored(steps, Anchors(w, gw, np.full(1, anchor[2]), moved), draws)(0, 1)
        self.gradients += 2 * self.shards.batch * K + int(moved[0]) * self.rows
        self.step += K
        return tuple(np.asarray(v[0], dtype=np.float64) for v in (X, w, gw))

    def _noisy(self, x: Array, reached: Any) -> Any:
        # the noise is added before h is computed, so that h is a function of what was sent
        if self.noise is None:
            return reached
        return self.noise(x, reached) if isinstance(reached, np.ndarray) else (self.noise(x, reached[0]), *reached[1:])

    def gradient(self, x: Array, where: Any = None) -> Array:
        """The full local gradient, where it is wanted."""
        if where is not None and not where:
            return np.zeros(self.d)
        self.gradients += self.rows
        return checked_gradient(self.oracle, x, self.i)

    def measured_gradient(self, x: Array) -> Array:
        """The full local gradient for a measurement: in double precision, whatever the precision of the data."""
        self.gradients += self.rows
        return checked_gradient(in_double(self.oracle), x, self.i)

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """v as the server will read it; its bytes are kept for the message."""
        codec = codec or self.codec
        if codec is None or isinstance(codec, Identity):
            self.sends.append((v, None))
            return v
        key = replace(self.key, vector=len(self.sends))
        data = codec.encode(np.asarray(v, dtype=np.float64), key)
        self.sends.append((codec.decode(data, len(v), key), data))
        return self.sends[-1][0]

    def value(self, x: Array) -> float:
        """The local value."""
        return float(in_double(self.oracle).value(x))
