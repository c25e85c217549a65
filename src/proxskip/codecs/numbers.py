"""Codecs that send every number: exact, rounded, or as a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxskip.codecs import fields
from proxskip.codecs.contract import Encoded, Key
from proxskip.types import Array


class _EveryNumber:
    """Base class: a name, and bits per number."""

    name: ClassVar[str]
    each: ClassVar[int]

    def __str__(self) -> str:
        return self.name

    def bits(self, d: int, key: Key) -> int:
        return self.each * d

    def floats(self, d: int, key: Key) -> int:
        return d


@dataclass(frozen=True, slots=True)
class Identity(_EveryNumber):
    """Every number as it is, in 64 bits."""

    name, each = "identity", 64
    unbiased, keyed = True, False

    def omega(self, d: int) -> float:
        return 0.0

    def encode(self, v: Array, key: Key) -> bytes:
        return np.ascontiguousarray(v, dtype="<f8").tobytes()

    def decode(self, data: Encoded, d: int, key: Key) -> Array:
        return fields.numbers_in(data, "<f8", d)


@dataclass(frozen=True, slots=True)
class Float32(_EveryNumber):
    """Every number rounded to the nearest float32; biased by at most 6e-8 of it."""

    name, each = "float32", 32
    unbiased, keyed = False, False

    def omega(self, d: int) -> float:
        """The square of half a unit in the last place (without underflow)."""
        return float(np.finfo(np.float32).eps / 2) ** 2

    def encode(self, v: Array, key: Key) -> bytes:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(v).astype("<f4").tobytes()

    def decode(self, data: Encoded, d: int, key: Key) -> Array:
        return fields.numbers_in(data, "<f4", d)


@dataclass(frozen=True, slots=True)
class Natural(_EveryNumber):
    """Natural compression: every number becomes one of the two powers of two around it, at random and unbiased.

    S. Horvath, C.-Y. Ho, L. Horvath, A. N. Sahu, M. Canini, P. Richtarik, Natural compression for distributed deep
    learning, 2019, arXiv:1905.10988. A number is a sign and the 8 bits of a float32's exponent. A number below 2^-126
    becomes 0 or 2^-126; one that is rounded to 2^128 or more, and one that is not a number, is read as infinity.
    """

    name, each = "natural", 9
    unbiased, keyed = True, True

    def omega(self, d: int) -> float:
        """1/8, without underflow."""
        return 1 / 8

    def encode(self, v: Array, key: Key) -> bytes:
        """Sign and exponent, rounded up with the mantissa as the probability."""
        raw = np.ascontiguousarray(v, dtype=np.float64).view(np.uint64)
        words = key.words(len(raw), "rounding")
        # integers only, so that the rounding is the same everywhere
        exponent = (raw >> np.uint64(52)) & np.uint64(0x7FF)
        mantissa = raw & np.uint64((1 << 52) - 1)
        with np.errstate(all="ignore"):
            tiny = np.abs(v) * 2.0**126  # exact: a power of two
            # 896 = 1023 - 127 turns a float64's exponent into a float32's; 1151 is that of 2^128, which is read as inf
            power = np.minimum(exponent + (words >> np.uint64(12) < mantissa), np.uint64(1151)) - np.uint64(896)
            few = (words >> np.uint64(11)) * 2.0**-53 < tiny
        # below 2^-126 only 0 and 2^-126 are left
        power = np.where(exponent > 896, power, few)
        power = np.where(exponent == 2047, np.uint64(255), power)
        return fields.packed(fields.bits_of(((raw >> np.uint64(63)) << np.uint64(8) | power).astype(np.uint16), 9))

    def decode(self, data: Encoded, d: int, key: Key) -> Array:
        code = fields.numbers_of(fields.unpacked(data, 9 * d), 9)
        power = code & np.uint64(255)
        exponent = np.where(power == 0, 0, np.where(power == 255, 2047, power + np.uint64(896))).astype(np.uint64)
        return ((code >> np.uint64(8)) << np.uint64(63) | exponent << np.uint64(52)).view(np.float64)
