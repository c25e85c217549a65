"""The Codec protocol, and the key of its randomness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from proxskip.support import randomness
from proxskip.types import Array

Encoded = bytes | memoryview
"""The bytes of a message, or a view of them."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of one message's randomness.

    Args:
        seed: of the run.
        round, client: their numbers.
        attempt: how often the round was void before.
        place, asked: the client's place among those asked in this round, and how many there are, for codecs that divide
            the coordinates among clients.
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

    def words(self, count: int, name: str = "codec") -> randomness.Words:
        """This message's own random 64-bit words."""
        who = 1 + self.client
        return randomness.codec_words(count, name, self.seed, self.round, who, self.attempt, self.exchange, self.vector)

    def shared_words(self, count: int) -> randomness.Words:
        """Random words shared by all clients and vectors of this exchange."""
        return randomness.codec_words(count, "codec", self.seed, self.round, 0, self.attempt, self.exchange)


@runtime_checkable
class Codec(Protocol):
    """How one client's vector travels to the server."""

    @property
    def unbiased(self) -> bool:
        """Whether the mean of what is read equals what was sent."""

    @property
    def keyed(self) -> bool:
        """Whether it uses its key."""

    def omega(self, d: int) -> float:
        """E |read - sent|^2 <= omega |sent|^2."""

    def bits(self, d: int, key: Key) -> int:
        """The exact size of a message."""

    def floats(self, d: int, key: Key) -> int:
        """How many numbers it holds."""

    def encode(self, v: Array, key: Key) -> bytes:
        """The message, in ceil(bits/8) bytes."""

    def decode(self, data: Encoded, d: int, key: Key) -> Array:
        """What the other side reads; a federation gives a memoryview of the message, which is not copied."""
