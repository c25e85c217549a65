"""What the server reads of vectors that go through a codec, on the card: the host draws, and nothing comes down.

Masks and random coordinates are a factor for every number, zero where it is not sent; natural compression rounds each
number by a random word. The words are those of ``links.codecs``, so that all engines send the same coordinates and
round them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from proxskip.engines.gpu.server_kernels import natural
from proxskip.links.codecs import Codec, Identity, Key, Masks, Natural, Ownership, RandK
from proxskip.types import InputError


def read_on_card(cupy: Any, v: Any, codec: Codec, keys: Sequence[Key], d: int) -> Any:
    """What is read of each member's row of v."""
    if isinstance(codec, Ownership):
        return cupy.asarray(np.stack([Masks(codec.s).owned(d, key) for key in keys]).astype(np.float64))
    selects = isinstance(codec, (RandK, Masks))
    values: Any = codec.values if isinstance(codec, (RandK, Masks)) else codec
    if not isinstance(values, (Natural, Identity) if selects else Natural):
        raise InputError(f'the gpu engine cannot send through {codec}; use engine="cpu".')
    factors, words = np.zeros((len(keys), d)), np.zeros((len(keys), d), dtype=np.uint64)
    for j, key in enumerate(keys):
        places, factors[j] = _sent(codec, d, key)
        if isinstance(values, Natural):
            words[j, places] = key.words(words[j, places].size, "rounding")
    if isinstance(values, Natural):
        v = natural(cupy.ascontiguousarray(cupy.broadcast_to(v, factors.shape)), cupy.asarray(words))
    return v * cupy.asarray(factors) if selects else v


def _sent(codec: Codec, d: int, key: Key) -> tuple[Any, Any]:
    """The places that are sent, and the factor of every number."""
    factor = np.zeros(d)
    if isinstance(codec, RandK):
        places: Any = codec.chosen(d, key)
        # unbiased: each of the d coordinates is sent with probability K/d
        factor[places] = d / len(places)
    elif isinstance(codec, Masks):
        places = codec.owned(d, key)
        factor[places] = key.asked / min(codec.s, key.asked)
    else:
        places = slice(None)
        factor[:] = 1.0
    return places, factor
