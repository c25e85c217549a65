"""One writer per folder: a lock that a process holds as long as it lives, and that names it to others.

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
from typing import TYPE_CHECKING

from proxskip.types import InputError

if TYPE_CHECKING:  # it takes 6 MB, which an actor of Ray does not need
    from filelock import BaseFileLock

NAME = ".lock"
LONGEST = 1024
"""Bytes of a lock file, at most: a longer file is somebody's data."""


class FolderLock:
    """Held from ``take`` to ``release``; InputError where another process, or another run of this one, holds it."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.path = Path(folder) / name
        self.holder = self.path.with_name(f"{name}.pid")
        self.lock: BaseFileLock | None = None

    def take(self, patient: bool = False) -> FolderLock:
        """Lock the folder, which must exist.

        Args:
            patient: wait for whoever holds it.
        """
        from filelock import FileLock, Timeout

        self._refuse_other_files()
        lock = FileLock(self.path, thread_local=False)
        try:
            lock.acquire(timeout=-1 if patient else 0)
        except Timeout:
            raise InputError(
                f"{self.path.parent} is being written by process {self._number() or 'of an unknown number'}; "
                "wait for it, or choose another folder."
            ) from None
        self.lock = lock
        with contextlib.suppress(OSError):  # it is for the message alone
            self.holder.unlink(missing_ok=True)
            with open(self.holder, "x") as file:  # "x" follows no link
                file.write(str(os.getpid()))
        return self

    def release(self) -> None:
        """Give the folder free; without a lock, nothing."""
        lock, self.lock = self.lock, None
        if lock is None:
            return
        from filelock import UnixFileLock

        with contextlib.suppress(OSError):
            self.holder.unlink(missing_ok=True)
            # The other kinds of lock remove their file themselves. It goes before the lock does: whoever gets the lock
            # of a file that is gone tries again with a new one.
            if isinstance(lock, UnixFileLock):
                self.path.unlink()
        lock.release()

    def _refuse_other_files(self) -> None:
        """What is in the lock's place may be a link to another file, or a file of the user's."""
        with contextlib.suppress(FileNotFoundError):
            about = os.lstat(self.path)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or about.st_size > LONGEST:
                raise InputError(f"{self.path} is not a lock file but a link or other data; move it away.")

    def _number(self) -> str:
        """The process that holds the lock; empty if it has not said so yet."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            number = self.holder.read_text(encoding="ascii")
            return number if number.isdigit() else ""
        return ""


@contextmanager
def held(folder: Path, patient: bool = False, name: str = NAME) -> Iterator[None]:
    """Hold a folder's lock, or one of several by its name."""
    lock = FolderLock(folder, name).take(patient)
    try:
        yield
    finally:
        lock.release()


def refuse_if_held(folder: Path) -> None:
    """InputError if somebody writes to the folder at this moment."""
    if (folder / NAME).exists():
        with contextlib.suppress(PermissionError), held(folder):
            pass
