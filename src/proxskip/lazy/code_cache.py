"""Where compiled code is kept: a folder for each state of the sources, which several processes may share.

Numba looks at the source of a function alone, not at those of functions that it calls, and numbers its files without a
lock (numba issue 4807). So the folder is named by the digest of all sources of a kernel, and one process at a time
loads or compiles. Where other users may write, no code is read or written.
"""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from proxskip.version import __version__

_PROGRAM = Path(__file__).parents[1]


def folder_of(sources: Iterable[str]) -> Path | None:
    """The folder for code that is made from these files; None where no code may be kept."""
    digest = hashlib.sha256(f"{__version__} {_compiler()}".encode())
    for source in sorted(sources):
        digest.update(_digest(source))
    folder = _root() / f"kernels-{digest.hexdigest()[:32]}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder if all(map(may_keep_code, (folder.parent, folder))) else None


def _root() -> Path:
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen)
    beside = _PROGRAM / "__pycache__"
    with suppress(OSError):
        beside.mkdir(exist_ok=True)
    return beside if os.access(beside, os.W_OK) else Path.home() / ".cache" / "proxskip"


@cache
def _compiler() -> str:
    return f"{version('numba')} {version('llvmlite')}"


@cache
def _digest(source: str) -> bytes:
    return hashlib.sha256(Path(source).read_bytes()).digest()


def may_keep_code(folder: Path) -> bool:
    """Whether a folder is safe for code that will run; a warning where it is not."""
    try:
        if is_safe(os.stat(folder), os.stat(_PROGRAM)):
            return os.access(folder, os.W_OK)
    except OSError:  # a folder that does not exist and cannot be made
        return False
    warnings.warn(
        f"{folder} may be written by other users, so no compiled code is kept there, and every process compiles anew; "
        "take their right to write, or set NUMBA_CACHE_DIR to a folder of your own.",
        stacklevel=2,
    )
    return False


def is_safe(about: os.stat_result, program: os.stat_result) -> bool:
    """Whether only those may write to a file or folder who could also change the program."""
    user = os.geteuid() if hasattr(os, "geteuid") else about.st_uid
    # many systems give every user a group of the same number, and this group the right to write
    groups = {about.st_uid} | ({program.st_gid} if program.st_mode & stat.S_IWGRP else set())
    return (
        about.st_uid in (0, user, program.st_uid)
        and not about.st_mode & ~program.st_mode & stat.S_IWOTH
        and (not about.st_mode & stat.S_IWGRP or about.st_gid in groups)
    )


def read(path: Path) -> bytes | None:
    """The code in a file, if it is complete and belongs to nobody else."""
    with suppress(OSError):
        if path.is_symlink() or not is_safe(os.stat(path), os.stat(_PROGRAM)):
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            return content[32:]
    return None


def write(path: Path, code: bytes) -> None:
    """Write all of the code or nothing, since others may read meanwhile; without the file the next process compiles."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        part.unlink(missing_ok=True)
        part.write_bytes(hashlib.sha256(code).digest() + code)
        os.replace(part, path)


@cache
def compiler_lock() -> Any:
    """Held by one thread of all processes that keep code in the same place; a thread may take it again.

    Where no file can be locked, nobody waits.
    """
    from filelock import FileLock, SoftFileLock

    # a lock that is only a file would be left behind by a process that is killed
    if FileLock is not SoftFileLock:
        with suppress(OSError):
            _root().mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(_root() / "proxskip-kernels.lock", poll_interval=0.01)
            with lock:
                return lock
    return nullcontext()
