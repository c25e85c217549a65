"""Codecs: how a vector travels. Exact bits, the bytes on the wire, and what the other side reads.

A codec is a frozen object. ``encode`` is a pure function of the vector and a ``Key``, ``decode`` of the bytes and the
same key; so masks and indices that both sides can draw are neither sent nor counted. The key travels with a message,
or follows from it: a retried call, another engine or another process draws the same.

Noise for privacy is not a codec: it must not be keyed, and it is added to the point before it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from proxskip import randomness
from proxskip.types import Array, InputError


@dataclass(frozen=True, slots=True)
class Key:
    """What the randomness of one message depends on.

    Args:
        attempt: how often the round was void before.
        place, asked: the client's place among those that were asked in this round, and how many they are; codecs that
            divide the coordinates among the clients need both.
        exchange, vector: the number of the exchange within the round, and of the vector within the message.
    """

    seed: int
    round: int
    client: int
    place: int = 0
    asked: int = 1
    attempt: int = 0
    exchange: int = 0
    vector: int = 0

    def generator(self, shared: bool = False) -> np.random.Generator:
        """This message's own generator, or with ``shared`` the one that all clients of the exchange have in common."""
        who = 0 if shared else 1 + self.client
        return randomness.codec_stream(self.seed, self.round, who, self.attempt, self.exchange, self.vector)


class Codec(Protocol):
    """How one client's vector travels to the server."""

    unbiased: bool
    """Whether the mean of what is read, over the codec's randomness, is what was sent."""
    keyed: bool
    """Whether it uses its key at all; where none does, a question that is asked again needs no other answer."""

    def omega(self, d: int) -> float:
        """E |read - sent|^2 <= omega |sent|^2."""
        ...

    def bits(self, d: int, key: Key) -> int:
        """The exact size of a message."""
        ...

    def floats(self, d: int, key: Key) -> int:
        """The numbers in it."""
        ...

    def encode(self, v: Array, key: Key) -> bytes:
        """The message: ceil(bits/8) bytes."""
        ...

    def decode(self, data: bytes, d: int, key: Key) -> Array:
        """What the other side reads."""
        ...


def read_back(codec: Codec, v: Array, key: Key) -> Array:
    """v as the other side reads it; where nothing is changed on the way, v itself."""
    return v if isinstance(codec, Identity) else codec.decode(codec.encode(v, key), len(v), key)


@dataclass(frozen=True, slots=True)
class Identity:
    """Every number as it is, in 64 bits."""

    unbiased, keyed = True, False

    def omega(self, d: int) -> float:
        """Exact."""
        return 0.0

    def bits(self, d: int, key: Key) -> int:
        """64 per number."""
        return 64 * d

    def floats(self, d: int, key: Key) -> int:
        """All."""
        return d

    def encode(self, v: Array, key: Key) -> bytes:
        """Little-endian float64."""
        return np.ascontiguousarray(v, dtype="<f8").tobytes()

    def decode(self, data: bytes, d: int, key: Key) -> Array:
        """The same numbers."""
        return _numbers(data, "<f8", d)


@dataclass(frozen=True, slots=True)
class Float32:
    """Every number rounded to the nearest float32."""

    unbiased, keyed = False, False

    def omega(self, d: int) -> float:
        """The square of half a unit in the last place (of numbers that do not underflow)."""
        return float(np.finfo(np.float32).eps / 2) ** 2

    def bits(self, d: int, key: Key) -> int:
        """32 per number."""
        return 32 * d

    def floats(self, d: int, key: Key) -> int:
        """All."""
        return d

    def encode(self, v: Array, key: Key) -> bytes:
        """Little-endian float32."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(v).astype("<f4").tobytes()

    def decode(self, data: bytes, d: int, key: Key) -> Array:
        """As float64 again."""
        return _numbers(data, "<f4", d)


def _numbers(data: bytes, dtype: str, d: int) -> Array:
    """A copy of the numbers in these bytes."""
    kind = np.dtype(dtype)
    if len(data) != d * kind.itemsize:
        raise InputError(f"a vector of length {d} takes {d * kind.itemsize} bytes as {kind.name}, not {len(data)}.")
    return np.frombuffer(data, dtype=kind).astype(np.float64)
