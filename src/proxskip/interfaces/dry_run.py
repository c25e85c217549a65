"""A client that computes nothing: what a half would send and differentiate, found out without any work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proxskip.interfaces.exchange import ClientHalf
from proxskip.links.codecs import Codec, Identity
from proxskip.types import Array, Vectors

Route = tuple[tuple[Codec | None, int], ...]
"""For each vector that goes up, its codec (None for plain ones) and the number of the ``send`` that made it."""


class IdleClient:
    """A ``interfaces.Client`` that notes through which codecs a half sends, and how many gradients it takes.

    Args:
        codec: of vectors that are sent without one.
        passes: what a full gradient costs in units of a local step: rows per minibatch.
    """

    def __init__(self, codec: Codec | None = None, passes: float = 1.0) -> None:
        self.codec, self.passes = codec, passes
        self.gradients = 0.0
        self.open = False
        """Whether a criterion ends local steps, so that their number is not known before."""
        self.has_where = False
        """Whether some gradient is only taken where a number of the client's own is not zero."""
        self.sent: list[tuple[Array, Codec | None]] = []

    def route(self, half: ClientHalf, memory: Vectors, K: int, down: Any, own: Mapping[str, float]) -> Route:
        """How the vectors of this half travel."""
        with np.errstate(all="ignore"):
            up, _ = half(self, memory, K, *down, **own)
        # which ``send`` made which vector is seen from the objects that come up
        sent = {id(v): (codec, number) for number, (v, codec) in enumerate(self.sent)}
        return tuple(sent.get(id(v), (None, 0)) for v in up)

    def descend(self, x: Array, h: Array | float, gamma: Any, K: Any, **more: Any) -> Any:
        """Nothing happens; a step with an anchor takes two minibatches, and a full gradient where the anchor moves."""
        y, anchor = np.asarray(x), more.get("anchor")
        moves = 0.0 if anchor is None else float(np.max(anchor[2])) * self.passes
        self.gradients += float(np.max(K)) * (1.0 if anchor is None or self.passes == 1.0 else 2.0 + moves)
        if anchor is not None:
            return y, y, y
        self.open = self.open or more.get("until") is not None
        return y if more.get("until") is None else (y, 1)

    def gradient(self, x: Array, where: Any = None) -> Array:
        self.has_where = self.has_where or where is not None
        self.gradients += self.passes if where is None or where else 0.0
        return np.zeros(len(x))

    def own(self, values: Any) -> Any:
        return values if np.ndim(values) == 0 else values[0]

    def send(self, v: Array, codec: Codec | None = None) -> Array:
        """A copy, so that it can be told from others."""
        codec = codec or self.codec
        self.sent.append((np.array(v), None if isinstance(codec, Identity) else codec))
        return self.sent[-1][0]
