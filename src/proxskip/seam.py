"""The old name of ``proxskip.interfaces``, until 0.4."""

from __future__ import annotations

import warnings
from typing import Any

from proxskip import interfaces


def __getattr__(name: str) -> Any:
    value = getattr(interfaces, name)
    warnings.warn(
        "proxskip.seam is proxskip.interfaces now; the old name goes in 0.4.", DeprecationWarning, stacklevel=2
    )
    return value
