"""How the minibatches of a problem are drawn, as the kernels need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proxskip.engines.cpu.kernels import NO_PICKS
from proxskip.problems import bundles
from proxskip.problems.federated import Problem
from proxskip.problems.packed import stores_of
from proxskip.randomness import BUNDLES, ROWS_PER_BUNDLE, bundle_share
from proxskip.types import Array, Indices


@dataclass(frozen=True)
class Drawing:
    """How minibatches are drawn, and room for it: see ``minibatches.draw_rows``."""

    sampling: int
    batch: int
    rows: int
    """The most rows of a client."""
    place: Any = field(default_factory=lambda: NO_PICKS)
    """Where each row lies among its client's (or the r-th in the order of bundles); without entries, in the r-th
    place."""

    @staticmethod
    def of(problem: Problem, sizes: Any) -> Drawing:
        """For the problem's minibatches; without them there is no room."""
        if not problem.batch:
            return Drawing(1, 0, 0)
        place = NO_PICKS
        if problem.draws_bundles:
            row0 = np.append(0, np.cumsum(sizes))
            length = np.concatenate([bundles.lengths(f.A) for f in stores_of(problem.clients)])
            place = (bundles.order(length, row0) - np.repeat(row0[:-1], sizes)).astype(np.uint32)
        return Drawing(problem.sampling, problem.batch, int(sizes.max()), place)

    def picks(self) -> Any:
        """Room for the rows, and three more (``minibatches.subset``); none without minibatches: all rows are read."""
        return np.empty(self.batch + 3, np.uint32) if self.batch else NO_PICKS

    def room(self) -> tuple[Any, ...]:
        """The version; keys and four times the batch for version 1; zeros for the others; the places."""
        old, new = (self.batch, 0) if self.sampling == 1 else (0, self.rows)
        old = self.batch // ROWS_PER_BUNDLE + 3 if self.sampling == BUNDLES else old
        zeros = np.zeros(new, np.uint8), np.zeros(-(-new // 64), np.uint64)
        return self.sampling, np.empty(12, np.uint64), *np.empty((4, old), np.uint32), *zeros, self.place

    def shares(self, sizes: Indices) -> Array:
        """``minibatches.row_share`` of clients of so many rows."""
        if self.sampling == BUNDLES:
            return np.asarray(bundle_share(sizes, self.batch))
        return 1.0 / (np.full_like(sizes, self.batch) if self.batch else sizes)

    def order(self, row0: Indices) -> Indices:
        """The rows of all clients, end to end, in the order in which each client's are cut into bundles."""
        return np.asarray(self.place + np.repeat(row0[:-1], np.diff(row0)))
