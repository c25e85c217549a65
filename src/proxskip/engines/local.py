"""What clients do alike on every engine: local steps of all kinds, and sending through a codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.codecs import Codec, Identity, Key, read_back
from proxskip.core.engine import Request, Size, look
from proxskip.core.exchange import Anchor, Pull, Sent
from proxskip.problems.clients import checked_gradient, expansion
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import is_random
from proxskip.support.randomness import anchor_coin, minibatch
from proxskip.types import Array, Column, Counts, Indices, InputError, Stack


class Sender:
    """Counts what a client differentiates and sends; one object per half that is run."""

    gradients = 0
    used_codec = False
    """Whether anything went through a codec."""
    step: Counts = 0
    """Local steps so far, which number minibatches and coins; one number, or one per member."""
    had_criterion = False
    """Whether ``until`` was used: the steps taken are then ``step``, and not the request's K."""
    _sent: tuple[tuple[Stack, Size | None], ...] = ()

    def keys(self, vector: int) -> Sequence[Key]:
        """The keys of the next message of this client, or of each member."""
        raise NotImplementedError

    def send(self, v: Stack, codec: Codec | None = None) -> Stack:
        if codec is None or isinstance(codec, Identity):
            self._sent += ((v, None),)  # numbered too: a federation may encode it
            return v
        keys = self.keys(len(self._sent))
        received = self.read(v, codec, keys)
        d = int(received.shape[-1])
        bits = [codec.bits(d, key) for key in keys]
        size = Size(sum(bits), sum(-(-b // 8) for b in bits), sum(codec.floats(d, key) for key in keys))
        self._sent += ((received, size),)
        self.used_codec = True
        return received

    def read(self, v: Stack, codec: Codec, keys: Sequence[Key]) -> Stack:
        """What the server reads of v, one row per key."""
        rows = np.atleast_2d(self.plain(v))
        rows = np.broadcast_to(rows, (len(keys), rows.shape[1]))
        sent = np.stack([read_back(codec, row, key) for row, key in zip(rows, keys, strict=True)])
        return sent[0] if np.ndim(v) == 1 and len(keys) == 1 else sent

    def plain(self, v: Stack) -> Array:
        """v as a numpy array with one row per key."""
        return np.asarray(v)

    def expansion(self, x: Stack) -> Stack:
        """Value, gradient and Hessian, on engines that have them."""
        raise InputError('this engine computes no Hessians; use engine="cpu".')

    def sizes(self, up: Sequence[Stack]) -> tuple[Size | None, ...]:
        """The size of each vector sent up; None for plain ones."""
        return tuple(next((size for v, size in self._sent if v is u), None) for u in up)


class OneClient(Sender):
    """One client on ``(d,)`` vectors: its function, its number, and its minibatches.

    Args:
        problem: the problem, or a worker's part of it.
        i: the number of the client in it.
        seed: of the run.
        request: what the client is asked to do.
        place: of the client in the cohort.
        number0: the number of the part's first client.
    """

    step: int = 0

    def __init__(self, problem: Problem, i: int, seed: int, request: Request, place: int = 0, number0: int = 0) -> None:
        self.oracle: Any = problem.clients[i]
        self.i = number0 + i
        self.seed = seed
        self.request = request
        self.place = place
        self.batch, self.rows = problem.batch, int(problem.rows_each[i])
        self.random = problem.is_random and is_random(self.oracle)

    def keys(self, vector: int) -> Sequence[Key]:
        return (key_of(self.request, self.seed, self.i, self.place, vector),)

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
        check_descent(self.request, K, pull, momentum, anchor, until)
        if anchor is not None:
            return self._descend_anchored(x, h, gamma, K, anchor)
        y = before = x
        taken = 0
        while taken < K:
            look(self.request.halt)
            taken += 1
            z = y if momentum == 0.0 else y + momentum * (y - before)
            slope = self.estimate(z) - h
            if pull is not None:
                strength, centre = pull
                slope = slope + strength * (z - centre)
                if until is not None and np.linalg.norm(slope) <= until * np.linalg.norm(z - centre):
                    y = z
                    break
            before, y = y, z - gamma * slope
        if until is None:
            return y
        self.had_criterion = True
        return y, taken

    def _descend_anchored(self, x: Array, h: Array | float, gamma: float, K: int, anchor: Anchor) -> tuple[Array, ...]:
        """L-SVRG's estimator: unbiased, and exact at the solution once the anchor is there."""
        w, gw, q = anchor
        for _ in range(K):
            look(self.request.halt)
            step, z = self.step, x
            if self.batch is None:  # both minibatches are all rows, and cancel
                self.step += 1
                g = full = self.gradient(z)
            else:
                rows = self._rows()
                self.gradients += 2 * self.batch
                g = self._sampled(z, rows) - self._sampled(w, rows) + gw
            x = z - gamma * (g - h)
            if anchor_coin(self.seed, self.i, self.request.round, step) < q:
                w, gw = z, full if self.batch is None else self.gradient(z)
        return x, w, gw

    def estimate(self, x: Array) -> Array:
        """The gradient of the next local step at x, counted."""
        if self.batch is None:
            self.step += 1  # also numbers the coins of an anchor
            if not self.random:
                return self.gradient(x)
            self.gradients += self.rows
            return self._sampled(x, None)
        self.gradients += self.batch
        return self._sampled(x, self._rows())

    def _rows(self) -> Indices:
        """The next minibatch; they are numbered through the half, across its descents."""
        assert self.batch is not None
        rows = minibatch(self.seed, self.i, self.request.round, self.step, self.rows, self.batch)
        self.step += 1
        return rows

    def _sampled(self, x: Array, rows: Indices | None) -> Array:
        if self.random:  # ``_rows`` came before: the masks of step k are numbered k + 1
            key = (self.seed, self.i, self.request.round, self.step)
            return np.asarray(self.oracle.random_gradient(x, rows, key))
        return np.asarray(self.oracle.minibatch_gradient(x, rows))

    def gradient(self, x: Array, where: float | None = None) -> Array:
        if where is not None and not where:
            return np.zeros(len(x))
        self.gradients += self.rows
        return checked_gradient(self.oracle, x, self.i)

    def expansion(self, x: Array) -> Array:
        self.gradients += self.rows
        return expansion(self.oracle, x, self.i)

    def own(self, values: Any) -> Any:
        return values[self.i] if isinstance(values, tuple) or np.ndim(values) else values


def check_descent(
    request: Request, K: Counts, pull: Pull | None, momentum: Column, anchor: Anchor | None, until: Column | None
) -> None:
    """Refuse local steps of which nobody said how many, and options that cannot be combined."""
    asked_for_none = isinstance(request.K, int) and request.K == 0
    if asked_for_none and request.half is not no_half and not np.any(K):
        raise InputError("the client half descends, but exchange was given no K; call exchange(half, ..., K=...).")
    if until is not None and pull is None:
        raise InputError("until needs a pull, because it compares with the distance from its centre; give both.")
    if anchor is not None and (pull is not None or np.any(momentum)):
        raise InputError("an anchor cannot be combined with a pull or momentum; leave them out.")


def key_of(request: Request, seed: int, client: int, place: int, vector: int) -> Key:
    """The key of a message in this exchange."""
    size = len(request.cohort) if request.asked is None else request.asked
    return Key(seed, request.round, client, request.first + place, size, request.attempt, request.exchange, vector)


def pull_to_zero(pull: Pull | None) -> float | None:
    """The strength of a pull to zero (an additional l2 term); 0 without a pull, None for a pull elsewhere."""
    if pull is None:
        return 0.0
    return float(pull[0]) if all(isinstance(v, float) for v in pull) and pull[1] == 0.0 else None


def no_half(*_: object) -> Sent:
    """A placeholder half, for local steps outside of one."""
    raise AssertionError
