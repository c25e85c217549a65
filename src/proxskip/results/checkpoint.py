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

How ``save`` replaces NAME without a moment in which neither generation is whole:

    1. write and fsync a new file beside it                     NAME = old   NAME.previous = older
    2. give the old NAME a second, temporary, directory entry
    3. rename the new file to NAME, fsync the folder            NAME = new   NAME.previous = older
    4. rename the second entry to NAME.previous, fsync          NAME = new   NAME.previous = old

NAME is never absent and never half written, and the older generation is let go only when the new one is on
disk, so a crash anywhere leaves the old or the new state under NAME. Step 2 checks the old sha256 first: a
damaged NAME does not push out a whole NAME.previous. The order of generations assumes one writer per name and
folder; two writers would still leave only whole files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from proxskip.types import InputError

MAGIC = b"PROXSKIP"
VERSION = 1
DTYPES = ("<f8", "<i8", "<u8", "<f4")
HEADER_LIMIT = 1 << 20  # parsed JSON takes up to 40 times its text, and loading must stay below 64 MB beside the arrays
STALE_SECONDS = 3600.0

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
    """What was saved, which generation it is, and a note when it is not the one that was asked for."""

    arrays: dict[str, AnyArray]
    meta: dict[str, Any]
    generation: Literal["current", "previous"]
    note: str | None


# ---------------------------------------------------------------------------------------------- save and load


def save(folder: Path, arrays: Mapping[str, AnyArray], meta: Mapping[str, Any], *, name: str = "checkpoint") -> Path:
    """Save ``arrays`` (f8, i8, u8, f4) and ``meta`` (JSON) as the current generation; the last one is kept.

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
        _commit(current, previous, pieces)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"cannot save {current}: {reason}; what was saved before is intact.") from error
    _tidy(current)
    return current


def load(folder: Path, *, name: str = "checkpoint") -> Checkpoint:
    """The newest whole generation; CheckpointError with each file and reason when there is none."""
    current, previous = _generations(folder, name)
    reasons = []
    missing = 0
    for path in (current, previous):
        try:
            arrays, meta = _read(path)
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


# ----------------------------------------------------------------------------------------------- single files


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that its name holds the old or the new bytes at every moment, power loss included."""
    path = Path(path)
    temp = _write_beside(path, [data])
    try:
        os.replace(temp, path)
    except BaseException:
        _remove(temp)
        raise
    _sync_folder(path.parent)


def atomic_write_text(path: Path, text: str) -> None:
    """``atomic_write`` in UTF-8, line ends as given."""
    atomic_write(path, text.encode("utf-8"))


def atomic_write_json(path: Path, obj: Any) -> None:
    """``atomic_write`` as standard JSON: keys in the order given, NaN and infinities null, arrays lists."""
    plain = _without_nan(_checked_plain(obj, "the object", lists=True))
    atomic_write_text(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")


def safe_name(name: str) -> str:
    """``name`` itself if it can be a file name or run id everywhere; InputError otherwise."""
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", name):
        return name
    raise InputError(f"{_cut(repr(name))} cannot be a name: use 1 to 64 of A-Z a-z 0-9 . _ - and no dot at the start.")


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
            raise InputError(f"an array is called {_cut(repr(name))}: only text can be a name.")
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
    plain = _checked_plain({"arrays": entries, "meta": meta}, "the checkpoint", lists=False)
    header = _canonical(plain)
    if len(header) > HEADER_LIMIT:
        raise InputError(
            f"meta and array names take {len(header)} bytes of {HEADER_LIMIT}: put long lists into arrays."
        )
    pieces: list[bytes | memoryview] = [_PREFIX.pack(MAGIC, VERSION, len(header)), header, *data]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


def _commit(current: Path, previous: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """The four steps at the top of this file."""
    new = _write_beside(current, pieces)
    aside = _beside(previous)
    try:
        keep = _whole(current)
        if keep:
            _second_entry(current, aside)
        os.replace(new, current)
        _sync_folder(current.parent)
        if keep:
            os.replace(aside, previous)
            _sync_folder(current.parent)
    finally:
        _remove(new)
        _remove(aside)


def _second_entry(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:  # a file system without hard links: a copy serves as well
        shutil.copyfile(path, other)
        descriptor = os.open(other, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def _write_beside(path: Path, pieces: Iterable[bytes | memoryview]) -> Path:
    """A new, complete, fsynced file in the folder of ``path``; none at all if that fails."""
    temp = _beside(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temp, flags, 0o666)
    try:
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest[: 1 << 30]) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        _remove(temp)
        raise
    return temp


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # no folder can be opened there; renames are journalled
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have no such operation
            raise
    finally:
        os.close(descriptor)


def _tidy(current: Path) -> None:
    """Remove what killed savers left behind; an hour is longer than any save that is still alive."""
    with contextlib.suppress(OSError):
        for path in list(current.parent.glob(f".{current.name}.*.tmp")):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                _remove(path)


# ------------------------------------------------------------------------------------------------- reading


class _Source:
    """A file read once, front to back, into a sha256; nothing beyond ``size`` is ever asked for."""

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


def _read(path: Path) -> tuple[dict[str, AnyArray], dict[str, Any]]:
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
    return arrays, meta


def _fill_array(source: _Source, dtype: str, shape: tuple[int, ...]) -> AnyArray:
    try:
        array: AnyArray = np.empty(shape, dtype=dtype)
    except (ValueError, MemoryError) as error:
        raise _Damaged(f"an array of shape {_cut(str(shape))} cannot be made: {error}") from None
    source.fill(array.reshape(-1).view(np.uint8).data)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _parse_header(raw: bytes, available: int) -> tuple[list[tuple[str, str, tuple[int, ...]]], dict[str, Any]]:
    """Names, dtypes and shapes of arrays that fill ``available`` bytes exactly, and the meta dict."""
    try:
        header = json.loads(raw.decode("utf-8"))
        canonical = _canonical(header)  # refuses repeated keys, and every second way to write the same header
    except (ValueError, RecursionError):
        raise _Damaged("its header is not JSON") from None
    if canonical != raw or not isinstance(header, dict) or set(header) != {"arrays", "meta"}:
        raise _Damaged("its header is not the one proxskip writes")
    if not isinstance(header["meta"], dict) or not isinstance(header["arrays"], list):
        raise _Damaged("its header is not the one proxskip writes")
    entries: list[tuple[str, str, tuple[int, ...]]] = []
    names: set[str] = set()
    end = 0
    for entry in header["arrays"]:
        name, dtype, shape, nbytes = _parse_entry(entry, end)
        if name in names:
            raise _Damaged(f"two arrays are called {_cut(repr(name))}")
        names.add(name)
        entries.append((name, dtype, shape))
        end += nbytes
    if end != available:
        raise _Damaged(f"its arrays claim {end} bytes and the file has {available} for them")
    return entries, header["meta"]


def _parse_entry(entry: Any, offset: int) -> tuple[str, str, tuple[int, ...], int]:
    if not isinstance(entry, dict) or set(entry) != _ENTRY_KEYS or not isinstance(entry["name"], str):
        raise _Damaged("its header describes something that is not an array")
    shown = f"array {_cut(repr(entry['name']))}"
    dtype, shape = entry["dtype"], entry["shape"]
    if dtype not in DTYPES:
        raise _Damaged(f"{shown} has dtype {_cut(repr(dtype))}, which is none of {' '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 64 or not all(type(k) is int and 0 <= k < 2**63 for k in shape):
        raise _Damaged(f"{shown} has shape {_cut(repr(shape))}")
    itemsize = np.dtype(dtype).itemsize
    if math.prod(k for k in shape if k) * itemsize >= 2**63:  # also where another dimension is 0
        raise _Damaged(f"{shown} has shape {_cut(repr(shape))}, which no array can have")
    nbytes = math.prod(shape) * itemsize
    if type(entry["nbytes"]) is not int or entry["nbytes"] != nbytes:
        raise _Damaged(f"{shown} claims {_cut(repr(entry['nbytes']))} bytes and its shape needs {nbytes}")
    if type(entry["offset"]) is not int or entry["offset"] != offset:
        raise _Damaged(f"{shown} claims offset {_cut(repr(entry['offset']))} instead of {offset}")
    return entry["name"], dtype, tuple(shape), nbytes


# ---------------------------------------------------------------------------------------------------- JSON


def _canonical(plain: Any) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("ascii")


def _checked_plain(value: Any, field: str, *, lists: bool) -> Any:
    try:
        return _plain(value, field, lists)
    except RecursionError:
        raise InputError(f"{field} is nested too deeply, or contains itself: flatten it.") from None


def _plain(value: Any, field: str, lists: bool) -> Any:
    """``value`` in the types JSON has, or InputError; ``lists`` allows arrays to become lists."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (np.bool_, np.integer)):
        return value.item()
    if isinstance(value, float) or (isinstance(value, np.floating) and value.itemsize <= 8):
        return float(value)
    if isinstance(value, int) and abs(value) < 2**256:
        return int(value)
    if isinstance(value, str) and _is_text(value):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or not _is_text(key):
                raise InputError(f"{field} has the key {_cut(repr(key))}: only text can be a key.")
        return {key: _plain(item, f"{field}.{key}", lists) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{field}[{k}]", lists) for k, item in enumerate(value)]
    if lists and isinstance(value, np.ndarray):
        return _plain(value.tolist(), field, lists)
    raise InputError(
        f"{_cut(field)} is a {type(value).__name__} that JSON cannot hold: "
        "use numbers (below 2**256), text, None, lists and dicts."
    )


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")  # no lone surrogates: two of them would come back as one character
    except UnicodeEncodeError:
        return False
    return True


def _without_nan(plain: Any) -> Any:
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else None
    if isinstance(plain, dict):
        return {key: _without_nan(item) for key, item in plain.items()}
    if isinstance(plain, list):
        return [_without_nan(item) for item in plain]
    return plain


# ---------------------------------------------------------------------------------------------- differences


def _differences(prefix: str, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for key in [*wanted, *(key for key in saved if key not in wanted)]:
        field = f"{prefix}{key}"
        if key in saved and key in wanted and isinstance(saved[key], Mapping) and isinstance(wanted[key], Mapping):
            yield from _differences(f"{field}.", saved[key], wanted[key])
            continue
        old = _checked_plain(saved[key], field, lists=True) if key in saved else None
        new = _checked_plain(wanted[key], field, lists=True) if key in wanted else None
        if key not in saved:
            yield f"{field}: not saved, now {_cut(repr(new))}"
        elif key not in wanted:
            yield f"{field}: saved {_cut(repr(old))}, now absent"
        elif not _same(old, new):
            a, b = repr(old), repr(new)
            end = min(len(a), len(b))
            start = next((k for k in range(end) if a[k] != b[k]), end)
            yield f"{field}: saved {_cut(a, start)}, now {_cut(b, start)}"


def _same(a: Any, b: Any) -> bool:
    """Equal values: 1 is 1.0 but not True, and NaN is NaN."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and a != a and b != b)


def _cut(text: str, around: int = 0) -> str:
    """At most 80 characters of ``text``, containing position ``around``."""
    if len(text) <= 80:
        return text
    start = max(0, around - 30)
    return ("..." if start else "") + text[start : start + 70] + ("..." if start + 70 < len(text) else "")
