"""Named arrays and plain data in one sealed piece of bytes: checkpoints, their parts, and messages are made of it.

    8 bytes    b"PROXSKIP"
    4 bytes    version of the format (u32, little-endian like all that follows)
    4 bytes    length of the header (u32, at most 1 MiB)
    header     JSON, UTF-8: {"arrays": [[name, dtype, shape], ..], "meta": {..}}
    arrays     their bytes one after the other, in the header's order
    32 bytes   sha256 of everything before it

A reader compares the sha256 first. Then it takes the sizes of the arrays from the header, and compares their sum with
the bytes that are there before it takes any memory. Nothing in it is code, and nothing is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from proxskip.results.plain import canonical, checked_plain, cut
from proxskip.types import InputError

MAGIC = b"PROXSKIP"
VERSION = 2
DTYPES = ("<f8", "<f4", "<i8", "<u8", "|u1")
HEADER_LIMIT = 1 << 20
"""Bytes: parsed JSON takes up to forty times its text."""

_PREFIX = struct.Struct("<8sII")
_SEAL = hashlib.sha256().digest_size
_CHUNK = 1 << 20

AnyArray = npt.NDArray[Any]


class Damaged(Exception):
    """Why bytes are no whole container, as the end of a sentence that begins with their name."""


class OtherVersion(Damaged):
    """They are whole, and of another release."""


class Sealed(NamedTuple):
    """What was sealed."""

    arrays: dict[str, AnyArray]
    meta: dict[str, Any]
    sha256: str


# -- writing -----------------------------------------------------------------------------------------------------------
def seal(arrays: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> list[bytes | memoryview]:
    """The container in pieces, of which the last is the sha256; large arrays are not copied.

    Lists in ``meta`` come back for tuples; NaN and infinities are kept.

    >>> opened = unseal(b"".join(seal({"x": np.ones(2)}, {"round": 7})))
    >>> opened.arrays["x"], opened.meta
    (array([1., 1.]), {'round': 7})
    """
    layout: list[tuple[str, str, list[int]]] = []
    data: list[memoryview] = []
    for name, values in arrays.items():
        array = np.asarray(values)
        little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        if little.dtype.str not in DTYPES:
            raise InputError(f"array {name!r} has dtype {array.dtype}; f8, f4, i8, u8 and u1 are kept: convert it.")
        layout.append((name, little.dtype.str, list(little.shape)))
        data.append(little.reshape(-1).view(np.uint8).data)
    header = canonical(checked_plain({"arrays": layout, "meta": meta}, "the container", lists=False))
    if len(header) > HEADER_LIMIT:
        raise InputError(f"meta and array names take {len(header)} bytes of {HEADER_LIMIT}: use arrays for long lists.")
    pieces: list[bytes | memoryview] = [_PREFIX.pack(MAGIC, VERSION, len(header)), header, *data]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


# -- reading -----------------------------------------------------------------------------------------------------------
def unseal(data: bytes) -> Sealed:
    """What ``seal`` was given; ``Damaged`` if these are not its bytes."""
    file = io.BytesIO(data)
    sha256 = _checked(file, len(data))
    return _opened(file, len(data), sha256)


def read(path: Path) -> Sealed:
    """The container in a file; ``Damaged`` if it is not whole."""
    try:
        with _open(path) as file:
            size = _size(file)
            sha256 = _checked(file, size)
            return _opened(file, size, sha256)
    except OSError as error:
        raise _no_file(error) from None


def sha256_of(path: Path) -> str:
    """The sha256 of the container in a file, without its content; ``Damaged`` if it is not whole."""
    try:
        with _open(path) as file:
            return _checked(file, _size(file))
    except OSError as error:
        raise _no_file(error) from None


def begins_like_one(path: Path) -> bool:
    """Whether a file begins like a container, be it whole or not."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _open(path: Path) -> BinaryIO:
    """The file; a pipe under this name does not make us wait for its writer."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))


def _size(file: BinaryIO) -> int:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise Damaged("is damaged: it is not a regular file")
    return status.st_size


def _no_file(error: OSError) -> Exception:
    """The error of a file that is missing or damaged; any other is left as it is, since the file may well be whole."""
    if isinstance(error, FileNotFoundError):
        return Damaged("is missing")
    if error.errno in (errno.EIO, errno.EISDIR):
        return Damaged(f"is damaged: {error.strerror}")
    return error


def _checked(file: BinaryIO, size: int) -> str:
    """The sha256 of a container, compared with the one at its end."""
    left = size - _SEAL
    if left < _PREFIX.size:
        raise Damaged(f"is damaged: it is too short ({size} bytes)")
    digest = hashlib.sha256()
    while left > 0:
        block = file.read(min(_CHUNK, left))
        if not block:
            break
        digest.update(block)
        left -= len(block)
    if file.read(_SEAL) != digest.digest():
        raise Damaged("is damaged: its sha256 is wrong")
    return digest.hexdigest()


def _opened(file: BinaryIO, size: int, sha256: str) -> Sealed:
    file.seek(0)
    magic, version, length = _PREFIX.unpack(file.read(_PREFIX.size))
    if magic != MAGIC:
        raise Damaged("is damaged: it does not start like a file of proxskip")
    if version != VERSION:
        raise OtherVersion(
            f"has format {version}, and this release reads format {VERSION}: use the release of proxskip that wrote it"
        )
    available = size - _PREFIX.size - length - _SEAL
    try:
        if length > HEADER_LIMIT or available < 0:
            raise ValueError(f"it claims {length} bytes of at most {HEADER_LIMIT}")
        layout, meta = _layout(file.read(length), available)
        arrays = {name: _next_array(file, dtype, shape) for name, dtype, shape in layout}
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise Damaged(f"is damaged: its header is not one that proxskip writes ({cut(str(error))})") from None
    return Sealed(arrays, meta, sha256)


def _layout(raw: bytes, available: int) -> tuple[list[tuple[str, np.dtype[Any], list[int]]], dict[str, Any]]:
    """Names, dtypes and shapes of arrays that fill the available bytes exactly, and the plain data."""
    header = json.loads(raw.decode("utf-8"))
    layout = []
    total = 0
    for name, dtype, shape in header["arrays"]:
        sizes_fit = all(type(size) is int and size >= 0 for size in shape)
        if dtype not in DTYPES or not sizes_fit:
            raise ValueError(f"array {cut(repr(name))} has dtype {cut(str(dtype))} and shape {cut(str(shape))}")
        layout.append((str(name), np.dtype(dtype), shape))
        total += math.prod(shape) * np.dtype(dtype).itemsize
    if total != available:
        raise ValueError(f"its arrays take {total} bytes, and there are {available}")
    if len({name for name, _, _ in layout}) < len(layout):
        raise ValueError("two arrays have one name")
    meta = header["meta"]
    if not isinstance(meta, dict):
        raise TypeError("meta is no object")
    return layout, meta


def _next_array(file: BinaryIO, dtype: np.dtype[Any], shape: list[int]) -> AnyArray:
    array = np.empty(shape, dtype)
    file.readinto(array.reshape(-1).view(np.uint8).data)  # type: ignore[attr-defined]
    return array.astype(dtype.newbyteorder("="), copy=False)
