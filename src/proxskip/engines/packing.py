"""Compiled loops that lay sparse rows out in tiles; ``tiles.Tiles`` has the picture.

A *row* here is one of the matrix, with entries ``indptr[r]`` to ``indptr[r + 1] - 1``. ``rows`` lists those that get a
slot, in the order of the slots.
"""

from __future__ import annotations

import numpy as np

from proxskip.lazy.compilation import njit

ROWS_PER_TILE = 8
ENTRIES_PER_TILE = 4
"""The kernels take rows eight at a time, and the entries of a column four at a time."""
_OPTIONS = {"nogil": True, "cache": True, "borrows": True, "error_model": "numpy"}
_GOLDEN, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_31, _29 = np.uint64(31), np.uint64(29)


@njit(inline="always")
def _mixed(v):
    """A 64-bit word with its bits spread; wrapping around at 2^64 is meant."""
    v = (v ^ (v >> _31)) * _MIX
    return v ^ (v >> _29)


@njit(**_OPTIONS)
def hash_rows(indptr, indices, bits, owner, b, out):
    """out[r] <- a 64-bit hash of row r, its client and its label; equal for equal rows.

    ``bits`` are the values, and ``b`` the labels, read as words.
    """
    for r in range(out.shape[0]):
        v = _mixed(np.uint64(owner[r]) * _GOLDEN ^ b[r])
        for e in range(indptr[r], indptr[r + 1]):
            v = _mixed(v ^ (np.uint64(indices[e]) * _GOLDEN ^ bits[e]))
        out[r] = v


@njit(**_OPTIONS)
def count_different(rows, others, indptr, indices, bits, owner, b, out):
    """out[0] <- how many pairs rows[k], others[k] are not equal in entries, client and label."""
    out[0] = 0
    for k in range(rows.shape[0]):
        r, s = rows[k], others[k]
        first, second, length = indptr[r], indptr[s], indptr[r + 1] - indptr[r]
        same = owner[r] == owner[s] and b[r] == b[s] and indptr[s + 1] - second == length
        e = 0
        while same and e < length:
            same = indices[first + e] == indices[second + e] and bits[first + e] == bits[second + e]
            e += 1
        out[0] += not same


@njit(**_OPTIONS)
def count_columns(rows, block, indptr, indices, d, count):
    """count[u d + c] <- the entries of column c in block u."""
    for q in range(rows.shape[0]):
        for e in range(indptr[rows[q]], indptr[rows[q] + 1]):
            count[block[q] * d + indices[e]] += 1


@njit(**_OPTIONS)
def fill_tiles(rows, slot, block, place, indptr, indices, values, d, row_start, by_row, at, by_column):
    """Every entry of these rows into both tilings.

    Entry k of the row in ``slot`` goes to line k of its group, in the row's lane. Entries of a column are appended in
    the order of the slots; ``at[u d + c]`` is the place of the next one.

    Args:
        block, place: the block of each row, and the row's place there.
        by_row, by_column: indices and values; no values where all are one.
    """
    index, stored = by_row
    row_of, stored_by_column = by_column
    unit = stored.shape[0] == 0
    for q in range(rows.shape[0]):
        line, lane, first = row_start[slot[q] // ROWS_PER_TILE], slot[q] % ROWS_PER_TILE, indptr[rows[q]]
        for k in range(indptr[rows[q] + 1] - first):
            c = indices[first + k]
            where = at[block[q] * d + c]
            at[block[q] * d + c] += 1
            tile, entry = where // ENTRIES_PER_TILE, where % ENTRIES_PER_TILE
            index[line + k, lane] = c
            row_of[tile, entry] = place[q]
            if not unit:
                stored[line + k, lane] = values[first + k]
                stored_by_column[tile, entry] = values[first + k]
