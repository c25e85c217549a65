"""The two messages as bytes: a fixed header, raw little-endian vectors, and a sha256 over both.

    offset  bytes
    0       4      b"PSKM"
    4       1      format version, 1
    5       1      kind: 1 an ask (server to client), 2 an answer (client to server)
    6       1      bytes a number: 4 or 8 (IEEE 754, little-endian)
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
    73      7      zero
    80      8      ask: which payload vectors go down to the client half, one byte each, 255 for none
    88      8      ask: which of them are the outcome of the counted ticket, likewise
    96      24     ask: name of the client half, ASCII, padded with zeros
    120     24     ask: name of the settling half of the counted ticket, likewise
    144     32     ask: digest of the upload that was counted; answer: digest of the client's committed memory
    176     32     sha256 of bytes 0 to 175 and of the payload
    208     ...    vectors x d x bytes a number

Nothing is allocated before the length agrees with the header, nothing is used before the sha256 agrees.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from proxskip.types import Array, InputError

MAGIC, VERSION = b"PSKM", 1
HEAD = struct.Struct("<4sBBBB16sQQQdIIIIB7s8s8s24s24s32s")
HEADER = HEAD.size + 32
COUNT = 72
"""Where the number of vectors stands."""
LIMIT = 1 << 30
"""Bytes of the largest message with its numbers in float64, unless a caller says less."""
VECTORS = 8
ASK, ANSWER = 1, 2
OK, LOST, AHEAD = 0, 1, 2
NONE = 255
_NAME = re.compile(rb"[.a-z][a-z_I]{0,22}")


class WireError(InputError):
    """Received bytes are not a message; the sentence says why."""


class Misfit(WireError):
    """A sound answer with vectors of another length than the model's; ``answer`` has the rest of it."""

    def __init__(self, answer: Answer, said: str) -> None:
        super().__init__(said)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Ask:
    """What the server wants of one client, with the verdict on the last ticket that counted it."""

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
    """None where the server knows that the client has committed the counted ticket."""
    upload: bytes = bytes(32)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client sends up."""

    run: bytes
    ticket: int
    round: int
    exchange: int
    client: int
    base: int
    digest: bytes
    up: tuple[Array, ...]
    value: float = 0.0
    status: int = OK
    itemsize: int = 8


def encode(message: Ask | Answer, limit: int = LIMIT) -> bytes:
    """The bytes of a message; refused with its size where they exceed the limit."""
    m = message
    if isinstance(m, Ask):
        for name in (m.half, m.settle or "none"):
            _name(name.encode())
        vectors, down, outcome = _shared(m)
        d = len(vectors[0]) if vectors else 0
        head = HEAD.pack(
            MAGIC, VERSION, ASK, 8, OK, m.run, m.ticket, m.round, m.counted, 0.0, m.exchange, m.client, m.K, d,
            len(vectors), b"", down, outcome, m.half.encode(), m.settle.encode(), m.upload,
        )  # fmt: skip
        dtype = "<f8"
    else:
        vectors, dtype = list(m.up), f"<f{m.itemsize}"
        d = len(vectors[0]) if vectors else 0
        head = HEAD.pack(
            MAGIC, VERSION, ANSWER, m.itemsize, m.status, m.run, m.ticket, m.round, m.base, m.value, m.exchange,
            m.client, 0, d, len(vectors), b"", b"", b"", b"", b"", m.digest,
        )  # fmt: skip
    size = HEADER + len(vectors) * d * 8
    if size > limit:
        raise InputError(
            f"a message of {size} bytes is over the limit of {limit}; raise the limit or shrink the model."
        )
    payload = b"".join(np.ascontiguousarray(v, dtype=dtype).tobytes() for v in vectors)
    return b"".join((head, _seal(head, payload), payload))


def _shared(ask: Ask) -> tuple[list[Array], bytes, bytes]:
    """Each different vector once, and where the half and the outcome find theirs."""
    vectors: list[Array] = []

    def place(v: Array) -> int:
        for k, u in enumerate(vectors):
            if u is v or np.array_equal(u.view(np.int64), v.view(np.int64)):
                return k
        vectors.append(v)
        return len(vectors) - 1

    down = bytes(place(v) for v in ask.down)
    outcome = b"" if ask.outcome is None else bytes(place(v) for v in ask.outcome)
    if len(vectors) > VECTORS or max(len(down), len(outcome)) > VECTORS:
        raise InputError(f"a message holds at most {VECTORS} vectors.")
    heard = bytes([NONE - 1]) if ask.outcome is None else b""
    return vectors, down.ljust(8, b"\xff"), (outcome + heard).ljust(8, b"\xff")


def decode(raw: bytes, d: int, limit: int = LIMIT) -> Ask | Answer:
    """The message in these bytes, whose vectors have length d; WireError with the reason where there is none."""
    if not isinstance(raw, (bytes, bytearray, memoryview)):
        raise WireError(f"a message is bytes, not {type(raw).__name__}.")
    if len(raw) > limit:
        raise WireError(f"the message has {len(raw)} bytes, over the limit of {limit}.")
    if len(raw) < HEADER:
        raise WireError(f"the message has {len(raw)} bytes, fewer than its header's {HEADER}.")
    head = bytes(raw[: HEAD.size])
    (magic, version, kind, itemsize, status, run, ticket, round, last, value, exchange, client, K, length, vectors,
     zeros, down, outcome, half, settle, digest) = HEAD.unpack(head)  # fmt: skip
    if magic != MAGIC or version != VERSION or kind not in (ASK, ANSWER) or zeros.strip(b"\0"):
        raise WireError("the header is not that of a message of this version.")
    if itemsize not in (4, 8) or (kind == ASK and itemsize != 8):
        raise WireError(f"the header says {itemsize} bytes a number.")
    if vectors > VECTORS or status > AHEAD:
        raise WireError(f"the header says {vectors} vectors and status {status}.")
    if len(raw) != HEADER + vectors * length * itemsize:
        raise WireError(f"the message has {len(raw)} bytes and its header says {vectors} x {length} x {itemsize}.")
    if HEADER + vectors * length * 8 > limit:
        raise WireError(f"{vectors} vectors of length {length} are over the limit of {limit} bytes in float64.")
    payload = memoryview(raw)[HEADER:]
    if _seal(head, payload) != seal_of(raw):
        raise WireError("the checksum does not fit the message.")
    if vectors and length != d:
        said = f"its vectors have length {length} instead of {d}"
        if kind == ASK:
            raise WireError(f"{said}.")
        raise Misfit(Answer(run, ticket, round, exchange, client, last, digest, (), value, status, itemsize), said)
    flat = np.frombuffer(payload, dtype=f"<f{itemsize}").astype(np.float64)  # a copy: it outlives the message
    rows = tuple(flat.reshape(vectors, d)) if vectors else ()
    if kind == ANSWER:
        return Answer(run, ticket, round, exchange, client, last, digest, rows, value, status, itemsize)
    heard = outcome[0] == NONE - 1
    return Ask(
        run, ticket, round, exchange, client, _name(half), K, _picked(rows, down), last,
        _name(settle) if settle.strip(b"\0") else "", None if heard else _picked(rows, outcome), digest,
    )  # fmt: skip


def seal_of(raw: bytes) -> bytes:
    """The sha256 in a message that was decoded."""
    return bytes(raw[HEAD.size : HEADER])


def upload_digest(up: tuple[Array, ...]) -> bytes:
    """sha256 of what a client sent up, as the other side reads it."""
    digest = hashlib.sha256()
    for v in up:
        digest.update(np.ascontiguousarray(v).tobytes())
    return digest.digest()


def _seal(head: bytes, payload: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(head)
    digest.update(payload)
    return digest.digest()


@lru_cache(maxsize=256)
def _name(padded: bytes) -> str:
    name = padded.rstrip(b"\0")
    if not _NAME.fullmatch(name):
        raise WireError("the header holds a name that no half has.")
    return name.decode("ascii")


def _picked(rows: tuple[Array, ...], places: bytes) -> tuple[Array, ...]:
    used = places.rstrip(b"\xff")
    if any(k >= len(rows) for k in used):
        raise WireError("the header points beyond the vectors that came.")
    return tuple(rows[k] for k in used)
