"""The two messages as bytes: a sealed container (``results.sealed``) with the vectors and the fields by name.

Each different vector of an ask is in the message once; ``down`` and ``outcome`` say by their places which go to the
client half and which are the outcome of the counted ticket. In an answer a vector of numbers is plain, and a vector of
bytes is a codec's. A message is not trusted: every field has its type and range, or there is no message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
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
    kind = type(message)
    meta = {name: _plain(getattr(message, name)) for name in FIELDS[kind]}
    vectors: list[Array | Encoded] = []
    if isinstance(message, Ask):
        meta["down"] = _places(message.down, vectors)
        meta["outcome"] = None if message.outcome is None else _places(message.outcome, vectors)
    else:
        vectors += message.up
    if len(vectors) > VECTORS:
        raise InputError(f"a message holds at most {VECTORS} vectors, not {len(vectors)}.")
    _check(kind, meta)
    arrays = {str(k): _array(v) for k, v in enumerate(vectors)}
    raw = b"".join(sealed.seal(arrays, meta | {"kind": kind.__name__.lower()}))
    if len(raw) > limit:
        raise InputError(
            f"a message of {len(raw)} bytes exceeds the limit of {limit}; raise the limit or shrink the model."
        )
    return raw


def _plain(value: Any) -> Any:
    """A field for JSON: digests have hexadecimal digits, and a client's own numbers are floats."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: float(v) for name, v in value.items()}
    return value


def _array(v: Array | Encoded) -> sealed.AnyArray:
    return np.frombuffer(v, np.uint8) if isinstance(v, Encoded) else np.asarray(v, dtype=np.float64)


def _places(new: Iterable[Array], vectors: list[Any]) -> list[int]:
    """The places of these vectors among those of a message, which they join where they are not among them."""
    places = []
    for v in new:
        # compared bitwise: -0.0 differs from 0.0, and NaN equals NaN
        same = (k for k, u in enumerate(vectors) if u is v or np.array_equal(u.view(np.int64), v.view(np.int64)))
        places.append(next(same, len(vectors)))
        if places[-1] == len(vectors):
            vectors.append(v)
    return places


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
    name = meta.pop("kind", None)
    kind = next((kind for kind in FIELDS if kind.__name__.lower() == name), None)
    if kind is None:
        raise WireError("the message is neither an ask nor an answer.")
    _check(kind, meta)
    for name in meta.keys() & DIGESTS:
        meta[name] = bytes.fromhex(meta[name])
    vectors = tuple(arrays.values())
    if kind is Answer:
        return Answer(**meta, up=tuple(map(_sent, vectors)))
    if not all(v.dtype == np.float64 and v.shape == (d,) for v in vectors):
        raise WireError(f"the message has a vector that is not one of {d} numbers.")
    for name in ("down", "outcome"):
        if meta[name] is not None:
            meta[name] = _picked(vectors, meta[name])
    return Ask(**meta)


def _sent(v: sealed.AnyArray) -> Array | Encoded:
    """A vector of an answer, of a length that ``checks.read`` compares."""
    if v.dtype == np.uint8 and v.ndim == 1:
        return v.data  # not copied: a message may be as large as the limit
    if v.dtype == np.float64 and v.ndim == 1:
        return v
    raise WireError("the message has a vector that is neither one of numbers nor a codec's bytes.")


def _picked(vectors: tuple[sealed.AnyArray, ...], places: list[int]) -> tuple[Array, ...]:
    """The vectors at these places of a message."""
    if any(k >= len(vectors) for k in places):
        raise WireError("the message refers to a vector that is missing.")
    return tuple(vectors[k] for k in places)


# -- the fields --------------------------------------------------------------------------------------------------------
def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_hex(value: Any, digits: int) -> bool:
    return isinstance(value, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", value) is not None


def _is_list_of_places(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= VECTORS and all(map(_is_count, value))


def _are_numbers(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= VECTORS
        and all(map(_is_name, value))
        and all(type(v) is float for v in value.values())
    )


_COMMON: dict[str, Callable[[Any], bool]] = {
    "run": partial(_is_hex, digits=32),
    "ticket": _is_count,
    "round": _is_count,
    "exchange": _is_count,
    "client": _is_count,
}
FIELDS: dict[type[Ask | Answer], dict[str, Callable[[Any], bool]]] = {
    Ask: _COMMON
    | {
        "half": _is_name,
        "K": _is_count,
        "down": _is_list_of_places,
        "counted": _is_count,
        "settle": lambda value: value == "" or _is_name(value),
        "outcome": lambda value: value is None or _is_list_of_places(value),
        "upload": partial(_is_hex, digits=64),
        "own": _are_numbers,
        "attempt": _is_count,
        "place": _is_count,
        "asked": _is_count,
    },
    Answer: _COMMON
    | {
        "base": _is_count,
        "digest": partial(_is_hex, digits=64),
        "value": lambda value: isinstance(value, float),
        "status": lambda value: value in (OK, LOST, AHEAD),
    },
}
"""The fields of the JSON in each message, and what they must be."""
DIGESTS = {"run", "upload", "digest"}
"""The fields that are bytes, and hexadecimal digits in JSON."""


def _check(kind: type[Ask | Answer], meta: Mapping[str, Any]) -> None:
    """Refuse other fields than those of a message, and wrong ones."""
    if meta.keys() != FIELDS[kind].keys():
        raise WireError("the message has other fields than an ask or an answer of this version.")
    for name, is_right in FIELDS[kind].items():
        if not is_right(meta[name]):
            raise WireError(f'the message has a wrong "{name}".')


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
        digest.update(np.ascontiguousarray(v, dtype=np.float64).tobytes())
    return digest.digest()
