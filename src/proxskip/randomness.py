"""Minibatches without a stateful generator: which rows client i takes at step k of round r, on every engine the same.

The rows are the first b values of a keyed permutation of 0..m-1, so that any of them can be computed alone (on a GPU,
by a retried call, in another process). The permutation is an alternating Feistel network on the smallest power of two
that holds m, followed until it lands below m ("cycle walking"); its round keys are Philox4x32-10 words with key = seed
and counter = (block, step, round, client) (Salmon et al., 2011). Compare Mitchell et al., "Bandwidth-optimal random
shuffling for GPUs", 2021, who use the same construction for shuffling.

This module is the plain numpy form and the judge of the compiled ones in ``engines.cpu.minibatches``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proxskip.types import Indices

ROUNDS = 12
SMALLEST_BITS = 6
"""Below 64 rows a small Feistel network is visibly not uniform; walking a larger one is."""
MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]:
    """Philox4x32-10: four random 32-bit words for a counter of four and a 64-bit key."""
    c0, c1, c2, c3 = (int(c) & MASK for c in counter)
    k0, k1 = int(seed) & MASK, (int(seed) >> 32) & MASK
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def round_keys(seed: int, client: int, round: int, step: int) -> list[int]:
    """The Feistel network's keys of one minibatch."""
    return [w for block in range(ROUNDS // 4) for w in philox4x32((block, step, round, client), seed)]


def minibatch(seed: int, client: int, round: int, step: int, m: int, b: int) -> Indices:
    """b different rows of m, in the order drawn."""
    keys = round_keys(seed, client, round, step)
    bits = max(SMALLEST_BITS, (m - 1).bit_length())
    v = _feistel(np.arange(b, dtype=np.uint64), keys, bits)
    while (out := v >= m).any():
        v[out] = _feistel(v[out], keys, bits)
    return np.asarray(v, dtype=np.int64)


def _feistel(v: Any, keys: list[int], bits: int) -> Any:
    low = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    left, right = v >> low, v & low_mask
    for k in range(0, ROUNDS, 2):
        left = left ^ (_scramble(right, keys[k]) & high_mask)
        right = right ^ (_scramble(left, keys[k + 1]) & low_mask)
    return (left << low) | right


def _scramble(v: Any, key: int) -> Any:
    mask = np.uint64(MASK)
    v = ((v ^ np.uint64(key)) * np.uint64(0x9E3779B1)) & mask
    v = v ^ (v >> np.uint64(15))
    v = (v * np.uint64(0x85EBCA77)) & mask
    return v ^ (v >> np.uint64(13))


STREAMS = {"server": 1, "cohort": 2, "codec": 3, "anchor": 4}


def stream(seed: int, round: int, name: str, into: np.random.Generator | None = None) -> np.random.Generator:
    """The shared randomness of one round: a generator keyed by (seed, round, what it is for).

    Args:
        into: a generator of this kind to set there, five times cheaper than making one.
    """
    if into is None:
        return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, round, STREAMS[name]]))
    counter = np.array([0, 0, round, STREAMS[name]], dtype=np.uint64)
    state = {"counter": counter, "key": np.array([seed, 0], dtype=np.uint64)}
    fresh = {"buffer": np.zeros(4, dtype=np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
    into.bit_generator.state = {"bit_generator": "Philox", "state": state, **fresh}
    return into


def codec_stream(
    seed: int, round: int, who: int, attempt: int = 0, exchange: int = 0, vector: int = 0
) -> np.random.Generator:
    """The randomness of one message's codec; ``who`` is 0 for what all clients share, else 1 + the client."""
    part = (attempt << 32) | (exchange << 16) | vector
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, (part << 8) | STREAMS["codec"], round, who]))


def anchor_coin(seed: int, client: int, round: int, step: int) -> float:
    """A number in [0, 1) for every local step: with probability q, whether the anchor of L-SVRG moves."""
    word, *_ = philox4x32((0x80000000 | STREAMS["anchor"], step, round, client), seed)
    return word / 2**32
