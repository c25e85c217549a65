"""Codecs: how a vector travels. Exact bits, the bytes of a message, and what the other side reads.

A codec is a frozen object. ``encode`` is a pure function of the vector and a ``Key``, ``decode`` of the bytes and the
same key, so masks and indices that both sides can draw are neither sent nor counted. A retry, another engine or another
process draws the same. No mathematical library is involved: the bytes are the same on every platform.

``Identity``, ``Float32`` and ``Natural`` send every number; ``RandK``, ``Masks`` and ``L1Selection`` send a few, each
in the form of another codec: ``RandK(2, Natural())`` sends two random coordinates after natural compression. Every
codec has a text form, ``rand-2+natural``, which ``parse`` reads.

Noise for privacy is not a codec: it must not be keyed, and it is added to the point before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from proxskip.codecs.contract import Codec, Key
from proxskip.codecs.numbers import Float32, Identity, Natural
from proxskip.codecs.selections import L1Selection, Masks, Ownership, RandK
from proxskip.support.display import short
from proxskip.types import Array, InputError

__all__ = [
    "BUILT_IN", "Codec", "Float32", "Identity", "Key", "L1Selection", "Masks", "Natural", "Ownership", "RandK",
    "as_codec", "parse", "read_back",
]  # fmt: skip


_EVERY: dict[str, type[Identity] | type[Float32] | type[Natural]] = {
    "identity": Identity,
    "float32": Float32,
    "natural": Natural,
}
_SOME: dict[str, Callable[[int, Identity | Float32 | Natural], Codec]] = {
    "rand": RandK,
    "masks": Masks,
    "l1": L1Selection,
}
FORMS = "identity, float32, natural, rand-K, masks-S or l1-K, the last three with +float32 or +natural if wanted"
"""The text forms."""
BUILT_IN = (Identity, Float32, Natural, RandK, Masks, L1Selection)
"""The codecs with a text form."""


def read_back(codec: Codec, v: Array, key: Key) -> Array:
    """v as the other side reads it by this ``codec`` and ``key``; v itself if nothing changes."""
    return v if isinstance(codec, Identity) else codec.decode(codec.encode(v, key), len(v), key)


def parse(text: str) -> Codec:
    """The codec of a text form.

    >>> parse("rand-2+natural")
    RandK(k=2, values=Natural())
    >>> str(parse("rand-2+natural"))
    'rand-2+natural'
    """
    name, plus, rest = text.partition("+")
    some = re.fullmatch(r"(rand|masks|l1)-([0-9]{1,9})", name)
    if some and (not plus or rest in _EVERY):
        return _SOME[some[1]](int(some[2]), _EVERY[rest]() if plus else Identity())
    if name in _EVERY and not plus:
        return _EVERY[name]()
    raise InputError(f'codec "{text}" is not known; use {FORMS}.')


def as_codec(codec: Codec | str) -> Codec:
    """A codec, or that of a text form."""
    if isinstance(codec, str):
        return parse(codec)
    if not isinstance(codec, Codec):
        raise InputError(f"codec = {short(codec)} is not a codec; give one of proxskip.codecs, or its name.")
    return codec
