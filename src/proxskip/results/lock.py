"""One writer per folder: a lock that a process holds as long as it lives, and that names it to others.

The lock is the kernel's (``flock`` on a file in the folder), so that one whose process is gone, however it ended, is
free at once, whatever process has its number by now. The file holds the number of the process, for the message.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxskip.types import InputError

NAME = ".lock"


class FolderLock:
    """Held from ``take`` to ``release``; InputError where another process, or another run of this one, holds it."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.path = Path(folder) / name
        self.file: int | None = None

    def take(self, patient: bool = False) -> FolderLock:
        """Lock the folder, which must exist.

        Args:
            patient: wait for whoever holds it.
        """
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
                # whoever held it before removes the file: then this one is no longer the folder's
                if _same_file(file, self.path):
                    os.ftruncate(file, 0)
                    os.pwrite(file, str(os.getpid()).encode(), 0)
                    self.file = file
                    return self
                os.close(file)
            except BlockingIOError:
                holder = os.pread(file, 32, 0).decode("ascii", "replace").strip()
                os.close(file)
                raise InputError(
                    f"{self.path.parent} is being written by process {holder or 'of an unknown number'}; "
                    "wait for it, or choose another folder."
                ) from None
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(file)
                raise

    def release(self) -> None:
        """Give the folder free; without a lock, nothing."""
        file, self.file = self.file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(file)


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


def _same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
