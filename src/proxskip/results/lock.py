"""One writer per folder: a lock that lasts as long as its process, and names it to others.

The lock is the system's (``filelock`` on a file in the folder), so that one whose process is gone, however it ended, is
free at once, whatever process has its number by now. A second file holds the number of the process, for the message.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxskip.types import InputError

NAME = ".lock"
LONGEST = 1024
"""Bytes of a lock file, at most: a longer file is user data."""


@contextmanager
def held(folder: Path, patient: bool = False, name: str = NAME) -> Iterator[None]:
    """Hold a folder's lock; InputError if another process, or another run of this one, holds it.

    Args:
        patient: wait until the lock is free.
        name: of the lock, where a folder has several.
    """
    from filelock import FileLock, Timeout, UnixFileLock  # 6 MB, which an actor of Ray does not need

    path = Path(folder) / name
    holder = path.with_name(f"{name}.pid")
    _refuse_other_files(path)
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=-1 if patient else 0)
    except Timeout:
        other = _process(holder)
        raise InputError(f"{path.parent} is being written by {other}; wait for it, or use another folder.") from None
    try:
        with contextlib.suppress(OSError):  # it is for the message alone
            holder.unlink(missing_ok=True)
            with open(holder, "x") as file:  # "x" follows no link
                file.write(str(os.getpid()))
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
            # The other kinds of lock remove their file themselves. It goes before the lock does: whoever gets the lock
            # of a file that is gone tries again with a new one.
            if isinstance(lock, UnixFileLock):
                path.unlink()
        lock.release()


def _refuse_other_files(path: Path) -> None:
    """What is in the lock's place may be a link to another file, or a file of the user's."""
    with contextlib.suppress(FileNotFoundError):
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or about.st_size > LONGEST:
            raise InputError(f"{path} is not a lock file but a link or other data; move it away.")


def _process(holder: Path) -> str:
    """The process that holds the lock, as far as its file says."""
    with contextlib.suppress(OSError, ValueError):
        return f"process {int(holder.read_text(encoding='ascii'))}"
    return "another process"


def refuse_if_held(folder: Path) -> None:
    """InputError if a process is writing to the folder."""
    if (folder / NAME).exists():
        with contextlib.suppress(PermissionError), held(folder):
            pass
