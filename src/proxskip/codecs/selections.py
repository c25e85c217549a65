"""Codecs that send some of the numbers, each in the form of another codec."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from proxskip.codecs import fields
from proxskip.codecs.contract import Codec, Encoded, Key
from proxskip.codecs.numbers import Float32, Identity, Natural
from proxskip.types import Array, Indices, InputError


class _Selection:
    """Base class: ``values`` is how the numbers travel, and the first field is a count."""

    word: ClassVar[str]
    """The text form before the number."""
    values: Codec
    keyed = True

    def __post_init__(self) -> None:
        number: Any = self._number
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
            raise InputError(f"{self.word}-{number} is invalid; use a whole number of at least 1.")
        if not isinstance(self.values, (Identity, Float32, Natural)):
            raise InputError(
                f"{self.word}-{number} cannot send its numbers as {self.values}; use identity, float32 or natural."
            )

    @property
    def _number(self) -> int:
        first: int = next(iter(asdict(self).values()))  # type: ignore[call-overload]
        return first

    def __str__(self) -> str:
        return f"{self.word}-{self._number}" + ("" if isinstance(self.values, Identity) else f"+{self.values}")

    @property
    def unbiased(self) -> bool:
        return self.values.unbiased


class _Drawn(_Selection):
    """Coordinates that both sides draw, so no indices travel."""

    def chosen(self, d: int, key: Key) -> Indices:
        """The coordinates sent, in increasing order."""
        raise NotImplementedError

    def factor(self, d: int, key: Key) -> float:
        """The factor applied to the numbers when read."""
        raise NotImplementedError

    def floats(self, d: int, key: Key) -> int:
        return len(self.chosen(d, key))

    def bits(self, d: int, key: Key) -> int:
        return self.values.bits(self.floats(d, key), key)

    def encode(self, v: Array, key: Key) -> bytes:
        return self.values.encode(v[self.chosen(len(v), key)], key)

    def decode(self, data: Encoded, d: int, key: Key) -> Array:
        chosen, v = self.chosen(d, key), np.zeros(d)
        with np.errstate(over="ignore"):  # a number beyond the largest is infinite, and ends the run as diverged
            v[chosen] = self.values.decode(data, len(chosen), key) * self.factor(d, key)
        return v


@dataclass(frozen=True, slots=True)
class RandK(_Drawn):
    """k of d coordinates, drawn by both sides: no indices travel, and each number read is d/k times the one sent.

    Args:
        values: how the k numbers travel.
    """

    k: int
    values: Codec = field(default_factory=Identity)

    word = "rand"

    def omega(self, d: int) -> float:
        """d/k - 1, plus the part of ``values``."""
        return d / min(self.k, d) * (1 + self.values.omega(d)) - 1

    def chosen(self, d: int, key: Key) -> Indices:
        # the places of the k smallest of d words: every set of k is equally likely
        return np.sort(fields.smallest(key.words(d), min(self.k, d)))

    def factor(self, d: int, key: Key) -> float:
        return d / min(self.k, d)

    def floats(self, d: int, key: Key) -> int:
        return min(self.k, d)


@dataclass(frozen=True, slots=True)
class Masks(_Drawn):
    """TAMUNA's: every coordinate has s owners among the clients that are asked, and only they send it.

    Coordinate k belongs to the places k s, ..., k s + s - 1 (modulo the number of clients) of a template, whose places
    are permuted by what the clients share (L. Condat, I. Agarsky, G. Malinovsky, P. Richtarik, TAMUNA, 2023,
    arXiv:2302.09832). All vectors of one exchange have the same masks. The mean over the clients of what is
    read is the mean over each coordinate's owners; equal vectors are averaged without an error.

    Args:
        values: how the numbers travel.
    """

    s: int
    values: Codec = field(default_factory=Identity)

    word = "masks"

    def omega(self, d: int) -> float:
        """Unknown to a single client: asked/s - 1, plus the part of ``values``."""
        return math.inf

    def owned(self, d: int, key: Key) -> npt.NDArray[np.bool_]:
        """Which coordinates belong to this client."""
        # the order of the shared words permutes the places, alike for all clients asked
        places = fields.smallest(key.shared_words(key.asked), key.asked)
        mine: npt.NDArray[np.bool_] = (places[key.place] - self.s * np.arange(d)) % key.asked < self.s
        return mine

    def chosen(self, d: int, key: Key) -> Indices:
        return np.flatnonzero(self.owned(d, key))

    def factor(self, d: int, key: Key) -> float:
        return key.asked / min(self.s, key.asked)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Ones where a client owns the coordinate under ``Masks(s)``, zeros elsewhere, whatever is sent.

    Everybody can draw it, so it takes no bits.
    """

    s: int

    unbiased, keyed = False, True

    def omega(self, d: int) -> float:
        return math.inf

    def bits(self, d: int, key: Key) -> int:
        return 0

    def floats(self, d: int, key: Key) -> int:
        return 0

    def encode(self, v: Array, key: Key) -> bytes:
        return b""

    def decode(self, data: Encoded, d: int, key: Key) -> Array:
        return Masks(self.s).owned(d, key).astype(np.float64)


@dataclass(frozen=True, slots=True)
class L1Selection(_Selection):
    """The mean of k draws of a single coordinate: j with probability |x_j|/|x|_1, read as  sign(x_j) |x|_1.

    What is drawn depends on the vector, so the indices travel: a sign and ceil(log2 d) bits for each draw, and |x|_1.

    Args:
        values: how |x|_1 travels.
    """

    k: int
    values: Codec = field(default_factory=Identity)

    word = "l1"

    def omega(self, d: int) -> float:
        """(d - 1)/k, plus the part of ``values``: |x|_1^2 <= d |x|^2."""
        return (1 + (d - 1) / self.k) * (1 + self.values.omega(1)) - 1

    def bits(self, d: int, key: Key) -> int:
        """|x|_1, then sign and index of each draw."""
        return self.values.bits(1, key) + self.k * (1 + fields.width(d))

    def floats(self, d: int, key: Key) -> int:
        return 1

    def encode(self, v: Array, key: Key) -> bytes:
        """Draw by inversion: the place of a uniform number among the partial sums of |x_j|."""
        with np.errstate(all="ignore"):
            sums = np.cumsum(np.abs(v))  # one after another, on every platform
            uniform = (key.words(self.k) >> np.uint64(11)) * 2.0**-53 * sums[-1]
        j = np.minimum(np.searchsorted(sums, uniform, side="right"), len(v) - 1)
        width = fields.width(len(v))
        # the sign above the index, in one number of 1 + width bits
        draws = np.signbit(v[j]).astype(np.uint64) << np.uint64(width) | j.astype(np.uint64)
        head = fields.unpacked(self.values.encode(sums[-1:], key), self.values.bits(1, key))
        return fields.packed(np.concatenate([head, fields.bits_of(draws, 1 + width)]))

    def decode(self, data: Encoded, d: int, key: Key) -> Array:
        """The mean of the draws; nan for an index that no encoder writes."""
        split = self.values.bits(1, key)
        width = fields.width(d)
        v = np.zeros(d)
        bits = fields.unpacked(data, self.bits(d, key))
        (total,) = self.values.decode(fields.packed(bits[:split]), 1, key)
        draws = fields.numbers_of(bits[split:], 1 + width)
        j = (draws & np.uint64((1 << width) - 1)).astype(np.int64)
        # hostile bytes may hold any index of this width; the reader refuses nan
        if np.any(j >= d):
            return np.full(d, np.nan)
        sign = 1.0 - 2.0 * (draws >> np.uint64(width)).astype(np.float64)
        with np.errstate(all="ignore"):
            np.add.at(v, j, sign * (total / self.k))
        return v
