"""Links that wake or fail at random, as an alternative to a fixed graph in a round of gossip.

Every kind mixes rows (``mix``) and knows the cost of a round: ``messages`` vectors along edges, with ``floats(d)``
numbers in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from proxskip.graphs import Graph
from proxskip.support.randomness import stream
from proxskip.types import Array, Flags, Indices, InputError


@dataclass(frozen=True, slots=True)
class RandomLinks:
    """The links of a graph, each awake with probability p in every round and carrying k of d numbers.

    Both ends of a link draw whether it wakes and which k coordinates it carries, so no index travels. ``delta`` and
    ``lmax`` are the constants for which a gossip step whose sleeping links keep their weight at home obeys the theorem
    of Decentralized Scaffnew: p delta, and (p lmax + 2 (1 - p) w)/(2 - 1/p) with the largest weight w. Derived for this
    library; needs p > 1/2.
    """

    graph: Graph
    p: float
    k: int | None = None

    @property
    def delta(self) -> float:
        """The spectral gap of the mean of W."""
        return self.p * self.graph.delta

    @property
    def lmax(self) -> float:
        """Replaces lmax(I - W)."""
        if self.p <= 0.5:
            raise InputError(
                f"this method does not tolerate links that fail with probability {1 - self.p:g}; use random-gossip."
            )
        return (self.p * self.graph.lmax + 2 * (1 - self.p) * largest_weight(self.graph)) / (2 - 1 / self.p)

    def draw(self, seed: int, round: int, d: int) -> AwakeLinks:
        """The awake links of this round."""
        rng = stream(seed, round, "links")
        i, j = np.nonzero(np.triu(self.graph.W, k=1))
        awake = rng.random(len(i)) < self.p
        i, j = i[awake], j[awake]
        mask = None
        # the k smallest of d uniform numbers
        if self.k is not None and self.k < d:
            u = rng.random((len(i), d))
            mask = u <= np.partition(u, self.k - 1, axis=1)[:, self.k - 1 : self.k]
        return AwakeLinks(i, j, self.graph.W[i, j], mask)


@dataclass(frozen=True, slots=True)
class AwakeLinks:
    """The links of one round from i to j, with their weights and the coordinates they carry."""

    i: Indices
    j: Indices
    weights: Array
    mask: Flags | None = None

    @property
    def messages(self) -> int:
        return 2 * len(self.i)

    def floats(self, d: int) -> int:
        return 2 * (len(self.i) * d if self.mask is None else int(np.count_nonzero(self.mask)))

    def mix(self, X: Array) -> Array:
        """X_i + sum_j W_ij (X_j - X_i) over the awake links; what nobody sent stays the same to the last bit."""
        moved = self.weights[:, None] * (X[self.j] - X[self.i])
        if self.mask is not None:
            moved[~self.mask] = 0.0
        mixed = np.array(X, dtype=np.float64, order="C")
        # add.at, because a client may have several links
        np.add.at(mixed, self.i, moved)
        np.subtract.at(mixed, self.j, moved)
        return mixed


Links: TypeAlias = Graph | RandomLinks
"""What a method may gossip along."""

Mixer: TypeAlias = Graph | AwakeLinks
"""What one round's rows are mixed along."""


def links_of(graph: Graph) -> Links:
    """The graph, or its random links if they may fail."""
    return RandomLinks(graph, 1.0 - graph.failure) if graph.failure else graph


def largest_weight(graph: Graph) -> float:
    """max W_ij over the links."""
    return float(np.triu(graph.W, k=1).max())
