"""Parts of scipy (``scipy.sparse``, ``scipy.linalg``, ...), loaded when they are first used, and scipy with them.

Scipy loads its parts in the same way, but takes 0.4 MB of a process itself, also where no part is used.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = importlib.import_module(f"scipy.{name}")
    return found
