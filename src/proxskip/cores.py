"""How many cores there are."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Cores this process may use."""
    # what a container or a scheduler allows may be less than there are; macOS and Windows do not say
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
