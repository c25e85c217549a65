"""A client that computes nothing: it records what a half would send and differentiate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from proxskip.codecs import Codec, Identity
from proxskip.core.exchange import ClientHalf, checked_answer
from proxskip.problems.clients import expansion_length
from proxskip.types import Array, Column, Counts, Vectors


class Trip(NamedTuple):
    """How a vector goes up.

    Args:
        codec: None if it is plain.
        number: of its ``send``.
        length: the numbers in it.
    """

    codec: Codec | None
    number: int
    length: int


Route: TypeAlias = tuple[Trip, ...]
"""Of each vector that a half sends up."""


class IdleClient:
    """A ``core.Client`` that records a half's codecs and counts its gradients.

    Args:
        codec: for vectors sent without one.
        passes: the cost of a full gradient in local steps: rows per minibatch.
    """

    def __init__(self, codec: Codec | None = None, passes: float = 1.0) -> None:
        self.codec, self.passes = codec, passes
        self.gradients = 0.0
        self.open = False
        """Whether a criterion ends the local steps, so their number is unknown in advance."""
        self.has_where = False
        """Whether some gradient depends on a number of the client's own (``where``)."""
        self.sent: list[tuple[Array, Codec | None]] = []

    def route(
        self, half: ClientHalf, memory: Vectors, K: int, down: Sequence[Array], own: Mapping[str, float]
    ) -> Route:
        """How each vector that the half sends up travels."""
        with np.errstate(all="ignore"):
            answer = half(self, memory, K, *down, **own)
            up, _ = checked_answer(half, answer)
        # the identity of an object says which ``send`` made it
        sent = {id(v): (codec, number) for number, (v, codec) in enumerate(self.sent)}
        return tuple(Trip(*sent.get(id(v), (None, 0)), len(v)) for v in up)

    def descend(self, x: Array, h: Array | float, gamma: Column, K: Counts, **more: Any) -> Any:
        """Count only: a step with an anchor takes two minibatches, and a full gradient where the anchor moves."""
        y, anchor = np.asarray(x), more.get("anchor")
        moves = 0.0 if anchor is None else float(np.max(anchor[2])) * self.passes
        self.gradients += float(np.max(K)) * (1.0 if anchor is None or self.passes == 1.0 else 2.0 + moves)
        if anchor is not None:
            return y, y, y
        self.open = self.open or more.get("until") is not None
        return y if more.get("until") is None else (y, 1)

    def gradient(self, x: Array, where: Column | None = None) -> Array:
        self.has_where = self.has_where or where is not None
        self.gradients += self.passes if where is None or where else 0.0
        return np.zeros(len(x))

    def expansion(self, x: Array) -> Array:
        """Count the gradient, and the Hessian by its arithmetic: half a triangle of d products a row, where a gradient
        has two d."""
        self.gradients += self.passes * (1.0 + len(x) / 4.0)
        return np.zeros(expansion_length(len(x)))

    def own(self, values: Any) -> Any:
        return values if np.ndim(values) == 0 else values[0]

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """A copy, so that its identity is unique."""
        codec = codec or self.codec
        self.sent.append((np.array(v), None if isinstance(codec, Identity) else codec))
        return self.sent[-1][0]
