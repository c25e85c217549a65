"""Files that are written whole or not at all, through crashes and power loss.

A file is written and fsynced beside its name, and then renamed to it. Where the old file is kept as an older
generation, it is renamed first, so that at every moment at least one of the two names holds a whole file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from proxskip.results.plain import checked_plain

STALE_SECONDS = 3600.0
"""Age after which a temporary file was left behind by a killed process; longer than any save that is still alive."""


def atomic_write(path: Path, *pieces: bytes | memoryview, previous: Path | None = None) -> None:
    """Write a file so that its name holds the old or the new bytes at every moment, power loss included.

    Args:
        previous: where the old file is kept; ``path`` is missing for a moment then, and ``previous`` is whole.
    """
    temp = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # a rename must stay on one file system
    try:
        with open(temp, "xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None:
            os.replace(path, previous)
        os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temp.unlink()
        raise
    _sync_folder(path.parent)


def atomic_write_text(path: Path, text: str) -> None:
    """``atomic_write`` in UTF-8, line ends as given."""
    atomic_write(path, text.encode("utf-8"))


def atomic_write_json(path: Path, obj: Any) -> None:
    """``atomic_write`` as standard JSON: keys in the order given, NaN and infinities null, arrays lists."""
    plain = checked_plain(obj, "the object", finite=True)
    atomic_write_text(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")


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
                path.unlink()
