"""A store for the memory of clients that have taken part, which grows and spills to a file.

With cohorts of a thousand out of a million clients, most rows of an (n, d) array would never change. ``RowStore`` has
no row for a client before it takes part. Beyond a limit its arrays move to unnamed memory-mapped files. ``RowView``
stands for the (n, d) array.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.types import Array, Indices, InputError, Vectors

LIMIT = 2 << 30
"""The most bytes of rows in memory; the rest lies in files."""
FEWEST_ROWS = 64
GROWTH = 1.5
"""The least growth of a full file."""
ROWS_AT_A_TIME = 8192
"""Rows read at once when all are read."""


class RowStore:
    """The rows of clients that have taken part, by name.

    Args:
        initial: each client's first row, by name.
        folder: for the files that hold rows beyond the limit; by default the folder for temporary files.
    """

    def __init__(self, n: int, d: int, initial: Vectors, folder: Path | None = None) -> None:
        self.n, self.d, self.initial, self.folder = n, d, initial, folder
        self.place = np.full(n, -1, dtype=np.int64)  # of each client's row; -1 for those that never took part
        self.used = 0
        self.clients = np.zeros(0, dtype=np.int64)  # whose row it is
        self.arrays: Vectors = {name: np.zeros((0, d)) for name in initial}
        self.files: dict[str, Any] = {}
        self.admitted: tuple[Indices | None, Indices] = (None, self.place[:0])  # the last cohort, and its places
        self.log: list[tuple[Indices, Vectors]] | None = None

    @staticmethod
    def of(names: Iterable[str], n: int, x0: Array, folder: Path | None = None) -> RowStore:
        """For a run from x0: rows start at zero, and ``x`` at x0."""
        initial = {k: x0 if k == "x" else np.zeros(len(x0)) for k in names}
        return RowStore(n, len(x0), initial, folder)

    # -- rows ----------------------------------------------------------------------------------------------------------
    def admit(self, clients: Indices) -> Indices:
        """Where the rows of these clients are, before they change; new clients get one."""
        if clients is self.admitted[0]:  # again in the same round: already logged
            return self.admitted[1]
        places: Indices = self.place[clients]
        new = clients[places < 0]
        if len(new):
            self._append(new)
            places = self.place[clients]
        if self.log is not None:
            self.log.append((places, {k: self.arrays[k][places] for k in self.initial}))
        self.admitted = clients, places
        return places

    def _append(self, new: Indices) -> None:
        end = self.used + len(new)
        if end > len(self.clients):
            self._grow(end)
        self.place[new] = np.arange(self.used, end)
        self.clients[self.used : end] = new
        for name, row in self.initial.items():
            if row.any():  # new rows are zero
                self.arrays[name][self.used : end] = row
        self.used = end

    def view(self, name: str) -> RowView:
        """All clients' rows, those that never took part included."""
        return RowView(self, name)

    # -- undoing a round -----------------------------------------------------------------------------------------------
    def mark(self, keep: bool) -> None:
        """A round begins; with ``keep``, ``rewind`` can undo it."""
        self.log, self.admitted = [] if keep else None, (None, self.place[:0])

    def rewind(self) -> None:
        for places, rows in reversed(self.log or []):
            for name, v in rows.items():
                self.arrays[name][places] = v

    # -- growth --------------------------------------------------------------------------------------------------------
    def _grow(self, rows: int) -> None:
        """Make room for at least this many rows."""
        capacity = min(self.n, LIMIT // (8 * self.d * max(1, len(self.initial))))
        if rows <= capacity:  # all that fits: the system only provides pages that are written to
            self.arrays |= {name: np.zeros((capacity, self.d)) for name in self.initial}
        else:
            capacity = min(self.n, max(rows, FEWEST_ROWS, int(GROWTH * len(self.clients))))
            for name in self.initial:  # one after another, so that only one exists twice
                self.arrays[name] = self._mapped(name, capacity)
        self.clients = np.append(self.clients, np.zeros(capacity - len(self.clients), dtype=np.int64))

    def _mapped(self, name: str, rows: int) -> Array:
        """The rows in an unnamed file, which disappears once nobody uses it."""
        try:
            is_new = name not in self.files
            if is_new:
                self.files[name] = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
                weakref.finalize(self, self.files[name].close)
            if hasattr(os, "posix_fallocate"):
                # reserve the space now: writing to a mapped page on a full disk would kill the process
                os.posix_fallocate(self.files[name].fileno(), 0, rows * self.d * 8)
            array = np.asarray(np.memmap(self.files[name], np.float64, "r+", shape=(rows, self.d)))
        except OSError as error:
            where = self.folder or tempfile.gettempdir()
            raise InputError(
                f"no space in {where} for the memory of {rows} clients ({error.strerror}); free some, or use fewer "
                "rounds or smaller cohorts."
            ) from error
        if is_new:
            array[: self.used] = self.arrays[name][: self.used]
        return array


class RowView:
    """Stands for the (n, d) array of all clients' memory under one name.

    ``view[i]`` and ``view[[i, j]]`` are rows, and ``np.asarray(view)`` makes the array. Adding or subtracting a number,
    or one row for all, gives another view. It always shows the current rows.
    """

    ndim = 2
    dtype = np.dtype(np.float64)

    def __init__(self, store: RowStore, name: str, then: tuple[tuple[Any, Any], ...] = ()) -> None:
        self.store, self.name, self.then = store, name, then
        self.shape = (store.n, store.d)
        self.sums: list[tuple[Array, Array, float]] = []
        """Weights, their weighted sum, and the largest entry, so that a record adds up only once."""

    def __len__(self) -> int:
        return self.store.n

    def __repr__(self) -> str:
        return (
            f"RowView({self.name} of {self.store.used:,} among {self.store.n:,} clients, {self.store.d} numbers each)"
        )

    @property
    def clients(self) -> Indices:
        """Clients that have taken part, in increasing order."""
        return np.flatnonzero(self.store.place >= 0)

    @property
    def elsewhere(self) -> Array:
        """The row of all other clients."""
        return np.asarray(self._finished(self.store.initial[self.name][None, :])[0])

    def rows(self, clients: Indices) -> Array:
        places, first = self.store.place[clients], self.store.initial[self.name]
        if not self.store.used:
            return self._finished(np.tile(first, (len(places), 1)))
        rows = self.store.arrays[self.name][places]
        rows[places < 0] = first
        return self._finished(rows)

    def parts(self) -> Iterator[Array]:
        """All existing rows, in blocks and in no order."""
        for lo in range(0, self.store.used, ROWS_AT_A_TIME):
            yield self._finished(self.store.arrays[self.name][lo : min(lo + ROWS_AT_A_TIME, self.store.used)])

    def largest(self) -> float:
        """The largest absolute entry; NaN if one is."""
        if self.sums:
            return self.sums[0][2]
        others = [self.elsewhere[None, :]] if self.store.used < self.store.n else []
        sizes = [np.abs(rows).max(initial=0.0) for rows in (*self.parts(), *others)]
        return float(np.max(sizes, initial=0.0))

    def _finished(self, rows: Array) -> Array:
        for operation, other in self.then:
            rows = np.asarray(operation(rows, other))
        return rows

    def __getitem__(self, key: Any) -> Any:
        clients = np.arange(self.store.n)[key]
        rows = self.rows(np.atleast_1d(clients))
        return rows if np.ndim(clients) else rows[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.rows(np.arange(self.store.n)).astype(dtype or np.float64, copy=False)

    def tobytes(self) -> bytes:
        return np.asarray(self).tobytes()

    def _and(self, operation: Any, other: Any) -> RowView:
        if np.ndim(other) > 1:
            raise InputError(f"the memory of {self.store.n:,} clients is stored by rows; select rows first: view[i].")
        return RowView(self.store, self.name, (*self.then, (operation, other)))

    def __sub__(self, other: Any) -> RowView:
        return self._and(np.subtract, other)

    def __add__(self, other: Any) -> RowView:
        return self._and(np.add, other)
