"""First calls of compiled kernels: one process at a time, with a word to whoever waits.

Numba compiles a kernel at its first call with arguments of new types, or loads it from its cache. A module of kernels
imports numba, which takes two thirds of a second, so it is imported where a kernel is called and not with the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxskip.support.display import said_if_slow


@contextmanager
def compiling(kernel: Any) -> Iterator[None]:
    """Within this, call this kernel, and others of its module, for the first time, with nothing to do.

    Numba numbers the files of its cache without a lock, so two processes that compile at the same time could overwrite
    each other's (numba issue 4807).
    """
    from filelock import FileLock

    words = "proxskip: compiling kernels, once on this machine (10 to 20 seconds)"
    # a soft lock, of systems that have no better one, would wait for ever for the file that a better one leaves
    lock = FileLock(Path(kernel.stats.cache_path) / f"{FileLock.__name__}.lock")
    with said_if_slow(words), lock:
        yield
