"""What clients remember: rows of which the system makes only the pages that are written to, and a journal of a round.

With cohorts of a thousand out of a million clients, most rows of an (n, d) array never change. ``zero_rows`` gives an
array for which the system provides memory where it is written to, and nowhere else. ``MemoryRows`` knows in addition
which rows these are, so that copies and sums leave the others alone.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.types import Array, Indices


def zero_rows(n: int, d: int) -> Array:
    """(n, d) zeros; the system makes a page of them when it is written to.

    ``np.zeros`` would do on some systems. Linux gives it huge pages, of which a single row makes two megabytes.
    """
    size = max(1, 8 * n * d)
    if hasattr(mmap, "MAP_PRIVATE"):  # a shared mapping would be written to by forked processes
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        pages = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.float64, n * d).reshape(n, d)


class MemoryRows(np.ndarray[Any, Any]):
    """An (n, d) array of zeros but for the rows in ``written``; what is computed from it is an ordinary array."""

    written: npt.NDArray[np.bool_] | None = None
    """Whether each client's row was written to; None for an array of which nothing is known."""

    @staticmethod
    def zeros(n: int, d: int) -> MemoryRows:
        rows = zero_rows(n, d).view(MemoryRows)
        rows.written = np.zeros(n, dtype=np.bool_)
        return rows

    def fill_rows(self, clients: Indices, values: Array) -> None:
        """Write these rows."""
        assert self.written is not None
        self[clients] = values
        self.written[clients] = True

    def copy(self, order: Any = "C") -> Any:
        """A copy of the rows that were written to."""
        if self.written is None:
            return super().copy(order)
        same = MemoryRows.zeros(*self.shape)
        some = np.flatnonzero(self.written)
        same.fill_rows(some, np.asarray(self)[some])
        return same


def written_rows(U: Array) -> Indices | None:
    """The clients whose rows may be other than zero, in increasing order; None if that may be all."""
    written = getattr(U, "written", None)
    return None if written is None else np.flatnonzero(written)


class Journal:
    """What the round under way has overwritten, in order, so that it can be taken back."""

    def __init__(self) -> None:
        self.old: list[tuple[Any, Any, Any]] = []

    def begin(self) -> None:
        """A round begins."""
        self.old.clear()

    def write(self, target: Any, key: Any, value: Any) -> None:
        """``target[key] = value``, for an array or a dict."""
        self.keep(target, key)
        target[key] = value

    def keep(self, target: Any, key: Any) -> None:
        """Note ``target[key]``, which is about to be changed."""
        old = target[key]
        # rows chosen by an index array are a copy already, those chosen by a number or a slice are not
        is_view = isinstance(old, np.ndarray) and isinstance(key, (int, slice))
        self.old.append((target, key, np.array(old) if is_view else old))

    def holds(self, array: Array) -> bool:
        """Whether this very array may come back."""
        return any(old is array for _, _, old in self.old)

    def undo(self) -> None:
        """Take the round back, the last change first."""
        for target, key, old in reversed(self.old):
            target[key] = old
        self.old.clear()
