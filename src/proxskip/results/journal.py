"""What many clients remember, saved in parts: a checkpoint writes the rows that changed since the one before.

A part is a file ``memory.NUMBER`` in the format of ``checkpoint``, with the numbers of some clients and their rows. It
is written once and never changed. The checkpoint lists its parts with their sha256, in the order in which they are
read: of a client that is in several the last one counts. Parts are on disk before the checkpoint that lists them, and
are removed when neither of its two generations lists them any more.

A part of whose rows most have been written again elsewhere is left out of the list; its other rows are written with
those that changed. So the parts hold at most about twice the rows that there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.links.rows import RowStore
from proxskip.results import checkpoint
from proxskip.results.checkpoint import CheckpointError
from proxskip.types import Array, Indices

PREFIX = "memory."
NUMBERS = ("owed", "participated")
"""What the loop counts for each client, saved with its rows."""
PART_BYTES = 1 << 26
"""The size of a part, about: it is in memory while it is written or read."""
MOST_PARTS = 256
"""With more of them than this, the smaller half is written again as one."""


@dataclass(frozen=True, slots=True)
class RowsState:
    """A store, and numbers of each of the n clients, of which only those of clients in the store may have changed."""

    store: RowStore
    numbers: Mapping[str, Indices]


@dataclass(frozen=True, slots=True)
class Part:
    """A file: its name, its sha256 and how many rows it holds."""

    name: str
    sha256: str
    rows: int


class Journal:
    """The parts of a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: list[Part] = []
        self.home = np.zeros(0, dtype=np.int64)
        """The part in which each row of the store was saved last, by its place in the list; -1 for none."""
        self.listed: set[str] = set()
        self._next: tuple[list[Part], Indices, Indices] | None = None

    def write(self, state: RowsState) -> dict[str, list[str]]:
        """Write what changed; the list for the checkpoint. Nothing is final before ``commit``."""
        store = state.store
        home = np.append(self.home, np.full(store.used - len(self.home), -1))
        again = store.changed[: store.used].copy()
        alive = np.bincount(home[~again & (home >= 0)], minlength=len(self.parts))
        kept = self._worth_keeping(alive)
        again |= (home >= 0) & ~np.append(kept, False)[home]
        home = np.append(np.cumsum(kept) - 1, -1)[home]
        parts, places = [p for p, keep in zip(self.parts, kept, strict=True) if keep], np.flatnonzero(again)
        each = max(1, PART_BYTES // (8 * (store.d * len(store.arrays) + 1 + len(state.numbers))))
        for some in (places[lo : lo + each] for lo in range(0, len(places), each)):
            parts.append(self._write_part(state, some, len(parts)))
            home[some] = len(parts) - 1
        self._next = parts, home, places
        listed = {"name": [p.name for p in parts], "sha256": [p.sha256 for p in parts]}
        return listed | {"remembers": list(store.arrays)}

    def _worth_keeping(self, alive: Indices) -> Any:
        """Not the parts that are more than half outdated, nor the smaller half where there are too many."""
        kept = 2 * alive >= np.array([p.rows for p in self.parts], dtype=np.int64)
        kept &= alive > 0
        if np.count_nonzero(kept) >= MOST_PARTS:
            kept[np.argsort(alive, kind="stable")[: len(alive) - MOST_PARTS // 2]] = False
        return kept

    def _write_part(self, state: RowsState, places: Indices, number: int) -> Part:
        store = state.store
        clients = store.clients[places]
        arrays = {"clients": clients} | {f"memory.{k}": store.arrays[k][places] for k in store.arrays}
        arrays |= {f"number.{k}": v[clients] for k, v in state.numbers.items()}
        name = f"{PREFIX}{self._free_number():08d}"
        return Part(name, checkpoint.write_part(self.folder / name, arrays), len(places))

    def _free_number(self) -> int:
        return 1 + max((int(p.name.removeprefix(PREFIX)) for p in _numbered(self.folder)), default=0)

    def commit(self, state: RowsState) -> None:
        """The checkpoint that lists what ``write`` wrote is on disk: forget what only older ones list."""
        assert self._next is not None
        self.parts, self.home, places = self._next
        state.store.changed[places] = False
        now = {p.name for p in self.parts}
        for path in files_of(self.folder):
            if path.name not in now | self.listed:
                with contextlib.suppress(OSError):
                    path.unlink()
        self.listed, self._next = now, None

    def read(self, parts: Mapping[str, Any], n: int, x0: Array) -> RowsState:
        """What a run of n clients from x0 saved in the parts that a checkpoint lists."""
        store = RowStore.of(parts["remembers"], n, x0, self.folder)
        numbers = {k: np.zeros(n, dtype=np.int64) for k in NUMBERS}
        counts: list[int] = []
        for name, sha256 in zip(parts["name"], parts["sha256"], strict=True):
            arrays = checkpoint.read_part(self.folder / checkpoint.safe_name(name), sha256)
            clients = _checked(self.folder / name, arrays, store, numbers)
            places = store.admit(clients)
            for k in store.arrays:
                store.arrays[k][places] = arrays[f"memory.{k}"]
            for k, v in numbers.items():
                v[clients] = arrays[f"number.{k}"]
            self.home = np.append(self.home, np.full(store.used - len(self.home), -1))
            self.home[places] = len(counts)
            counts.append(len(clients))
        store.changed[:] = False
        self.parts = [Part(*p) for p in zip(parts["name"], parts["sha256"], counts, strict=True)]
        self.listed = {p.name for p in self.parts}
        return RowsState(store, numbers)


def files_of(folder: Path) -> list[Path]:
    """The parts in a folder, whoever lists them; not files of the user's with such names."""
    return [p for p in _numbered(folder) if checkpoint.begins_like_one(p)]


def _numbered(folder: Path) -> list[Path]:
    return [p for p in folder.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdecimal()]


def _checked(path: Path, arrays: Mapping[str, Any], store: RowStore, numbers: Mapping[str, Any]) -> Any:
    """The part's clients, if its arrays are those of this run."""
    wanted = {"clients": ((), "i")} | {f"memory.{k}": ((store.d,), "f") for k in store.arrays}
    wanted |= {f"number.{k}": ((), "i") for k in numbers}
    clients = arrays.get("clients", np.zeros(0))
    fits = set(arrays) == set(wanted) and all(
        v.shape == (len(clients), *wanted[k][0]) and v.dtype.kind == wanted[k][1] and v.dtype.itemsize == 8
        for k, v in arrays.items()
    )
    if not fits or len(np.unique(clients)) < len(clients) or np.any((clients < 0) | (clients >= store.n)):
        raise CheckpointError(f"{path} is whole but no run of this problem wrote it.")
    return clients
