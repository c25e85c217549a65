"""The cores of this machine, and dealing work to them."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np

from proxskip.types import Array


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def balanced(load: Array, parts: int) -> list[tuple[int, int]]:
    """Ranges of clients with about equal loads."""
    n = len(load)
    parts = min(parts, n)
    if parts == 1:
        return [(0, n)]
    total = float(load.sum())
    ends = np.cumsum(load)
    goals = total * np.arange(1, parts) / parts
    after = np.minimum(np.searchsorted(ends, goals), n - 1)
    nearer = np.abs(ends[after] - goals) <= np.abs(np.append(0.0, ends)[after] - goals)
    inner = [int(c) for c in np.maximum.accumulate(after + nearer)] if total > 0 else []
    bounds = [0, *inner, n]
    return list(pairwise(bounds))
