"""Integers as bit fields, random places, and their inverses: integer arithmetic only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from proxskip.codecs.contract import Encoded
from proxskip.support.randomness import Words
from proxskip.types import AnyArray, Array, Indices, InputError

Bits = npt.NDArray[np.uint8]
"""Zeros and ones, one per byte."""


def numbers_in(data: Encoded, dtype: str, d: int) -> Array:
    """The numbers in these bytes, copied."""
    kind = np.dtype(dtype)
    if len(data) != d * kind.itemsize:
        raise InputError(f"a vector of length {d} takes {d * kind.itemsize} bytes as {kind.name}, not {len(data)}.")
    with np.errstate(invalid="ignore"):  # a signaling NaN becomes a quiet one
        return np.frombuffer(data, dtype=kind).astype(np.float64)


def smallest(words: Words, k: int) -> Indices:
    """The places of the k smallest words in their order: k random places. Ties are broken by place."""
    low = np.uint64((1 << width(len(words))) - 1)
    unique = (words & ~low) | np.arange(len(words), dtype=np.uint64)
    least = np.sort(unique if k == len(words) else np.partition(unique, k - 1)[:k])
    return (least & low).astype(np.int64)


def width(d: int) -> int:
    """Bits of an index below d."""
    return (d - 1).bit_length()


def bits_of(numbers: AnyArray, width: int) -> Bits:
    """The last ``width`` bits of each number, the highest first."""
    shifts = np.arange(width - 1, -1, -1, dtype=numbers.dtype)
    bits: Bits = (numbers[:, None] >> shifts & numbers.dtype.type(1)).astype(np.uint8).ravel()
    return bits


def numbers_of(bits: Bits, width: int) -> Words:
    """The inverse of ``bits_of``."""
    numbers = np.zeros(len(bits) // width, dtype=np.uint64)
    for column in bits.reshape(-1, width).T:
        numbers = numbers << np.uint64(1) | column
    return numbers


def packed(bits: Bits) -> bytes:
    """Eight bits per byte, highest first, padded with zeros."""
    return np.packbits(bits).tobytes()


def unpacked(data: Encoded, bits: int) -> Bits:
    """The inverse of ``packed``."""
    if len(data) != -(-bits // 8):
        raise InputError(f"a message of {bits} bits takes {-(-bits // 8)} bytes, not {len(data)}.")
    return np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=bits)
