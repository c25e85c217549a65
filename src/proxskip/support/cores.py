"""How many cores there are, and how many of them BLAS uses."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LIMITING = threading.RLock()


def available_cores() -> int:
    """Cores this process may use."""
    # what a container or a scheduler allows may be less than there are; macOS and Windows do not say
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within this, matrices are multiplied on one thread.

    For small ones that is faster: threads of BLAS wait for each other in a loop, which on a busy machine takes many
    times as long as the product.
    """
    from threadpoolctl import threadpool_limits

    # the limit is that of the process: two threads that set and reset it in turn could leave it behind
    with _LIMITING, threadpool_limits(1, user_api="blas"):
        yield
