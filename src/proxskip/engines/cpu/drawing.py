"""How the minibatches of a problem are drawn, as the kernels need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proxskip.engines.cpu.kernels import NO_PICKS


@dataclass(frozen=True)
class Drawing:
    """How minibatches are drawn, and room for it: see ``minibatches.draw_rows``."""

    batch: int
    """Rows of a minibatch, or 0."""
    rows: int
    """The most rows of a client."""
    place: Any = field(default_factory=lambda: NO_PICKS)
    """Where each row lies among its client's; without entries, in the r-th place."""

    def picks(self) -> Any:
        """Room for the rows, and three more (``minibatches.subset``); none without minibatches: all rows are read."""
        return np.empty(self.batch + 3, np.uint32) if self.batch else NO_PICKS

    def room(self) -> tuple[Any, Any, Any]:
        """A zero byte for each row, a word of zeros for every 64 of them, and the places."""
        rows = self.rows if self.batch else 0
        return np.zeros(rows, np.uint8), np.zeros(-(-rows // 64), np.uint64), self.place
