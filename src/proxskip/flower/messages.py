"""The two messages as bytes: a sealed container (``results.sealed``) with the vectors and the fields by name.

Each different vector of an ask is in the message once; ``down`` and ``outcome`` say by their places which go to the
client half and which are the outcome of the counted ticket. In an answer a vector of numbers is plain, and a vector of
bytes is a codec's. A message is not trusted: every field has its type and range, or there is no message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proxskip.codecs.contract import Encoded
from proxskip.results import sealed
from proxskip.types import Array, InputError

LIMIT = 1 << 30
"""The default limit: bytes of a message with its numbers in float64."""
VECTORS = 8
"""The most vectors, and the most numbers of a client's own, in a message."""
OK, LOST, AHEAD = "ok", "lost", "ahead"
"""The status of an answer: work done, memory lost, memory newer than the server's."""
_NAME = re.compile(r"[.a-z][a-z0-9_I]{0,22}")


class WireError(InputError):
    """Received bytes are not a message."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The server's question to one client, with the verdict on the last ticket that counted it.

    Args:
        run: 16 bytes, the same in all messages of a run.
        ticket, exchange: what is asked.
        round: of the method.
        client: its number.
        half: the name of the client half.
        K: local steps.
        down: the vectors for the client half.
        counted: the last ticket that counted this client.
        settle: the half that settles it.
        outcome: its outcome; None if the client is known to have committed it.
        upload: the digest of the upload that was counted.
        own: the client's own numbers.
        attempt, place, asked: void attempts of the round so far, the client's place among those asked, and how many
            they are, where a codec depends on it.
    """

    run: bytes
    ticket: int
    round: int
    exchange: int
    client: int
    half: str
    K: int
    down: tuple[Array, ...]
    counted: int
    settle: str = ""
    outcome: tuple[Array, ...] | None = None
    upload: bytes = bytes(32)
    own: Mapping[str, float] = field(default_factory=dict)
    attempt: int = 0
    place: int = 0
    asked: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One client's answer.

    Args:
        run, ticket, round, exchange, client: those of the ask.
        base: the last ticket that this client has committed.
        digest: of its committed memory.
        up: its vectors; a plain one as an array, an encoded one as bytes.
        value: f_i(x) in a measurement.
        status: ``OK``, ``LOST`` or ``AHEAD``.
    """

    run: bytes
    ticket: int
    round: int
    exchange: int
    client: int
    base: int
    digest: bytes
    up: tuple[Array | Encoded, ...]
    value: float = 0.0
    status: str = OK


def encode(message: Ask | Answer, limit: int = LIMIT) -> bytes:
    """The bytes of a message.

    Args:
        message: an ask or an answer.
        limit: of its bytes; a longer one is refused.
    """
    raw = _packed_ask(message) if isinstance(message, Ask) else _packed_answer(message)
    if len(raw) > limit:
        raise InputError(
            f"a message of {len(raw)} bytes exceeds the limit of {limit}; raise the limit or shrink the model."
        )
    return raw


def _packed_ask(m: Ask) -> bytes:
    for name in (m.half, m.settle or "none", *m.own):
        _check_name(name)
    vectors: list[Array] = []
    down = [_place(v, vectors) for v in m.down]
    outcome = None if m.outcome is None else [_place(v, vectors) for v in m.outcome]
    if max(len(vectors), len(m.own)) > VECTORS:
        raise InputError(f"a message holds at most {VECTORS} vectors, and as many numbers of a client's own.")
    meta = {
        "kind": "ask", "run": m.run.hex(), "ticket": m.ticket, "round": m.round, "exchange": m.exchange,
        "client": m.client, "half": m.half, "K": m.K, "down": down, "counted": m.counted, "settle": m.settle,
        "outcome": outcome, "upload": m.upload.hex(), "own": {name: float(v) for name, v in m.own.items()},
        "attempt": m.attempt, "place": m.place, "asked": m.asked,
    }  # fmt: skip
    return b"".join(sealed.seal({str(k): _plain(v) for k, v in enumerate(vectors)}, meta))


def _packed_answer(m: Answer) -> bytes:
    if len(m.up) > VECTORS:
        raise InputError(f"a message holds at most {VECTORS} vectors.")
    vectors = {str(k): np.frombuffer(v, np.uint8) if isinstance(v, Encoded) else _plain(v) for k, v in enumerate(m.up)}
    meta = {
        "kind": "answer", "run": m.run.hex(), "ticket": m.ticket, "round": m.round, "exchange": m.exchange,
        "client": m.client, "base": m.base, "digest": m.digest.hex(), "value": float(m.value), "status": m.status,
    }  # fmt: skip
    return b"".join(sealed.seal(vectors, meta))


def _plain(v: Array) -> Array:
    return np.asarray(v, dtype=np.float64)


def _place(v: Array, vectors: list[Array]) -> int:
    """The place of this vector among those of a message, which it joins if it is new."""
    for k, u in enumerate(vectors):
        # compared bitwise: -0.0 differs from 0.0, and NaN equals NaN
        if u is v or np.array_equal(u.view(np.int64), v.view(np.int64)):
            return k
    vectors.append(v)
    return len(vectors) - 1


def decode(raw: Any, d: int, limit: int = LIMIT) -> Ask | Answer:
    """The message in these bytes; WireError with the reason if there is none.

    Args:
        raw: the bytes, which may be anything.
        d: the length of its vectors.
        limit: of its bytes, also with its numbers in float64.
    """
    if not isinstance(raw, bytes | bytearray | memoryview):
        raise WireError(f"a message is bytes, not {type(raw).__name__}.")
    if len(raw) > limit:
        raise WireError(f"the message has {len(raw)} bytes, over the limit of {limit}.")
    try:
        arrays, meta, _ = sealed.unseal(bytes(raw))
    except sealed.Damaged as error:
        raise WireError(f"the message {error}; install the same proxskip on both sides.") from None
    if len(arrays) > VECTORS or list(arrays) != [str(k) for k in range(len(arrays))]:
        raise WireError(f"the message names its {len(arrays)} vectors in a way of its own.")
    if 8 * d * len(arrays) > limit:
        raise WireError(f"{len(arrays)} vectors of length {d} are over the limit of {limit} bytes in float64.")
    vectors = tuple(arrays.values())
    kind = meta.pop("kind", None)
    if kind == "ask":
        return _ask(meta, vectors, d)
    if kind == "answer":
        return _answer(meta, vectors)
    raise WireError("the message is neither an ask nor an answer.")


def _ask(meta: dict[str, Any], vectors: tuple[sealed.AnyArray, ...], d: int) -> Ask:
    _check_fields(meta, _OF_AN_ASK)
    own = meta["own"]
    for name in (meta["half"], meta["settle"] or "none", *own):
        _check_name(name)
    if len(own) > VECTORS or not all(type(v) is float for v in own.values()):
        raise WireError("the message has something else than numbers as the client's own.")
    if not all(_is_plain(v, d) for v in vectors):
        raise WireError(f"the message has a vector that is not one of {d} numbers.")
    outcome = meta["outcome"]
    return Ask(**meta | {
        "run": _bytes(meta["run"], 16),
        "upload": _bytes(meta["upload"], 32),
        "down": _picked(vectors, meta["down"]),
        "outcome": None if outcome is None else _picked(vectors, outcome),
    })  # fmt: skip


def _answer(meta: dict[str, Any], vectors: tuple[sealed.AnyArray, ...]) -> Answer:
    _check_fields(meta, _OF_AN_ANSWER)
    up: list[Array | Encoded] = []
    for v in vectors:
        if v.dtype == np.uint8 and v.ndim == 1:
            up.append(v.data)  # not copied: a message may be as large as the limit
        elif v.dtype == np.float64 and v.ndim == 1:  # ``checks.read`` knows how long it must be
            up.append(v)
        else:
            raise WireError("the message has a vector that is neither one of numbers nor a codec's bytes.")
    if meta["status"] not in (OK, LOST, AHEAD):
        raise WireError("the message has no status of an answer.")
    digests = {"run": _bytes(meta["run"], 16), "digest": _bytes(meta["digest"], 32)}
    return Answer(**meta | digests, up=tuple(up))


_COUNTS = dict.fromkeys(("ticket", "round", "exchange", "client"), int)
_OF_AN_ASK: dict[str, Any] = _COUNTS | {
    "run": str, "half": str, "K": int, "down": list, "counted": int, "settle": str, "outcome": list | None,
    "upload": str, "own": dict, "attempt": int, "place": int, "asked": int,
}  # fmt: skip
_OF_AN_ANSWER: dict[str, Any] = _COUNTS | {"run": str, "base": int, "digest": str, "value": float, "status": str}


def _check_fields(meta: dict[str, Any], kinds: Mapping[str, Any]) -> None:
    """Refuse fields other than these, of other types, or counts out of range."""
    if meta.keys() != kinds.keys():
        raise WireError("the message has other fields than an ask or an answer of this version.")
    for name, kind in kinds.items():
        value = meta[name]
        is_count = kind is int
        if isinstance(value, bool) or not isinstance(value, kind) or (is_count and not 0 <= value < 2**63):
            raise WireError(f'the message has a wrong "{name}".')


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise WireError("the message names an invalid half.")


def _is_plain(v: sealed.AnyArray, d: int) -> bool:
    return bool(v.dtype == np.float64) and v.shape == (d,)


def _bytes(text: str, length: int) -> bytes:
    """Bytes from their hexadecimal digits."""
    if not re.fullmatch(rf"[0-9a-f]{{{2 * length}}}", text):
        raise WireError("the message has a wrong digest.")
    return bytes.fromhex(text)


def _picked(vectors: tuple[sealed.AnyArray, ...], places: list[Any]) -> tuple[Array, ...]:
    """The vectors at these places of a message."""
    if len(places) > VECTORS or not all(type(k) is int and 0 <= k < len(vectors) for k in places):
        raise WireError("the message refers to a vector that is missing.")
    return tuple(vectors[k] for k in places)


def seal_of(raw: bytes) -> bytes:
    """The sha256 with which a message ends."""
    return bytes(raw[-32:])


def contents(raw: bytes, d: int) -> tuple[int, int]:
    """The vectors in a message and the numbers in them, d in one from a codec; none in a message that is damaged."""
    try:
        vectors = sealed.unseal(raw).arrays.values()
    except sealed.Damaged:
        return 0, 0
    return len(vectors), sum(d if v.dtype == np.uint8 else int(v.size) for v in vectors)


def upload_digest(up: tuple[Array, ...]) -> bytes:
    """sha256 of what a client sent, as the server reads it."""
    digest = hashlib.sha256()
    for v in up:
        digest.update(np.ascontiguousarray(v).tobytes())
    return digest.digest()
