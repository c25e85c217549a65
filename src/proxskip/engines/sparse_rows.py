"""Shared by the CPU's and the GPU's layouts of sparse rows: runs of indices, merging equal rows, equal
loads."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from proxskip.engines import packing
from proxskip.types import Array, Indices


def ranges(start: Indices, length: Indices) -> Indices:
    """The runs start_0, start_0 + 1, ... (length_0 of them), start_1, ..., end to end."""
    ends = np.cumsum(length)
    steps = np.arange(int(ends[-1]) if len(ends) else 0)
    return np.asarray(steps + np.repeat(start - (ends - length), length), dtype=np.int64)


def offsets(counts: Indices) -> Indices:
    """Where each of several runs begins, and the last one ends, from their lengths."""
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def merged_rows(
    indptr: Indices, indices: Any, values: Any, owner: Indices, b: Array
) -> tuple[Indices, Indices, Indices]:
    """Merge equal rows of the same client and label, and leave out rows without entries: (kept, live, group).

    ``live`` are the rows with entries, and row live[j] is equal to row kept[group[j]]. Rows of one hash are compared
    entry by entry before they are merged. Merging changes no gradient: a merged row has the weight of all rows that it
    stands for.
    """
    words = np.ascontiguousarray(values, np.float64).view(np.uint64), owner, np.asarray(b, np.float64).view(np.uint64)
    hashes = np.empty(len(owner), np.uint64)
    packing.hash_rows(indptr, indices, *words, hashes)
    live = np.flatnonzero(np.diff(indptr))
    _, first, group = np.unique(hashes[live], return_index=True, return_inverse=True)
    leader, different = live[first][group], np.zeros(1, np.int64)
    packing.count_different(live, leader, indptr, indices, *words, different)
    if different[0]:  # different rows with the same hash: merge nothing
        return live, live, np.arange(len(live))
    leads = leader == live
    return live[leads], live, (np.cumsum(leads) - 1)[first][group]


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
