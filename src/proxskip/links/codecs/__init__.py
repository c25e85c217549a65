"""Codecs: how a vector travels. Exact bits, the bytes on the wire, and what the other side reads.

A codec is a frozen object. ``encode`` is a pure function of the vector and a ``Key``, ``decode`` of the bytes and the
same key; so masks and indices that both sides can draw are neither sent nor counted. The key travels with a message,
or follows from it: a retried call, another engine or another process draws the same. Nothing here depends on a
mathematical library: the bytes are the same on every platform.

``Identity``, ``Float32`` and ``Natural`` send every number; ``RandK``, ``Masks`` and ``L1Selection`` send a few, each
in the form of another codec: ``RandK(2, Natural())`` is two random coordinates after natural compression. Every codec
has a text form, ``rand-2+natural``, which ``parse`` reads.

Noise for privacy is not a codec: it must not be keyed, and it is added to the point before it is sent.
"""

from __future__ import annotations

from proxskip.links.codecs.contract import Codec, Key
from proxskip.links.codecs.numbers import Float32, Identity, Natural
from proxskip.links.codecs.parse import as_codec, parse
from proxskip.links.codecs.selections import L1Selection, Masks, Ownership, RandK
from proxskip.types import Array

__all__ = [
    "BUILT_IN", "Codec", "Float32", "Identity", "Key", "L1Selection", "Masks", "Natural", "Ownership", "RandK",
    "as_codec", "parse", "read_back",
]  # fmt: skip


BUILT_IN = (Identity, Float32, Natural, RandK, Masks, L1Selection)
"""Those that have a text form."""


def read_back(codec: Codec, v: Array, key: Key) -> Array:
    """v as the other side reads it; where nothing is changed on the way, v itself."""
    return v if isinstance(codec, Identity) else codec.decode(codec.encode(v, key), len(v), key)
