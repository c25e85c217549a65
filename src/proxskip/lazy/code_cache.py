"""The cache of compiled code: one folder per state of the sources, shared by processes.

Numba only checks the source of a function, not of those it calls, and numbers its files without a lock (numba issue
4807). So the folder is named by the digest of all sources of a kernel, and one process at a time loads or compiles. If
other users may write there, the cache is not used.
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
    """The folder for code made from these files; None if no code may be kept."""
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
    """Whether a folder is safe for code that will run; warns if not."""
    try:
        if is_safe(os.stat(folder), os.stat(_PROGRAM)):
            return os.access(folder, os.W_OK)
    except OSError:  # it cannot be made
        return False
    warnings.warn(
        f"other users can write to {folder}, so compiled code is not cached and every process compiles again; remove "
        "their write permission, or set NUMBA_CACHE_DIR to a folder of your own.",
        stacklevel=2,
    )
    return False


def is_safe(about: os.stat_result, program: os.stat_result) -> bool:
    """Whether only users who could also change the program may write to a file or folder."""
    user = os.geteuid() if hasattr(os, "geteuid") else about.st_uid
    # many systems give each user a group of the same number with write permission
    groups = {about.st_uid} | ({program.st_gid} if program.st_mode & stat.S_IWGRP else set())
    return (
        about.st_uid in (0, user, program.st_uid)
        and not about.st_mode & ~program.st_mode & stat.S_IWOTH
        and (not about.st_mode & stat.S_IWGRP or about.st_gid in groups)
    )


def read(path: Path) -> bytes | None:
    """The code in a file, if it is complete and safe."""
    with suppress(OSError):
        if path.is_symlink() or not is_safe(os.stat(path), os.stat(_PROGRAM)):
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            return content[32:]
    return None


def write(path: Path, code: bytes) -> None:
    """Write all of the code or nothing, because others may be reading."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        part.unlink(missing_ok=True)
        part.write_bytes(hashlib.sha256(code).digest() + code)
        os.replace(part, path)


@cache
def compiler_lock() -> Any:
    """Held by one thread of all processes that share the cache; reentrant. Without file locks, nobody waits."""
    from filelock import FileLock, SoftFileLock

    # a killed process would leave a plain lock file behind
    if FileLock is not SoftFileLock:
        with suppress(OSError):
            _root().mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(_root() / "proxskip-kernels.lock", poll_interval=0.01)
            with lock:
                return lock
    return nullcontext()
