"""Shared by the CPU's and the GPU's layouts of sparse rows: runs of indices, merging equal rows, equal
loads. Plain numpy."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from proxskip.types import Array, Indices


def ranges(start: Indices, length: Indices) -> Indices:
    """The runs start_0, start_0 + 1, ... (length_0 of them), start_1, ..., end to end."""
    ends = np.cumsum(length)
    steps = np.arange(int(ends[-1]) if len(ends) else 0)
    return np.asarray(steps + np.repeat(start - (ends - length), length), dtype=np.int64)


def merged_rows(
    indptr: Indices, indices: Any, values: Any, owner: Indices, b: Array
) -> tuple[Indices, Indices, Indices]:
    """Merge equal rows of the same client and label, and leave out rows without entries: (kept, live, group).

    ``live`` are the rows with entries, and row live[j] is equal to row kept[group[j]]. Rows are told apart by two
    64-bit sums of hashed entries, and compared entry by entry before they are merged. Merging changes no gradient: a
    merged row has the weight of all rows it stands for.
    """
    length = np.diff(indptr)
    live = np.flatnonzero(length)
    if not len(live):
        return live, live, live
    hashed = [np.add.reduceat(_mix(indices, values, k), indptr[live]) for k in (1, 2)]
    # sort by all keys, so that candidates for merging are neighbors, the first row of the data first
    keys = (owner[live], length[live], b[live], *hashed)
    order = np.lexsort((live, *reversed(keys)))
    same = np.ones(len(live), dtype=bool)
    for key in keys:
        same[1:] &= key[order][1:] == key[order][:-1]
    same[0] = False
    # the leader of a run of candidates is its first row
    first = np.flatnonzero(~same)
    leader = np.empty(len(live), dtype=np.int64)
    leader[order] = live[order][np.repeat(first, np.diff(np.append(first, len(live))))]
    doubled = leader != live
    mine, theirs = (ranges(indptr[r], length[r]) for r in (live[doubled], leader[doubled]))
    if not (np.array_equal(indices[mine], indices[theirs]) and np.array_equal(values[mine], values[theirs])):
        return live, live, np.arange(len(live))  # different rows with the same two sums: merge nothing
    kept, group = np.unique(leader, return_inverse=True)
    return kept, live, group


def _mix(indices: Any, values: Any, k: int) -> Any:
    """The k-th 64-bit hash of each entry (index, value); wrapping around at 2^64 is meant."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    v = indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ (bits * np.uint64(2 * k + 1))
    v = (v ^ (v >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9 + 2 * k)
    return v ^ (v >> np.uint64(29))


def even(n: int, parts: int) -> list[tuple[int, int]]:
    """Ranges of n things that are all the same work."""
    parts = max(1, min(parts, n))
    return [(k * n // parts, (k + 1) * n // parts) for k in range(parts)]


def balanced(load: Array, parts: int) -> list[tuple[int, int]]:
    """Ranges of clients with about equal loads."""
    parts = min(parts, len(load))
    return _cut(load, np.arange(1, parts) / parts)


def tapered(load: Array, threads: int, least: float) -> list[tuple[int, int]]:
    """Ranges of clients for this many threads to take one after another, smaller and smaller, down to this load.

    Each has the load of half a thread's share of what is left. Threads that are slower, or that began later, take fewer
    of them, and all end at about the same time; ranges of the least load alone would be more of them.
    """
    total, share = float(load.sum()), 0.5 / threads
    if threads == 1 or total <= 2 * threads * least:
        return balanced(load, threads)
    count = int(math.log(least / (total * share)) / math.log1p(-share))
    left = (1.0 - share) ** np.arange(1, count + 1)
    rest = float(left[-1]) if count else 1.0
    ends = rest * np.arange(1, int(rest * total / least)) * least / (rest * total)
    return _cut(load, np.append(1.0 - left, 1.0 - rest + ends))


def _cut(load: Array, shares: Array) -> list[tuple[int, int]]:
    """Ranges that end at about these shares of the load, in ascending order; the last one ends at the end."""
    n, total = len(load), float(load.sum())
    if not len(shares) or n == 1:
        return [(0, n)]
    ends, goals = np.cumsum(load), total * shares
    after = np.minimum(np.searchsorted(ends, goals), n - 1)
    before = np.where(after > 0, ends[after - 1], 0.0)
    nearer = np.abs(ends[after] - goals) <= np.abs(before - goals)
    inner = np.maximum.accumulate(after + nearer).tolist() if total > 0 else []
    return [(lo, hi) for lo, hi in pairwise([0, *inner, n]) if lo < hi] or [(0, n)]
