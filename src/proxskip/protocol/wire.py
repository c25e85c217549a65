"""The two messages as bytes: a fixed header, each client's own numbers, the vectors, and a sha256 over all of it.

    offset  bytes
    0       4      b"PSKM"
    4       1      format version, 2
    5       1      kind: 1 an ask (server to client), 2 an answer (client to server)
    6       1      answer: which payload vectors are a codec's bytes, one bit each; the others are plain
    7       1      status of an answer: 0 work done, 1 memory lost, 2 memory newer than the server's
    8       16     run id
    24      8      ticket
    32      8      round of the method
    40      8      ask: the last ticket that counted this client; answer: the last ticket this client committed
    48      8      value of an answer (float64)
    56      4      exchange within the ticket
    60      4      client
    64      4      local steps K
    68      4      d, the length of every vector
    72      1      vectors in the payload, at most 8
    73      1      ask: the client's own numbers, at most 8
    74      6      zero
    80      8      ask: which payload vectors go down to the client half, one byte each, 255 for none
    88      8      ask: which of them are the outcome of the counted ticket, likewise
    96      24     ask: name of the client half, ASCII, padded with zeros
    120     24     ask: name of the settling half of the counted ticket, likewise
    144     32     ask: digest of the upload that was counted; answer: digest of the client's committed memory
    176     12     ask: void attempts of the round so far, the client's place among those asked, how many they are
    188     32     bytes of each payload vector, zero beyond the last
    220     4      zero
    224     32     sha256 of bytes 0 to 223 and of everything from byte 256 on
    256     ...    own numbers (24 bytes of name, a float64 each), then the vectors

A plain vector is d little-endian float64. Nothing is allocated before the length agrees with the header, and nothing is
used before the sha256 agrees.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from proxskip.types import Array, InputError

MAGIC, VERSION = b"PSKM", 2
HEAD = struct.Struct("<4sBBBB16sQQQdIIIIBB6s8s8s24s24s32sIII8I4s")
HEADER = HEAD.size + 32
OWN = struct.Struct("<24sd")
COUNT = 72
"""Where the number of vectors stands."""
LIMIT = 1 << 30
"""The default limit: bytes of a message with its numbers in float64."""
VECTORS = 8
ASK, ANSWER = 1, 2
OK, LOST, AHEAD = 0, 1, 2
NONE = 255
_NAME = re.compile(rb"[.a-z][a-z0-9_I]{0,22}")


class WireError(InputError):
    """Received bytes are not a message."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The server's question to one client, with the verdict on the last ticket that counted it."""

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
    """None if the client is known to have committed the counted ticket."""
    upload: bytes = bytes(32)
    own: Mapping[str, float] = field(default_factory=dict)
    attempt: int = 0
    place: int = 0
    asked: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One client's answer."""

    run: bytes
    ticket: int
    round: int
    exchange: int
    client: int
    base: int
    digest: bytes
    up: tuple[Array | bytes, ...]
    """A plain vector as an array, an encoded one as bytes."""
    value: float = 0.0
    status: int = OK


def encode(message: Ask | Answer, limit: int = LIMIT) -> bytes:
    """The bytes of a message; refused if they exceed the limit."""
    return _encode_ask(message, limit) if isinstance(message, Ask) else _encode_answer(message, limit)


def _encode_ask(m: Ask, limit: int) -> bytes:
    for name in (m.half, m.settle or "none", *m.own):
        _name(name.encode())
    vectors, down, outcome = _shared(m)
    if len(m.own) > VECTORS:
        raise InputError(f"a message holds at most {VECTORS} numbers per client; send fewer.")
    d, parts = len(vectors[0]) if vectors else 0, [_plain(v) for v in vectors]
    head = HEAD.pack(
        MAGIC, VERSION, ASK, 0, OK, m.run, m.ticket, m.round, m.counted, 0.0, m.exchange, m.client, m.K, d,
        len(parts), len(m.own), b"", down, outcome, m.half.encode(), m.settle.encode(), m.upload,
        m.attempt, m.place, m.asked, *_lengths(parts), b"",
    )  # fmt: skip
    own = b"".join(OWN.pack(name.encode(), value) for name, value in m.own.items())
    return _sealed(head, own, parts, d, limit)


def _encode_answer(m: Answer, limit: int) -> bytes:
    coded = sum(1 << k for k, v in enumerate(m.up) if isinstance(v, bytes))
    parts = [v if isinstance(v, bytes) else _plain(v) for v in m.up]
    d = next((len(v) for v in m.up if not isinstance(v, bytes)), 0)
    head = HEAD.pack(
        MAGIC, VERSION, ANSWER, coded, m.status, m.run, m.ticket, m.round, m.base, m.value, m.exchange, m.client,
        0, d, len(parts), 0, b"", b"", b"", b"", b"", m.digest, 0, 0, 0, *_lengths(parts), b"",
    )  # fmt: skip
    return _sealed(head, b"", parts, d, limit)


def _plain(v: Array) -> bytes:
    return np.ascontiguousarray(v, dtype="<f8").tobytes()


def _lengths(parts: list[bytes]) -> list[int]:
    if len(parts) > VECTORS:
        raise InputError(f"a message holds at most {VECTORS} vectors.")
    return [len(part) for part in parts] + [0] * (VECTORS - len(parts))


def _sealed(head: bytes, own: bytes, parts: list[bytes], d: int, limit: int) -> bytes:
    size = HEADER + len(own) + max(sum(map(len, parts)), len(parts) * d * 8)
    if size > limit:
        raise InputError(
            f"a message of {size} bytes exceeds the limit of {limit}; raise the limit or shrink the model."
        )
    return b"".join((head, _seal(head, own, *parts), own, *parts))


def _shared(ask: Ask) -> tuple[list[Array], bytes, bytes]:
    """Each different vector once, and the places of the half's and the outcome's vectors."""
    vectors: list[Array] = []

    def place(v: Array) -> int:
        for k, u in enumerate(vectors):
            # compared bitwise: -0.0 differs from 0.0, and NaN equals NaN
            if u is v or np.array_equal(u.view(np.int64), v.view(np.int64)):
                return k
        vectors.append(v)
        return len(vectors) - 1

    down = bytes(place(v) for v in ask.down)
    outcome = b"" if ask.outcome is None else bytes(place(v) for v in ask.outcome)
    if len(vectors) > VECTORS or max(len(down), len(outcome)) > VECTORS:
        raise InputError(f"a message holds at most {VECTORS} vectors.")
    # no outcome differs from an outcome without vectors
    heard = bytes([NONE - 1]) if ask.outcome is None else b""
    return vectors, down.ljust(8, b"\xff"), (outcome + heard).ljust(8, b"\xff")


def decode(raw: bytes, d: int, limit: int = LIMIT) -> Ask | Answer:
    """The message in these bytes, with vectors of length d; WireError with the reason if there is none."""
    if not isinstance(raw, (bytes, bytearray, memoryview)):
        raise WireError(f"a message is bytes, not {type(raw).__name__}.")
    if len(raw) > limit:
        raise WireError(f"the message has {len(raw)} bytes, over the limit of {limit}.")
    if len(raw) < HEADER:
        raise WireError(f"the message has {len(raw)} bytes, fewer than its header's {HEADER}.")
    head = bytes(raw[: HEAD.size])
    (magic, version, kind, coded, status, run, ticket, round, last, value, exchange, client, K, length, vectors, own,
     zeros, down, outcome, half, settle, digest, attempt, place, asked, *lengths, end) = HEAD.unpack(head)  # fmt: skip
    if magic != MAGIC or version != VERSION or kind not in (ASK, ANSWER) or (zeros + end).strip(b"\0"):
        raise WireError("the header is not that of a message of this version; install the same proxskip on both sides.")
    if vectors > VECTORS or own > VECTORS or status > AHEAD or (kind == ASK and coded) or coded >> vectors:
        raise WireError(f"the header says {vectors} vectors, {own} numbers and status {status}.")
    if kind == ANSWER and (K or own or attempt or place or asked or (down + outcome + half + settle).strip(b"\0")):
        raise WireError("the header of an answer holds fields of an ask.")
    start = HEADER + own * OWN.size
    if len(raw) != start + sum(lengths[:vectors]) or any(lengths[vectors:]):
        raise WireError(f"the message has {len(raw)} bytes and its header says {start + sum(lengths)}.")
    plain = [k for k in range(vectors) if not coded >> k & 1]
    if any(lengths[k] != 8 * length for k in plain):
        raise WireError(f"a plain vector of length {length} has another number of bytes than {8 * length}.")
    if HEADER + vectors * max(length, d if coded else 0) * 8 > limit:
        raise WireError(f"{vectors} vectors of length {max(length, d)} are over the limit of {limit} bytes in float64.")
    payload = memoryview(raw)[HEADER:]
    if _seal(head, payload) != seal_of(raw):
        raise WireError("the checksum does not match the message.")
    if plain and length != d:
        raise WireError(f"its vectors have length {length} instead of {d}.")
    rows = _rows(raw, start, lengths[:vectors], coded)
    if kind == ANSWER:
        return Answer(run, ticket, round, exchange, client, last, digest, rows, value, status)
    heard = outcome[0] == NONE - 1
    return Ask(
        run, ticket, round, exchange, client, _name(half), K, _picked(rows, down), last,
        _name(settle) if settle.strip(b"\0") else "", None if heard else _picked(rows, outcome), digest,
        _own(payload, own), attempt, place, asked,
    )  # fmt: skip


def _rows(raw: bytes, start: int, lengths: list[int], coded: int) -> tuple[Array | bytes, ...]:
    """The vectors: arrays that outlive the message, or a codec's bytes."""
    rows: list[Array | bytes] = []
    for k, n in enumerate(lengths):
        part = memoryview(raw)[start : start + n]
        rows.append(bytes(part) if coded >> k & 1 else np.frombuffer(part, dtype="<f8").astype(np.float64))
        start += n
    return tuple(rows)


def _own(payload: memoryview, count: int) -> dict[str, float]:
    pairs = (OWN.unpack_from(payload, k * OWN.size) for k in range(count))
    return {_name(name): value for name, value in pairs}


def seal_of(raw: bytes) -> bytes:
    """The sha256 of a decoded message."""
    return bytes(raw[HEAD.size : HEADER])


def upload_digest(up: tuple[Array, ...]) -> bytes:
    """sha256 of what a client sent, as the server reads it."""
    digest = hashlib.sha256()
    for v in up:
        digest.update(np.ascontiguousarray(v).tobytes())
    return digest.digest()


def _seal(head: bytes, *payload: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(head)
    for part in payload:
        digest.update(part)
    return digest.digest()


@lru_cache(maxsize=256)
def _name(padded: bytes) -> str:
    name = padded.rstrip(b"\0")
    if not _NAME.fullmatch(name):
        raise WireError("the header holds an invalid name of a half.")
    return name.decode("ascii")


def _picked(rows: tuple[Array | bytes, ...], places: bytes) -> tuple[Array, ...]:
    used = places.rstrip(b"\xff")
    if any(k >= len(rows) for k in used):
        raise WireError("the header refers to a vector that is missing.")
    return tuple(rows[k] for k in used)  # type: ignore[misc]  # an ask's vectors are plain
