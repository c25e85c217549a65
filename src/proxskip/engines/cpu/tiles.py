"""Rows side by side, eight at a time, as kernels read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.engines.rows import ranges
from proxskip.types import Indices

ROWS_PER_TILE = 8
"""The kernels take rows eight at a time."""


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
