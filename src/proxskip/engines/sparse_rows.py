"""Sparse-row helpers of the CPU and GPU layouts: index ranges, merging equal rows, balancing loads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from proxskip.types import AnyArray, Array, Indices

PIECES_PER_THREAD = 16
"""Slow or late threads take fewer pieces, so all end at about the same time."""


def ranges(start: Indices, length: Indices) -> Indices:
    """The runs start_0, start_0 + 1, ... (length_0 of them), start_1, ..., end to end."""
    ends = np.cumsum(length)
    steps = np.arange(int(ends[-1]) if len(ends) else 0)
    return np.asarray(steps + np.repeat(start - (ends - length), length), dtype=np.int64)


def offsets(counts: Indices) -> Indices:
    """Where runs of these lengths begin, and the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def merged_rows(
    indptr: Indices, indices: AnyArray, values: AnyArray, owner: Indices, b: Array
) -> tuple[Indices, Indices, Indices]:
    """Merge equal rows of one client and label, and drop empty rows: (kept, live, group).

    ``live`` are the rows with entries, and row live[j] equals row kept[group[j]]. Rows with equal hashes are compared
    entry by entry. Merging changes no gradient: a merged row has the weight of all its rows.
    """
    live, lengths = np.flatnonzero(np.diff(indptr)), np.diff(indptr)
    bits, labels = (np.ascontiguousarray(v, np.float64).view(np.uint64) for v in (values, b))
    hashes = _hashes(indptr[live], indices, bits, owner[live], labels[live])
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    leader = live[first][group]
    leads = leader == live
    r, s = live[~leads], leader[~leads]
    alike = all(np.array_equal(v[r], v[s]) for v in (owner, labels, lengths))
    at, to = (ranges(indptr[k], lengths[k]) for k in (r, s))
    if not alike or any(not np.array_equal(v[at], v[to]) for v in (indices, bits)):
        return live, live, np.arange(len(live))  # a hash collision: merge nothing
    return live[leads], live, (np.cumsum(leads) - 1)[first][group]


def _hashes(starts: Indices, indices: AnyArray, bits: AnyArray, owner: Indices, labels: AnyArray) -> AnyArray:
    """A 64-bit hash of each row's entries, client and label, modulo 2^64."""

    def mixed(v: AnyArray, w: AnyArray) -> AnyArray:
        v = v.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ w
        v = (v ^ v >> np.uint64(31)) * np.uint64(0xBF58476D1CE4E5B9)
        return np.asarray(v ^ v >> np.uint64(29))

    if not len(starts):
        return np.zeros(0, np.uint64)
    return mixed(np.add.reduceat(mixed(indices, bits), starts), mixed(owner, labels))


def balanced(load: Array, parts: int) -> list[tuple[int, int]]:
    """Ranges of clients with about equal loads."""
    n = len(load)
    total = float(load.sum())
    parts = min(parts, len(load))
    if parts <= 1 or total <= 0:
        return [(0, n)]
    ends, goals = np.cumsum(load), total * (np.arange(1, parts) / parts)
    after = np.minimum(np.searchsorted(ends, goals), n - 1)
    before = np.where(after > 0, ends[after - 1], 0.0)
    nearer = np.abs(ends[after] - goals) <= np.abs(before - goals)
    inner = np.maximum.accumulate(after + nearer).tolist()
    return [(lo, hi) for lo, hi in pairwise([0, *inner, n]) if lo < hi]


def pieces(load: Array, threads: int, least: float) -> list[tuple[int, int]]:
    """Ranges of clients with at least this load, for threads to take in turn."""
    many = min(PIECES_PER_THREAD * threads, int(load.sum() / least)) if threads > 1 else 1
    return balanced(load, max(threads, many))
