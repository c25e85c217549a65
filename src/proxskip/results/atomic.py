"""Files that are written whole or not at all, through crashes and power loss.

A single file (``atomic_write``) is written and fsynced beside its name, and then renamed to it.

A file with an older generation (``replace_keeping``) goes from one state to the next without a moment in which neither
generation is whole:

    1. write and fsync a new file beside it                     NAME = old   NAME.previous = older
    2. give the old NAME a second, temporary, directory entry
    3. rename the new file to NAME, fsync the folder            NAME = new   NAME.previous = older
    4. rename the second entry to NAME.previous, fsync          NAME = new   NAME.previous = old

NAME is never absent and never half written, and the older generation is let go only when the new one is on disk, so a
crash anywhere leaves the old or the new state under NAME. The caller says whether the old NAME is worth keeping: a
damaged NAME must not push out a whole NAME.previous. The order of generations assumes one writer per name and folder;
two writers would still leave only whole files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from proxskip.results.plain import checked_plain

STALE_SECONDS = 3600.0
"""Age after which a temporary file was left behind by a killed process; longer than any save that is still alive."""


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that its name holds the old or the new bytes at every moment, power loss included."""
    atomic_write_pieces(path, [data])


def atomic_write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """The same, of a file that is given in pieces."""
    path = Path(path)
    temp = _write_beside(path, pieces)
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
    plain = checked_plain(obj, "the object", finite=True)
    atomic_write_text(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")


def replace_keeping(
    current: Path, previous: Path, pieces: Iterable[bytes | memoryview], is_whole: Callable[[Path], bool]
) -> None:
    """The four steps at the top of this file; what is under ``current`` is kept only if ``is_whole`` says so."""
    new = _write_beside(current, pieces)
    aside = _beside(previous)
    try:
        keep = is_whole(current)
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
    """Give the file a second name: a hard link, or a copy where there are none."""
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
    """A name for a temporary file in the same folder, so that a rename stays on one file system."""
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
                while rest:  # a write may be short, and one of 2 GiB or more fails on some systems
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
    """Make renames in the folder survive a power loss."""
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


def remove_stale(current: Path) -> None:
    """Remove temporary files of processes that were killed while they wrote ``current``."""
    with contextlib.suppress(OSError):
        for path in list(current.parent.glob(f".{current.name}.*.tmp")):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                _remove(path)
