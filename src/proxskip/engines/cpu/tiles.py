"""Rows side by side, eight at a time, as kernels read them: any eight, and those of a bundle."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.engines.rows import ranges
from proxskip.randomness import bundle_count
from proxskip.types import Indices

ROWS_PER_TILE = 8
"""The kernels take rows eight at a time; a bundle is a tile."""


def row_tiles(
    slot: Indices, groups: int, length: Indices, entries: Any, values: Any, d: int, dtype: Any
) -> tuple[Any, Any, Any]:
    """(First line of each group, column indices, values), eight entries to a line; missing ones have the index d.

    Args:
        slot: where each row goes: eight to a group.
        length, entries, values: of the rows in the order of ``slot``; values are None where all are one.
    """
    group, lane = slot // ROWS_PER_TILE, slot % ROWS_PER_TILE
    longest = np.zeros(groups, np.int64)
    np.maximum.at(longest, group, length)
    start = np.append(0, np.cumsum(longest))
    # entry k of a row: line k of its group, in the row's lane
    at = ROWS_PER_TILE * ranges(start[group], length) + np.repeat(lane, length)
    index = np.full(ROWS_PER_TILE * int(start[-1]), d, width(d))
    index[at] = entries
    stored = np.zeros(0 if values is None else len(index), dtype)
    if values is not None:
        stored[at] = values
    return start.astype(np.uint64), index.reshape(-1, ROWS_PER_TILE), stored.reshape(-1, ROWS_PER_TILE)


def width(largest: int) -> Any:
    """The narrowest unsigned type for indices up to ``largest``: the kernels are bound by how fast they read them."""
    return np.uint16 if largest < 2**16 else np.uint32


class BundleTiles:
    """Rows in bundles, eight entries to a line: entry e of all eight rows. Missing ones have the index d.

    Args:
        order: the rows of all clients in the order of their bundles; client i's begin at ``row0[i]``.
        length, entries, values: of each row in its own order, end to end; values may be empty where all are one.
    """

    def __init__(
        self, order: Indices, row0: Indices, length: Indices, entries: Any, values: Any, b: Any, d: int, dtype: Any
    ) -> None:
        sizes = np.diff(row0)
        self.first = np.append(0, np.cumsum(bundle_count(sizes)))
        at = np.arange(len(order)) - np.repeat(row0[:-1], sizes)
        slot = ROWS_PER_TILE * np.repeat(self.first[:-1], sizes) + at
        unit, of = not len(values), ranges((np.cumsum(length) - length)[order], length[order])
        stored = None if unit else values[of]
        self.rows = row_tiles(slot, int(self.first[-1]), length[order], entries[of], stored, d, dtype)
        self.b = np.ones(ROWS_PER_TILE * int(self.first[-1]), dtype)
        self.b[slot] = b[order]
        # the largest |a_r|^2, a bound on the margins: see ``kernels.block_tiles``
        owner = np.repeat(np.arange(len(length)), length)
        squares = length if unit else np.bincount(owner, np.square(values, dtype=np.float64))
        self.longest = float(np.max(squares, initial=0.0))

    def data(self) -> tuple[Any, ...]:
        """What the kernels read."""
        return self.first, *self.rows, self.b, self.longest

    def buffers(self, batch: int, d: int, dtype: Any) -> tuple[Any, ...]:
        """Room for a client's point, its gradient, and the rows of a minibatch."""
        bits = np.empty(batch, np.int64)
        x, g = np.empty((2, d + 1), dtype)
        # ``power`` is ``bits`` read as doubles: see ``kernels.slopes``
        return x, g, *np.empty((3, batch), dtype), bits, bits.view(np.float64)
