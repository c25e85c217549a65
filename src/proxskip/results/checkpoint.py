"""Checkpoints that are exactly what was saved, or refused: atomic, checked, two generations, no code inside.

One file, little-endian, nothing between its parts:

    8 bytes    b"PROXSKIP"
    4 bytes    format version (u32)
    4 bytes    length of the header (u32, at most 1 MiB)
    header     JSON, UTF-8, sorted keys: {"arrays": [{dtype, name, nbytes, offset, shape}, ..], "meta": {..}}
    arrays     their raw bytes in the header's order, each offset where the last one ended, the first 0
    32 bytes   sha256 of everything before it (every version of the format ends like this)

A reader compares the sha256 first. Then it takes the names, dtypes and shapes of the arrays out of the header, writes
the header of such arrays itself, and compares the two and the size of the file before it allocates anything: whatever
``save`` would not have written is refused.

``save`` keeps the generation before as NAME.previous; a crash at any moment leaves at least one of them whole (see
``atomic``). The old sha256 is checked first: a damaged NAME does not push out a whole NAME.previous.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from proxskip.results.atomic import atomic_write, remove_stale
from proxskip.results.plain import canonical, checked_plain, cut
from proxskip.types import InputError

MAGIC = b"PROXSKIP"
VERSION = 1
DTYPES = ("<f8", "<i8", "<u8", "<f4")
HEADER_LIMIT = 1 << 20  # parsed JSON takes up to 40 times its text, and loading must stay below 64 MB beside the arrays

_PREFIX = struct.Struct("<8sII")
_SEAL = hashlib.sha256().digest_size
_CHUNK = 1 << 20

AnyArray = npt.NDArray[Any]


class CheckpointError(InputError):
    """A checkpoint could not be written or read; the message names the file and the reason."""


class _Damaged(Exception):
    """Why a file is not a whole checkpoint, as the end of a sentence that begins with its name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: its content, its generation, and a note if the newest one could not be read."""

    arrays: dict[str, AnyArray]
    meta: dict[str, Any]
    generation: Literal["current", "previous"]
    note: str | None


# -- save and load -----------------------------------------------------------------------------------------------------
def save(
    folder: Path,
    arrays: Mapping[str, AnyArray],
    meta: Mapping[str, Any],
    *,
    name: str = "checkpoint",
    keep: bool = True,
) -> Path:
    """Save ``arrays`` (f8, i8, u8, f4) and ``meta`` (JSON) as the current generation; the one before is kept.

    Without ``keep`` it is not, since it is known to be worse than NAME.previous.
    Lists in ``meta`` come back for tuples, and keys come back sorted; NaN and infinities are kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(Path(folder), {"x": np.ones(2)}, {"round": 7})
    ...     saved = load(Path(folder))
    >>> saved.arrays["x"], saved.meta, saved.generation
    (array([1., 1.]), {'round': 7}, 'current')
    """
    current, previous = _generations(folder, name)
    with in_words(current):
        pieces = _encode(arrays, meta)
        current.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(current, *pieces, previous=previous if keep and _whole(current) else None)
    remove_stale(current)
    return current


def write_part(path: Path, arrays: Mapping[str, AnyArray]) -> str:
    """Write arrays to a file of their own, which a checkpoint lists in ``meta["parts"]``; its sha256."""
    pieces = _encode(arrays, {})
    with in_words(path):
        atomic_write(path, *pieces)
    return bytes(pieces[-1]).hex()


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """What the system says of a folder or a disk, in one sentence."""
    try:
        yield
    except OSError as error:
        where, reason = error.filename or path, error.strerror or str(error)
        hint = "what was saved before is intact. Free some space, or give another folder."
        raise CheckpointError(f"cannot write {where}: {reason}; {hint}") from error


def read_part(path: Path, sha256: str) -> dict[str, AnyArray]:
    """The arrays of ``write_part``."""
    try:
        arrays, _, digest = _read(path)
        if digest != sha256:
            raise _Damaged("is another file than its checkpoint lists")
    except (_Damaged, OSError) as error:
        raise CheckpointError(f"{path} {error}; restore it from a copy, or start a new run.") from None
    return arrays


def _check_parts(folder: Path, parts: Any) -> None:
    """Refuse a checkpoint of which a part is damaged or missing."""
    try:
        listed = [(folder / safe_name(n), sha256) for n, sha256 in zip(parts["name"], parts["sha256"], strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise _Damaged(f"is damaged: its list of parts cannot be read ({type(error).__name__})") from None
    for path, sha256 in listed:
        try:
            with _sealed(path) as (_, _, digest):
                if digest != sha256:
                    raise _Damaged("is damaged: its sha256 is wrong")
        except _Damaged as damage:
            raise _Damaged(f"is damaged: of its parts, {path} {damage}") from None


def load(folder: Path, *, name: str = "checkpoint") -> Checkpoint:
    """The newest generation that is whole, with its parts; CheckpointError with each file and reason without one."""
    current, previous = _generations(folder, name)
    reasons = []
    for path in (current, previous):
        try:
            arrays, meta, _ = _read(path)
            if "parts" in meta:
                _check_parts(Path(folder), meta["parts"])
        except _Damaged as damage:
            reasons.append(f"{path} {damage}")
        except OSError as error:  # it may well be whole: do not go back behind it
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
        else:
            if path == current:
                return Checkpoint(arrays, meta, "current", None)
            return Checkpoint(arrays, meta, "previous", f"{reasons[0]}; {path} was used instead.")
    if not (current.exists() or previous.exists()):
        raise CheckpointError(f"there is no checkpoint {current}; check the folder, or start a new run.")
    raise CheckpointError("; ".join(reasons) + "; restore one of them from a copy, or start a new run.")


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """One sentence for each field that differs; empty when a run may be resumed.

    >>> differences({"seed": 0, "method": {"p": 0.1}}, {"seed": 1, "method": {"p": 0.1}})
    ['seed: saved 0, now 1']
    """
    return list(_differences("", saved, wanted))


def safe_name(name: str) -> str:
    """``name`` itself if it can be a file name or run id everywhere; InputError otherwise."""
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", name):
        return name
    raise InputError(f"{cut(repr(name))} cannot be a name: use 1 to 64 of A-Z a-z 0-9 . _ - and no dot at the start.")


# -- writing -----------------------------------------------------------------------------------------------------------
def _generations(folder: Path, name: str) -> tuple[Path, Path]:
    if safe_name(name).endswith(".previous"):
        raise InputError(f"{name!r} cannot be a checkpoint's name: .previous marks the older generation.")
    return Path(folder) / name, Path(folder) / f"{name}.previous"


def _encode(arrays: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> list[bytes | memoryview]:
    """The file in pieces, without copying contiguous little-endian arrays."""
    layout: list[tuple[str, str, Sequence[int]]] = []
    data: list[memoryview] = []
    for name, values in arrays.items():
        if not isinstance(name, str):
            raise InputError(f"an array is called {cut(repr(name))}: only text can be a name.")
        array = np.asarray(values)
        dtype = array.dtype.newbyteorder("<")
        if dtype.str not in DTYPES:
            raise InputError(f"array {name!r} has dtype {array.dtype}; checkpoints hold f8, i8, u8 and f4: convert it.")
        little = np.asarray(array, dtype=dtype, order="C")
        layout.append((name, dtype.str, little.shape))
        data.append(little.reshape(-1).view(np.uint8).data)
    header = canonical(checked_plain({"arrays": _entries(layout), "meta": meta}, "the checkpoint", lists=False))
    if len(header) > HEADER_LIMIT:
        raise InputError(f"meta and array names take {len(header)} bytes of {HEADER_LIMIT}: use arrays for long lists.")
    pieces: list[bytes | memoryview] = [_PREFIX.pack(MAGIC, VERSION, len(header)), header, *data]
    # over all pieces, so that a file cut anywhere is noticed
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


def _entries(layout: Sequence[tuple[str, str, Sequence[int]]]) -> list[dict[str, Any]]:
    """The header's list of arrays with these names, dtypes and shapes."""
    entries: list[dict[str, Any]] = []
    offset = 0
    for name, dtype, shape in layout:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        entries.append({"name": name, "dtype": dtype, "shape": list(shape), "offset": offset, "nbytes": nbytes})
        offset += nbytes
    return entries


# -- reading -----------------------------------------------------------------------------------------------------------
@contextmanager
def _sealed(path: Path) -> Iterator[tuple[BinaryIO, int, str]]:
    """A file whose sha256 is right, opened at its beginning; its size without the sha256, and the sha256."""
    try:
        # not blocking: a pipe under this name must not make us wait for its writer
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            size = status.st_size - _SEAL
            if not stat.S_ISREG(status.st_mode) or size < _PREFIX.size:
                raise _Damaged(f"is damaged: it is not a regular file, or too short ({status.st_size} bytes)")
            digest = hashlib.sha256()
            while block := file.read(min(_CHUNK, size - file.tell())):
                digest.update(block)
            if file.read(_SEAL) != digest.digest():
                raise _Damaged("is damaged: its sha256 is wrong")
            file.seek(0)
            yield file, size, digest.hexdigest()
    except FileNotFoundError:
        raise _Damaged("is missing") from None
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EISDIR):
            raise
        raise _Damaged(f"is damaged: {error.strerror}") from None


def _whole(path: Path) -> bool:
    try:
        with _sealed(path):
            return begins_like_one(path)
    except (OSError, _Damaged):
        return False


def begins_like_one(path: Path) -> bool:
    """Whether a file begins like what ``save`` and ``write_part`` write, be it whole or not."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _read(path: Path) -> tuple[dict[str, AnyArray], dict[str, Any], str]:
    """Arrays, meta and sha256 of a file."""
    with _sealed(path) as (file, size, sha256):
        magic, version, length = _PREFIX.unpack(file.read(_PREFIX.size))
        if magic != MAGIC:
            raise _Damaged("is damaged: it does not start like a checkpoint of proxskip")
        if version != VERSION:  # whole, and perhaps newer than what we could fall back to
            raise CheckpointError(f"{path} has format version {version} and this proxskip reads {VERSION}.")
        available = size - _PREFIX.size - length
        try:
            if length > HEADER_LIMIT or available < 0:
                raise ValueError(f"it claims {length} bytes of at most {HEADER_LIMIT}")
            layout, meta = _parse_header(file.read(length), available)
            arrays = {name: _next_array(file, dtype, shape) for name, dtype, shape in layout}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError) as error:
            raise _Damaged(f"is damaged: its header is not one that proxskip writes ({cut(str(error))})") from None
    return arrays, meta, sha256


def _next_array(file: BinaryIO, dtype: str, shape: list[int]) -> AnyArray:
    flat: AnyArray = np.fromfile(file, dtype, math.prod(shape))
    return flat.reshape(shape).astype(flat.dtype.newbyteorder("="), copy=False)


def _parse_header(raw: bytes, available: int) -> tuple[list[tuple[str, str, list[int]]], dict[str, Any]]:
    """Names, dtypes and shapes of arrays that fill ``available`` bytes exactly, and the meta dict."""
    header = json.loads(raw.decode("utf-8"))
    meta = dict(header["meta"])
    layout = [(str(e["name"]), str(e["dtype"]), [int(k) for k in e["shape"]]) for e in header["arrays"]]
    for name, dtype, shape in layout:
        if dtype not in DTYPES or min(shape, default=0) < 0:
            raise ValueError(f"array {cut(repr(name))} has dtype {cut(dtype)} and shape {cut(str(shape))}")
    entries = _entries(layout)
    # refuses duplicate and extra keys, other spellings of the same data, and sizes that do not fit
    if canonical({"arrays": entries, "meta": meta}) != raw:
        raise ValueError("it is written in another way")
    if len({name for name, _, _ in layout}) < len(layout):
        raise ValueError("two arrays have one name")
    if sum(entry["nbytes"] for entry in entries) != available:
        raise ValueError(f"its arrays do not fill the {available} bytes that the file has for them")
    return layout, meta


# -- differences -------------------------------------------------------------------------------------------------------
def _differences(prefix: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*wanted, *saved]):
        field = f"{prefix}{key}"
        old, new = (checked_plain(data[key], field) if key in data else None for data in (saved, wanted))
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(f"{field}.", old, new)
        elif key not in saved:
            yield f"{field}: not saved, now {cut(repr(new))}"
        elif key not in wanted:
            yield f"{field}: saved {cut(repr(old))}, now absent"
        elif old != new and canonical(old) != canonical(new):  # NaN is NaN, and 1 is 1.0
            a, b = repr(old), repr(new)
            start = next((k for k, (u, v) in enumerate(zip(a, b, strict=False)) if u != v), min(len(a), len(b)))
            yield f"{field}: saved {cut(a, start)}, now {cut(b, start)}"
