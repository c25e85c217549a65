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

from proxskip.results import checkpoint, sealed
from proxskip.support.rows import MemoryRows
from proxskip.types import Array, Indices

PREFIX = "memory."
NUMBERS = ("owed", "participated")
"""What the loop counts for each client, saved with its rows."""
PART_BYTES = 1 << 26
"""The size of a part, about: it is in memory while it is written or read."""


@dataclass(frozen=True, slots=True)
class RowsState:
    """What clients remember, and numbers of each of the n clients; only those of clients that took part are saved."""

    memory: Mapping[str, Array]
    numbers: Mapping[str, Indices]


def write_rows(folder: Path, state: RowsState) -> dict[str, list[str]]:
    """Write the rows of the clients that took part; the list for the checkpoint."""
    took_part = np.flatnonzero(state.numbers["participated"])
    memory = {k: np.asarray(v) for k, v in state.memory.items()}
    d = sum(v.shape[1] for v in memory.values())
    each = max(1, PART_BYTES // (8 * (d + 1 + len(state.numbers))))
    first = 1 + max((int(p.name.removeprefix(PREFIX)) for p in _numbered(folder)), default=0)
    seals = {}
    for number, lo in enumerate(range(0, len(took_part), each), first):
        clients = took_part[lo : lo + each]
        arrays = {"clients": clients} | {f"memory.{k}": v[clients] for k, v in memory.items()}
        arrays |= {f"number.{k}": v[clients] for k, v in state.numbers.items()}
        name = f"{PREFIX}{number:08d}"
        seals[name] = checkpoint.write_part(folder / name, arrays)
    return {"name": list(seals), "sha256": list(seals.values()), "remembers": list(memory)}


def read_rows(folder: Path, parts: Mapping[str, Any], n: int, x0: Array) -> RowsState:
    """What a run of n clients from x0 saved in the parts that a checkpoint lists."""
    memory = {str(k): MemoryRows.zeros(n, len(x0)) for k in parts["remembers"]}
    if "x" in memory and x0.any():
        memory["x"].fill_rows(np.arange(n), x0)
    numbers = {k: np.zeros(n, dtype=np.int64) for k in NUMBERS}
    for name, sha256 in zip(parts["name"], parts["sha256"], strict=True):
        arrays = checkpoint.read_part(folder / checkpoint.safe_name(name), sha256)
        clients = arrays["clients"]
        for k, rows in memory.items():
            rows.fill_rows(clients, arrays[f"memory.{k}"])
        for k, v in numbers.items():
            v[clients] = arrays[f"number.{k}"]
    return RowsState(memory, numbers)


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
