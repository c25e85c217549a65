"""The client: commit counted work, drop the rest, work, and answer a repeated question with the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.codecs import Float32, Key
from proxskip.core.method import Method
from proxskip.flower import halves, messages
from proxskip.flower.messages import Answer, Ask
from proxskip.flower.worker import Worker
from proxskip.types import Array, InputError, Vectors


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Work that was sent but is not yet known to be counted."""

    ticket: int
    exchange: int
    memory: Vectors
    upload: bytes
    """The digest of what was sent."""
    asked: bytes
    """The seal of the ask."""
    answer: npt.NDArray[np.uint8]
    """The bytes of the answer, which are sent again if the question is."""


@dataclass(frozen=True)
class ClientState:
    """Everything a client must not lose; a driver keeps it on disk.

    Args:
        run: 16 bytes that no other run has.
        committed: the last ticket that this client has committed.
        memory: what it remembers, such as h.
        pending: work that was sent and is not known to be counted.
        seen: the last ticket that it was asked in.
    """

    run: bytes
    committed: int = 0
    memory: Mapping[str, Array] = field(default_factory=dict)
    pending: PendingWork | None = None
    seen: int = 0

    @cached_property
    def digest(self) -> bytes:
        """sha256 of the committed memory; zeros while there is none."""
        if not self.memory:
            return bytes(32)
        digest = hashlib.sha256(self.committed.to_bytes(8, "little"))
        for k in sorted(self.memory):
            digest.update(k.encode())
            digest.update(np.ascontiguousarray(self.memory[k]).tobytes())
        return digest.digest()


@dataclass(frozen=True)
class ClientNode:
    """One client of a federation.

    Args:
        method: the server's method.
        worker: the client's function and arithmetic.
        itemsize: 8, or 4 to send float32; h is then updated from the vector as sent.
        noise: ``noise(x, xhat)`` is sent instead of xhat, the point that local steps reached from x, and h is updated
            from it too. The client then does not report gradients.
        limit: the largest message in bytes.
    """

    method: Method
    worker: Worker
    itemsize: int = 8
    limit: int = messages.LIMIT
    noise: Callable[[Array, Array], Array] | None = None

    def __post_init__(self) -> None:
        if self.itemsize not in (4, 8):
            raise InputError(f"itemsize = {self.itemsize} must be 4 or 8.")
        self.worker.codec = Float32() if self.itemsize == 4 else None

    @cached_property
    def allowed(self) -> dict[str, Callable[..., Any]]:
        """The halves that an ask may name."""
        return halves.allowed(self.method)

    def step(self, state: ClientState, raw: bytes) -> tuple[ClientState, list[bytes]]:
        """Handle an ask and answer it; anything not meant for this client changes nothing."""
        try:
            ask = messages.decode(raw, self.worker.d, self.limit)
        except messages.WireError:
            return state, []
        if not isinstance(ask, Ask) or ask.run != state.run or ask.client != self.worker.i or ask.ticket < state.seen:
            return state, []
        p = state.pending
        if p is not None and p.ticket == ask.ticket:
            if p.exchange == ask.exchange:  # asked again: repeat the answer
                is_same = messages.seal_of(raw) == p.asked
                return state, [p.answer.tobytes() if is_same else self._answer(state, ask, messages.AHEAD)]
            if p.exchange + 1 != ask.exchange:
                return state, []
        elif ask.exchange:
            return state, []  # its first exchange was missed
        else:
            state, status = self._heed(state, ask)
            if status != messages.OK:
                return state, [self._answer(state, ask, status)]
        if self.noise is not None and ask.half in (halves.MEASURE, halves.INFORM):
            raise InputError("this client adds noise, so it does not report gradients; set measure=None at the server.")
        if ask.half not in self.allowed or (ask.settle and ask.settle not in self.allowed):
            return state, []
        return self._work(state, ask, messages.seal_of(raw))

    def _heed(self, state: ClientState, ask: Ask) -> tuple[ClientState, str]:
        """Act on the verdict on the last ticket that counted this client: commit, or drop pending work."""
        if ask.settle and ask.settle not in self.allowed:
            return state, messages.OK
        seen = replace(state, seen=ask.ticket, pending=None)
        p, outcome = state.pending, ask.outcome
        # the server was restored from an older state than this client has seen
        if state.committed > ask.counted:
            return replace(state, seen=ask.ticket), messages.AHEAD
        if ask.settle == halves.ADOPT and outcome and self.method.remembers:
            # even if its number is committed: an older copy of the server may have used it for another ticket
            return self._commit(seen, ask, self._start()), messages.OK
        if ask.counted == state.committed:
            return seen, messages.OK
        if not self.method.remembers:
            return replace(seen, committed=ask.counted), messages.OK
        # the digest tells this work from an earlier attempt at the same ticket, before a restore
        mine = p is not None and p.ticket == ask.counted and p.upload == ask.upload
        if p is None or not mine or outcome is None:
            return replace(state, seen=ask.ticket), messages.LOST
        return self._commit(seen, ask, {**self._kept(state), **p.memory}), messages.OK

    def _commit(self, state: ClientState, ask: Ask, memory: Vectors) -> ClientState:
        if ask.settle:
            memory = memory | self.worker.settle(self.allowed[ask.settle], memory, ask.outcome or ())
        return replace(state, committed=ask.counted, memory=memory)

    def _work(self, state: ClientState, ask: Ask, seal: bytes) -> tuple[ClientState, list[bytes]]:
        # a later exchange continues from the pending work of the earlier one
        pending = state.pending.memory if state.pending else {}
        worker = self.worker
        worker.noise = None if ask.half == halves.REPORT else self.noise
        if worker.noise is not None:
            halves.check_points(self.method, ask.half)
        key = Key(worker.seed, ask.round, worker.i, ask.place, ask.asked, ask.attempt, ask.exchange)
        half = self.allowed[ask.half]
        self._check_arguments(half, ask)
        before = {**self._kept(state), **pending}
        up, change = worker.run(half, before, ask.K, key, ask.down, dict(ask.own))
        value = worker.value(ask.down[0]) if ask.half == halves.MEASURE else 0.0
        answer = self._answer(state, ask, up=tuple(map(worker.as_sent, up)), value=value)
        upload = messages.upload_digest(up)
        kept = np.frombuffer(answer, np.uint8)
        work = PendingWork(ask.ticket, ask.exchange, {**pending, **change}, upload, seal, kept)
        return replace(state, pending=work), [answer]

    def _check_arguments(self, half: Callable[..., Any], ask: Ask) -> None:
        """Refuse an ask whose vectors and numbers the half does not take: the server runs another version of it."""
        try:
            signature(half).bind(self.worker, {}, ask.K, *ask.down, **ask.own)
        except TypeError as error:
            raise InputError(
                f'the half "{ask.half}" does not take {len(ask.down)} vectors: {error}; install the same method on '
                "both sides."
            ) from None

    def _answer(self, state: ClientState, ask: Ask, status: str = messages.OK, **content: Any) -> bytes:
        answer = Answer(
            ask.run, ask.ticket, ask.round, ask.exchange, ask.client, state.committed, state.digest, status=status,
            **{"up": (), **content},
        )  # fmt: skip
        return messages.encode(answer, self.limit)

    def _start(self) -> Vectors:
        return {k: np.zeros(self.worker.d) for k in self.method.remembers}

    def _kept(self, state: ClientState) -> Vectors:
        return dict(state.memory) if state.memory else self._start()
