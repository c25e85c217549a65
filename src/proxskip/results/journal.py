"""What many clients remember, saved in parts beside the checkpoint.

A part is a file ``memory.NUMBER``, a sealed container like the checkpoint, with the numbers of some clients and their
rows. It is written once and never changed. The checkpoint lists its parts with their sha256. Parts are on disk before
the checkpoint that lists them, and are removed when neither of its two generations lists them any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxskip.links.rows import RowStore
from proxskip.results import checkpoint, sealed
from proxskip.results.checkpoint import CheckpointError
from proxskip.types import Array, Indices

PREFIX = "memory."
NUMBERS = ("owed", "participated")
"""What the loop counts for each client, saved with its rows."""
PART_BYTES = 1 << 26
"""The size of a part, about: it is in memory while it is written or read."""


@dataclass(frozen=True, slots=True)
class RowsState:
    """A store, and numbers of each of the n clients, of which only those of clients in the store may have changed."""

    store: RowStore
    numbers: Mapping[str, Indices]


def write_rows(folder: Path, state: RowsState) -> dict[str, list[str]]:
    """Write all rows; the list for the checkpoint."""
    store = state.store
    each = max(1, PART_BYTES // (8 * (store.d * len(store.arrays) + 1 + len(state.numbers))))
    first = 1 + max((int(p.name.removeprefix(PREFIX)) for p in _numbered(folder)), default=0)
    seals = {}
    for number, lo in enumerate(range(0, store.used, each), first):
        places = slice(lo, min(lo + each, store.used))
        clients = store.clients[places]
        arrays = {"clients": clients} | {f"memory.{k}": v[places] for k, v in store.arrays.items()}
        arrays |= {f"number.{k}": v[clients] for k, v in state.numbers.items()}
        name = f"{PREFIX}{number:08d}"
        seals[name] = checkpoint.write_part(folder / name, arrays)
    return {"name": list(seals), "sha256": list(seals.values()), "remembers": list(store.arrays)}


def read_rows(folder: Path, parts: Mapping[str, Any], n: int, x0: Array) -> RowsState:
    """What a run of n clients from x0 saved in the parts that a checkpoint lists."""
    store = RowStore.of(parts["remembers"], n, x0, folder)
    numbers = {k: np.zeros(n, dtype=np.int64) for k in NUMBERS}
    for name, sha256 in zip(parts["name"], parts["sha256"], strict=True):
        arrays = checkpoint.read_part(folder / checkpoint.safe_name(name), sha256)
        clients = _checked(folder / name, arrays, store, numbers)
        places = store.admit(clients)
        for k in store.arrays:
            store.arrays[k][places] = arrays[f"memory.{k}"]
        for k, v in numbers.items():
            v[clients] = arrays[f"number.{k}"]
    return RowsState(store, numbers)


def remove_parts(folder: Path, listed: Collection[str] = ()) -> None:
    """Remove the parts in a folder that no checkpoint lists any more; not files of the user's with such names."""
    for path in parts_in(folder):
        if path.name not in listed:
            with contextlib.suppress(OSError):
                path.unlink()


def parts_in(folder: Path) -> list[Path]:
    """All parts in a folder, listed or not."""
    return [p for p in _numbered(folder) if p.is_file() and sealed.begins_like_one(p)]


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
