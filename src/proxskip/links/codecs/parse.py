"""Codecs by their text form."""

from __future__ import annotations

import re
from typing import Any

from proxskip.links.codecs.contract import Codec
from proxskip.links.codecs.numbers import Float32, Identity, Natural
from proxskip.links.codecs.selections import L1Selection, Masks, RandK
from proxskip.types import InputError

_EVERY: dict[str, Any] = {"identity": Identity, "float32": Float32, "natural": Natural}
_SOME: dict[str, Any] = {"rand": RandK, "masks": Masks, "l1": L1Selection}
FORMS = "identity, float32, natural, rand-K, masks-S or l1-K, the last three with +float32 or +natural if wanted"
"""What ``parse`` reads, in words."""


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
        return _SOME[some[1]](int(some[2]), _EVERY[rest]() if plus else Identity())  # type: ignore[no-any-return]
    if name in _EVERY and not plus:
        return _EVERY[name]()  # type: ignore[no-any-return]
    raise InputError(f'codec "{text}" is not known; use {FORMS}.')


def as_codec(codec: Codec | str) -> Codec:
    """A codec, or the one of a text form."""
    return parse(codec) if isinstance(codec, str) else codec
