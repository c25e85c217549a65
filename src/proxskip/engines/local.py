"""What the clients of every engine do alike: local steps of all kinds, and sending through a codec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from proxskip.interfaces import Anchor, Pull, Request, Size, look
from proxskip.links.codecs import Codec, Identity, Key, read_back
from proxskip.problems.clients import checked_gradient
from proxskip.problems.federated import Problem
from proxskip.problems.oracles import is_random
from proxskip.randomness import anchor_coin, minibatch
from proxskip.types import Array, InputError


class Sender:
    """Counts what a client differentiates and sends; one object for each half that is run."""

    gradients = 0
    used_codec = False
    """Whether anything went through a codec."""
    step: Any = 0
    """Local steps of the half so far, which number its minibatches and coins: one, or one per member."""
    had_criterion = False
    """Whether ``until`` ended some of the steps."""
    _sent: tuple[tuple[Any, Size | None], ...] = ()

    @property
    def taken(self) -> Any:
        """The steps of all descents of the half, where a criterion ended some; None where they are the request's K."""
        return self.step if self.had_criterion else None

    def keys(self, vector: int) -> Sequence[Key]:
        """The keys of this client's (or of each member's) next message."""
        raise NotImplementedError

    def send(self, v: Any, codec: Codec | None = None) -> Any:
        """v as the server will read it."""
        if codec is None or isinstance(codec, Identity):
            self._sent += ((v, None),)  # numbered too: a federation may have a format of its own for it
            return v
        keys = self.keys(len(self._sent))
        received = self.read(v, codec, keys)
        d = int(received.shape[-1])
        bits = [codec.bits(d, key) for key in keys]
        size = Size(sum(bits), sum(-(-b // 8) for b in bits), sum(codec.floats(d, key) for key in keys))
        self._sent += ((received, size),)
        self.used_codec = True
        return received

    def read(self, v: Any, codec: Codec, keys: Sequence[Key]) -> Any:
        """What the server reads of v, one row for each key."""
        rows = np.atleast_2d(self.plain(v))
        rows = np.broadcast_to(rows, (len(keys), rows.shape[1]))
        sent = np.stack([read_back(codec, row, key) for row, key in zip(rows, keys, strict=True)])
        return sent[0] if np.ndim(v) == 1 and len(keys) == 1 else sent

    def plain(self, v: Any) -> Array:
        """v as an array with one row for each key."""
        return np.asarray(v)

    def sizes(self, up: Sequence[Any]) -> tuple[Size | None, ...]:
        """What each vector that goes up took; None for those that travel as they are."""
        return tuple(next((size for v, size in self._sent if v is u), None) for u in up)


class OneClient(Sender):
    """One client on ``(d,)`` vectors: its oracle, its number, and its place in the stream of minibatches.

    Args:
        problem: the problem, or a worker's part of it.
        i: the number of the client in it.
        seed: of the run.
        request: what the client is asked to do.
        place: of the client in the cohort.
        number0: the number of the part's first client.
    """

    def __init__(self, problem: Problem, i: int, seed: int, request: Request, place: int = 0, number0: int = 0) -> None:
        self.oracle: Any = problem.clients[i]
        self.i, self.seed, self.request, self.place = number0 + i, seed, request, place
        self.batch, self.rows = problem.batch, int(problem.rows_each[i])
        self.random = problem.is_random and is_random(self.oracle)

    def keys(self, vector: int) -> Sequence[Key]:
        """One."""
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
        """K times  z = y + momentum (y - y_before);  y <- z - gamma (g(z) - h + tau (z - centre))."""
        check_descent(pull, momentum, anchor, until)
        if anchor is not None:
            return self._descend_anchored(x, h, gamma, K, anchor)
        tau, centre = pull or (0.0, x)

        def step(z: Array, y: Array, k: int) -> Array | None:
            look(self.request.halt)
            slope = self._estimate(z) - h
            if pull is not None:
                slope = slope + tau * (z - centre)
            if until is not None and np.linalg.norm(slope) <= until * np.linalg.norm(z - centre):
                return None
            return z - gamma * slope

        y, taken = momentum_steps(step, x, K, momentum)
        if until is None:
            return y
        self.had_criterion = True
        return y, taken

    def _descend_anchored(self, x: Array, h: Array | float, gamma: float, K: int, anchor: Anchor) -> Any:
        """The estimator of L-SVRG: unbiased, and exact at the solution once the anchor is there."""
        w, gw, q = anchor
        for _ in range(K):
            look(self.request.halt)
            step, z = self.step, x
            if self.batch is None:  # both minibatches are all rows, and cancel; so would masks of dropout
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

    def _estimate(self, x: Array) -> Array:
        if self.batch is None:
            self.step += 1  # the coins of an anchor are numbered by it too
            if not self.random:
                return self.gradient(x)
            self.gradients += self.rows
            return self._sampled(x, None)
        self.gradients += self.batch
        return self._sampled(x, self._rows())

    def _rows(self) -> Any:
        """The next minibatch; they are numbered through a half, whatever its number of descents."""
        assert self.batch is not None
        rows = minibatch(self.seed, self.i, self.request.round, self.step, self.rows, self.batch)
        self.step += 1
        return rows

    def _sampled(self, x: Array, rows: Any) -> Array:
        if self.random:  # after ``_rows``: the masks of the k-th step are numbered k + 1
            key = (self.seed, self.i, self.request.round, self.step)
            return np.asarray(self.oracle.random_gradient(x, rows, key))
        return np.asarray(self.oracle.minibatch_gradient(x, rows))

    def gradient(self, x: Array, where: Any = None) -> Array:
        """The full local gradient, where it is wanted."""
        if where is not None and not where:
            return np.zeros(len(x))
        self.gradients += self.rows
        return checked_gradient(self.oracle, x, self.i)

    def own(self, values: Any) -> Any:
        """This client's entry."""
        return values[self.i] if isinstance(values, tuple) or np.ndim(values) else values


def check_descent(pull: Any, momentum: Any, anchor: Any, until: Any) -> None:
    """Refuse options that do not go together."""
    if until is not None and pull is None:
        raise InputError(
            "until compares with the distance from the centre of the pull, and there is no pull; give both."
        )
    if anchor is not None and (pull is not None or np.any(momentum)):
        raise InputError("a descent with an anchor has no pull and no momentum; leave them out.")


def key_of(request: Request, seed: int, client: int, place: int, vector: int) -> Key:
    """The key of a message in this exchange."""
    size = len(request.cohort) if request.asked is None else request.asked
    return Key(seed, request.round, client, request.first + place, size, request.attempt, request.exchange, vector)


def pull_to_zero(pull: Pull | None) -> float | None:
    """The strength of a pull to zero, which is more of the l2 term; 0 without a pull, None for one to another point."""
    if pull is None:
        return 0.0
    return float(pull[0]) if all(isinstance(v, float) for v in pull) and pull[1] == 0.0 else None


def momentum_steps(step: Callable[[Any, Any, int], Any], x: Any, K: int, momentum: Any) -> tuple[Any, int]:
    """K times  z = y + momentum (y - y_before);  y <- step(z, y, k).  The last y, and the number of steps.

    Args:
        step: None where it ends the steps at z.
    """
    y = before = x
    for k in range(K):
        z = y if isinstance(momentum, float) and momentum == 0.0 else y + momentum * (y - before)
        new = step(z, y, k)
        if new is None:
            return z, k + 1
        before, y = y, new
    return y, K


def pulled_steps(
    one_step: Callable[[Any, Any, Any, Any], Any],
    x: Any,
    h: Any,
    gamma: Any,
    K: Any,
    pull: Pull | None,
    momentum: Any,
) -> Any:
    """Steps with momentum and a pull, made of plain ones: the pull is a shift of h that is new in every step.

    Args:
        one_step: ``(z, h, gamma, active) -> z - gamma (g(z) - h)``; ``active`` is one number or one per member, 1
            where the step is taken and 0 where that member's K is over.
    """

    def step(z: Any, y: Any, k: int) -> Any:
        shift = h if pull is None else h - pull[0] * (z - pull[1])
        active = (np.asarray(K) > k).astype(np.int64)
        new = one_step(z, shift, gamma, active)
        return new if np.all(active) else np.where(active[:, None] > 0, new, y)

    return momentum_steps(step, x, int(np.max(K)), momentum)[0]


def no_half(*_: Any) -> Any:
    """In the place of a half where local steps are taken outside of one."""
    raise AssertionError
