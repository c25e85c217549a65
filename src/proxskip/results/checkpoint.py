"""Checkpoints that are exactly what was saved, or refused: atomic, checked, two generations, no code inside.

One file, little-endian, nothing between its parts:

    8 bytes    b"PROXSKIP"
    4 bytes    format version (u32)
    4 bytes    length of the header (u32, at most 1 MiB)
    header     JSON, UTF-8, sorted keys: {"arrays": [{dtype, name, nbytes, offset, shape}, ..], "meta": {..}}
    arrays     their raw bytes in the header's order, each offset where the last one ended, the first 0
    32 bytes   sha256 of everything before it (every version of the format ends like this)

A reader trusts no number in it: each size is compared with the size of the file before anything is allocated,
and nothing is returned before the sha256 has been compared.

``save`` keeps the generation before as NAME.previous and replaces both so that a crash at any moment leaves at least
one of them whole (see ``atomic``). The old sha256 is checked first: a damaged NAME does not push out a whole
NAME.previous.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from proxskip.results.atomic import atomic_write_pieces, remove_stale, replace_keeping
from proxskip.results.plain import canonical, checked_plain, cut
from proxskip.types import InputError

MAGIC = b"PROXSKIP"
VERSION = 1
DTYPES = ("<f8", "<i8", "<u8", "<f4")
HEADER_LIMIT = 1 << 20  # parsed JSON takes up to 40 times its text, and loading must stay below 64 MB beside the arrays

_PREFIX = struct.Struct("<8sII")
_SEAL = hashlib.sha256().digest_size
_CHUNK = 1 << 20
_ENTRY_KEYS = {"name", "dtype", "shape", "offset", "nbytes"}

AnyArray = npt.NDArray[Any]


class CheckpointError(InputError):
    """A checkpoint could not be written or read; the message names the file and the reason."""


class _Damaged(Exception):
    """The reason why a file is not a whole checkpoint."""


class _OtherVersion(Exception):
    """A whole checkpoint of a format version that is not ours."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: its content, its generation, and a note if the newest one could not be read."""

    arrays: dict[str, AnyArray]
    meta: dict[str, Any]
    generation: Literal["current", "previous"]
    note: str | None


# ---------------------------------------------------------------------------------------------- save and load


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
    pieces = _encode(arrays, meta)
    try:
        current.parent.mkdir(parents=True, exist_ok=True)
        replace_keeping(current, previous, pieces, _whole if keep else lambda _: False)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"cannot save {current}: {reason}; what was saved before is intact.") from error
    remove_stale(current)
    return current


def write_part(path: Path, arrays: Mapping[str, AnyArray]) -> str:
    """Write arrays to a file of their own, which a checkpoint lists in ``meta["parts"]``; its sha256."""
    pieces = _encode(arrays, {})
    try:
        atomic_write_pieces(path, pieces)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"cannot save {path}: {reason}; what was saved before is intact.") from error
    return bytes(pieces[-1]).hex()


def read_part(path: Path, sha256: str) -> dict[str, AnyArray]:
    """The arrays of ``write_part``."""
    damage = f"{path} is another file than its checkpoint lists"
    try:
        arrays, _, found = _read(path)
        if found == sha256:
            return arrays
    except FileNotFoundError:
        damage = f"{path} is missing"
    except (_Damaged, _OtherVersion, OSError) as error:
        damage = f"{path} is damaged: {error}"
    raise CheckpointError(f"{damage}; restore it from a copy, or start a new run.")


def _damage_of_part(path: Path, sha256: Any) -> str | None:
    """What is wrong with a part that a checkpoint lists, or None."""
    try:
        with _open(path) as file:
            source = _Source(file)
            if source.sealed() and source.digest.hexdigest() == sha256:
                return None
            return f"{path} is damaged: its sha256 is wrong"
    except FileNotFoundError:
        return f"{path} is missing"
    except _Damaged as damage:
        return f"{path} is damaged: {damage}"


def _check_parts(folder: Path, parts: Any) -> None:
    """Refuse a checkpoint of which a part is damaged or missing."""
    try:
        listed = [(folder / safe_name(name), sha256) for name, sha256 in zip(*_lists(parts), strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise _Damaged(f"its list of parts cannot be read ({type(error).__name__})") from None
    found = next(filter(None, (_damage_of_part(path, sha256) for path, sha256 in listed)), None)
    if found is not None:
        raise _Damaged(f"of its parts, {found}")


def _lists(parts: Any) -> tuple[list[str], list[str]]:
    return parts["name"], parts["sha256"]


def load(folder: Path, *, name: str = "checkpoint", parts: bool = False) -> Checkpoint:
    """The newest whole generation; CheckpointError with each file and reason when there is none.

    Args:
        parts: only one of which the parts are whole too.
    """
    current, previous = _generations(folder, name)
    reasons = []
    missing = 0
    for path in (current, previous):
        try:
            arrays, meta, _ = _read(path)
            if parts and "parts" in meta:
                _check_parts(Path(folder), meta["parts"])
        except FileNotFoundError:
            reasons.append(f"{path} is missing")
            missing += 1
        except _Damaged as damage:
            reasons.append(f"{path} is damaged: {damage}")
        except _OtherVersion as version:
            reasons.append(f"{path} has format version {version} and this proxskip reads {VERSION}")
            break  # it is whole: do not go back behind it
        except OSError as error:
            reasons.append(f"{path} cannot be read: {error.strerror or error}")
            if error.errno != errno.EIO:  # it may well be whole
                break
        else:
            if path == current:
                return Checkpoint(arrays, meta, "current", None)
            return Checkpoint(arrays, meta, "previous", f"{reasons[0]}; {path} was used instead.")
    if missing == 2:
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


# ------------------------------------------------------------------------------------------------- writing


def _generations(folder: Path, name: str) -> tuple[Path, Path]:
    if safe_name(name).endswith(".previous"):
        raise InputError(f"{name!r} cannot be a checkpoint's name: .previous marks the older generation.")
    return Path(folder) / name, Path(folder) / f"{name}.previous"


def _encode(arrays: Mapping[str, AnyArray], meta: Mapping[str, Any]) -> list[bytes | memoryview]:
    """The file in pieces, without copying contiguous little-endian arrays."""
    entries: list[dict[str, Any]] = []
    data: list[memoryview] = []
    offset = 0
    for name, given in arrays.items():
        if not isinstance(name, str):
            raise InputError(f"an array is called {cut(repr(name))}: only text can be a name.")
        array = np.asarray(given)
        dtype = array.dtype.newbyteorder("<")
        if dtype.str not in DTYPES:
            raise InputError(f"array {name!r} has dtype {array.dtype}; checkpoints hold f8, i8, u8 and f4: convert it.")
        little = np.asarray(array, dtype=dtype, order="C")
        shape = list(little.shape)
        entry = {"name": name, "dtype": dtype.str, "shape": shape, "offset": offset, "nbytes": little.nbytes}
        entries.append(entry)
        data.append(little.reshape(-1).view(np.uint8).data)
        offset += little.nbytes
    plain = checked_plain({"arrays": entries, "meta": meta}, "the checkpoint", lists=False)
    header = canonical(plain)
    if len(header) > HEADER_LIMIT:
        raise InputError(
            f"meta and array names take {len(header)} bytes of {HEADER_LIMIT}: put long lists into arrays."
        )
    pieces: list[bytes | memoryview] = [_PREFIX.pack(MAGIC, VERSION, len(header)), header, *data]
    # over all pieces, so that a file cut anywhere is noticed
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


# ------------------------------------------------------------------------------------------------- reading


class _Source:
    """A file that is read once, front to back, into a sha256; never more is read than the file holds."""

    def __init__(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _Damaged("it is not a regular file")
        if status.st_size < _PREFIX.size + _SEAL:
            raise _Damaged(f"it has {status.st_size} bytes, too few for a checkpoint")
        self.file = file
        self.left = status.st_size - _SEAL  # before the seal
        self.digest = hashlib.sha256()

    def fill(self, view: memoryview) -> memoryview:
        if len(view) > self.left:
            raise _Damaged(f"{len(view)} bytes are declared where {self.left} are left")
        filled = 0
        while filled < len(view):
            got = self.file.readinto(view[filled:])  # type: ignore[attr-defined]
            if not got:
                raise _Damaged("it ends early")
            filled += got
        self.left -= len(view)
        self.digest.update(view)
        return view

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise _Damaged(f"{count} bytes are declared where {self.left} are left")
        return bytes(self.fill(memoryview(bytearray(count))))

    def sealed(self) -> bool:
        """Read what is left and compare the sha256 at the end."""
        buffer = memoryview(bytearray(min(_CHUNK, self.left)))
        while self.left:
            self.fill(buffer[: min(_CHUNK, self.left)])
        return self.file.read(_SEAL) == self.digest.digest()


def _open(path: Path) -> BinaryIO:
    # O_NONBLOCK: a pipe under this name must not make us wait for its writer
    extra = getattr(os, "O_NONBLOCK", 0)
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | extra))
    except IsADirectoryError:
        raise _Damaged("it is a folder") from None


def _whole(path: Path) -> bool:
    try:
        with _open(path) as file:
            source = _Source(file)
            return source.take(len(MAGIC)) == MAGIC and source.sealed()
    except (OSError, _Damaged):
        return False


def begins_like_one(path: Path) -> bool:
    """Whether a file begins like what ``save`` and ``write_part`` write, be it whole or not."""
    try:
        with _open(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, _Damaged):
        return False


def _read(path: Path) -> tuple[dict[str, AnyArray], dict[str, Any], str]:
    """Arrays, meta and sha256 of a file."""
    with _open(path) as file:
        source = _Source(file)
        magic, version, length = _PREFIX.unpack(source.take(_PREFIX.size))
        if magic != MAGIC:
            raise _Damaged("it does not start like a checkpoint of proxskip")
        if version != VERSION:
            if source.sealed():  # whole, and perhaps newer than what we could fall back to
                raise _OtherVersion(version)
            raise _Damaged(f"its format version reads {version} instead of {VERSION}, and its sha256 is wrong")
        if length > HEADER_LIMIT:
            raise _Damaged(f"its header claims {length} bytes of at most {HEADER_LIMIT}")
        entries, meta = _parse_header(source.take(length), source.left)
        arrays = {name: _fill_array(source, dtype, shape) for name, dtype, shape in entries}
        if not source.sealed():
            raise _Damaged("its sha256 is wrong")
    return arrays, meta, source.digest.hexdigest()


def _fill_array(source: _Source, dtype: str, shape: tuple[int, ...]) -> AnyArray:
    try:
        array: AnyArray = np.empty(shape, dtype=dtype)
    except (ValueError, MemoryError) as error:
        raise _Damaged(f"an array of shape {cut(str(shape))} cannot be made: {error}") from None
    source.fill(array.reshape(-1).view(np.uint8).data)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _parse_header(raw: bytes, available: int) -> tuple[list[tuple[str, str, tuple[int, ...]]], dict[str, Any]]:
    """Names, dtypes and shapes of arrays that fill ``available`` bytes exactly, and the meta dict."""
    try:
        header = json.loads(raw.decode("utf-8"))
        again = canonical(header)  # refuses repeated keys, and every second way to write the same header
    except (ValueError, RecursionError):
        raise _Damaged("its header is not JSON") from None
    if again != raw or not isinstance(header, dict) or set(header) != {"arrays", "meta"}:
        raise _Damaged("its header is not the one proxskip writes")
    if not isinstance(header["meta"], dict) or not isinstance(header["arrays"], list):
        raise _Damaged("its header is not the one proxskip writes")
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    names: set[str] = set()
    end = 0
    for entry in header["arrays"]:
        name, dtype, shape, nbytes = _parse_entry(entry, end)
        if name in names:
            raise _Damaged(f"two arrays are called {cut(repr(name))}")
        names.add(name)
        entries.append((name, dtype, shape))
        end += nbytes
    if end != available:
        raise _Damaged(f"its arrays claim {end} bytes and the file has {available} for them")
    return entries, header["meta"]


def _parse_entry(entry: Any, offset: int) -> tuple[str, str, tuple[int, ...], int]:
    if not isinstance(entry, dict) or set(entry) != _ENTRY_KEYS or not isinstance(entry["name"], str):
        raise _Damaged("its header describes something that is not an array")
    shown = f"array {cut(repr(entry['name']))}"
    dtype, shape = entry["dtype"], entry["shape"]
    if dtype not in DTYPES:
        raise _Damaged(f"{shown} has dtype {cut(repr(dtype))}, which is none of {' '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 64 or not all(type(k) is int and 0 <= k < 2**63 for k in shape):
        raise _Damaged(f"{shown} has shape {cut(repr(shape))}")
    itemsize = np.dtype(dtype).itemsize
    if math.prod(k for k in shape if k) * itemsize >= 2**63:  # also where another dimension is 0
        raise _Damaged(f"{shown} has shape {cut(repr(shape))}, which no array can have")
    nbytes = math.prod(shape) * itemsize
    if type(entry["nbytes"]) is not int or entry["nbytes"] != nbytes:
        raise _Damaged(f"{shown} claims {cut(repr(entry['nbytes']))} bytes and its shape needs {nbytes}")
    if type(entry["offset"]) is not int or entry["offset"] != offset:
        raise _Damaged(f"{shown} claims offset {cut(repr(entry['offset']))} instead of {offset}")
    return entry["name"], dtype, tuple(shape), nbytes


# ---------------------------------------------------------------------------------------------- differences


def _differences(prefix: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for key in [*wanted, *(key for key in saved if key not in wanted)]:
        field = f"{prefix}{key}"
        if key in saved and key in wanted and isinstance(saved[key], Mapping) and isinstance(wanted[key], Mapping):
            yield from _differences(f"{field}.", saved[key], wanted[key])
            continue
        old = checked_plain(saved[key], field, lists=True) if key in saved else None
        new = checked_plain(wanted[key], field, lists=True) if key in wanted else None
        if key not in saved:
            yield f"{field}: not saved, now {cut(repr(new))}"
        elif key not in wanted:
            yield f"{field}: saved {cut(repr(old))}, now absent"
        elif not _same(old, new):
            a, b = repr(old), repr(new)
            end = min(len(a), len(b))
            start = next((k for k in range(end) if a[k] != b[k]), end)
            yield f"{field}: saved {cut(a, start)}, now {cut(b, start)}"


def _same(a: Any, b: Any) -> bool:
    """Equal values: 1 is 1.0 but not True, and NaN is NaN."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and a != a and b != b)
