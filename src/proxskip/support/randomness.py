"""All randomness of the package: every draw is keyed, and no generator has hidden state.

So the same seed gives the same run on every engine, in any order of the clients, and after a restart.

======================  ==========================  ===================================  =============================
Function                Keyed by                    Drawn                                By
======================  ==========================  ===================================  =============================
``minibatch``           seed, client, round, step   the rows of a minibatch              engines, protocol, ``minimize``
``minibatch``           the same                    the rows of a network's minibatch    experiments
``stream("server")``    seed, round                 coins: how many local steps          loop, protocol, ``minimize``
``stream("cohort")``    seed, round (and retries)   who takes part in a round            loop, protocol
``stream("links")``     seed, round                 links that wake or fail, masks       loop
``codec_words``         seed, round, client, ...    masks, indices, roundings of codecs  engines, protocol
``anchor_coin``         seed, client, round, step   whether L-SVRG's anchor moves        engines, protocol
``dropout_word``        seed, round, step           with the client, masks of dropout    networks as clients
``client_uniforms``     seed, client, round, ...    speeds, hours and losses of clients  simulated networks
``generator(seed)``     the caller's seed           splits, random quadratics, problems  problems, experiments, protocol
``generator(0)``        fixed                       Lanczos start; sample of rows        ``spectrum``, ``minimize``
``generator(1)``        fixed                       start of the power method            ``minimize``
``generator(2)``        fixed                       vectors that test a transpose        ``spectrum``
``generator(11)``       fixed                       points and cohorts of the laws       ``testing``
``python_generator``    the caller's seed           random graphs; simulated faults      links, protocol
======================  ==========================  ===================================  =============================

The one exception is the noise of differential privacy (``flower.noise``), which must not be repeatable.

Cohorts. ``subset`` draws c of n with O(c) words of the stream. Problems with fewer than ``FEW_CLIENTS`` clients
take the first c of a permutation of all n instead.

Minibatches. Floyd's algorithm for a random subset (Bentley and Floyd, "A sample of brilliance", Communications of the
ACM, 1987) draws b of m rows or, if b > m/2, the m - b rows left out. Each row takes one word of Philox4x32-10, key =
seed and counter = (block, step, round, client) (Salmon et al., 2011). A word that would favor some rows is redrawn
(Lemire, "Fast random integer generation in an interval", 2019, arXiv:1805.10941). The code here is the reference for
the compiled forms (``engines.cpu.kernels``, ``engines/gpu/draw.cu``, ``engines.torch.stacked_steps``).
"""

from __future__ import annotations

import random
import threading
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from proxskip.types import Indices

Words = npt.NDArray[np.uint64]

MASK32 = 0xFFFFFFFF
FEW_CLIENTS = 10_000
"""Problems with fewer clients draw cohorts from a permutation of all."""
_PURPOSES = ("server", "cohort", "codec", "anchor", "rounding", "links", "dropout", "traits", "hours", "faults")
STREAMS = {name: number for number, name in enumerate(_PURPOSES, 1)}
"""The word of the counter for each purpose."""
REDRAW = 0x40000000
"""In the first word of the counter: marks words for redraws."""


def philox4x32(counter: tuple[Any, Any, Any, Any], seed: int) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10: four random 32-bit words from a counter of four words and a 64-bit key.

    If words of the counter are uint64 arrays, so are the results.
    """
    c0, c1, c2, c3 = (c & MASK32 if isinstance(c, np.ndarray) else int(c) & MASK32 for c in counter)
    k0, k1 = int(seed) & MASK32, (int(seed) >> 32) & MASK32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & MASK32
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def minibatch(seed: int, client: int, round: int, step: int, m: int, b: int) -> Indices:
    """b different rows out of m: in the order drawn if b <= m/2, otherwise ascending."""
    if 2 * b <= m:
        return _subset(seed, client, round, step, m, b)
    kept = np.ones(m, dtype=bool)
    kept[_subset(seed, client, round, step, m, m - b)] = False
    return np.flatnonzero(kept)


def _subset(seed: int, client: int, round: int, step: int, m: int, n: int) -> Indices:
    """n different rows out of m by Floyd's algorithm: every subset is equally likely."""
    # draw i is a number from 0 to m - n + i; word r of block q belongs to draw q + r * blocks
    blocks = -(-n // 4)
    words = philox4x32((np.arange(blocks, dtype=np.uint64), step, round, client), seed)
    sides = np.arange(m - n + 1, m + 1, dtype=np.uint64)
    products = np.concatenate([np.broadcast_to(w, (blocks,)) for w in words])[:n].astype(np.uint64) * sides
    numbers = products >> np.uint64(32)
    for i in np.flatnonzero((products & np.uint64(MASK32)) < sides):  # few: these may need a redraw
        numbers[i] = _redrawn(int(products[i]), int(sides[i]), int(i), (step, round, client), seed)
    return _floyd(numbers.tolist(), m)


def _redrawn(product: int, side: int, i: int, counter: tuple[int, int, int], seed: int) -> int:
    """A number below ``side``, all equally likely: products whose low word is below 2^32 mod side are redrawn."""
    attempt, least = 0, (2**32 - side) % side
    while product & MASK32 < least:
        # four words at a time; the key's high word counts these calls
        words = philox4x32((REDRAW | i, *counter), seed + (attempt // 4 << 32))
        product = words[attempt % 4] * side
        attempt += 1
    return product >> 32


def _floyd(numbers: list[int], m: int) -> Indices:
    """Different rows from n numbers, the i-th in 0..m-n+i: a number drawn before becomes m - n + i."""
    drawn: dict[int, None] = {}
    for last, t in enumerate(numbers, m - len(numbers)):
        drawn[last if t in drawn else t] = None
    return np.fromiter(drawn, dtype=np.int64, count=len(drawn))


def stream(seed: int, round: int, name: str, into: np.random.Generator | None = None) -> np.random.Generator:
    """The randomness shared in one round: a generator keyed by (seed, round, name).

    Args:
        name: a purpose, one of ``STREAMS``.
        into: an earlier generator of this function to reuse, five times faster than a new one.
    """
    rng = into or np.random.Generator(np.random.Philox(key=0))
    _reset(rng.bit_generator, seed, [0, 0, round, STREAMS[name]])
    return rng


def subset(rng: np.random.Generator, n: int, c: int) -> Indices:
    """c different numbers below n in increasing order, every set equally likely, from O(c) words."""
    if 2 * c > n:  # draw those left out
        taken = np.ones(n, dtype=bool)
        taken[subset(rng, n, n - c)] = False
        return np.flatnonzero(taken)
    largest = np.uint64(2**64 - 2**64 % n - 1)  # larger words are redrawn, because n does not divide 2^64
    drawn = np.zeros(0, dtype=np.uint64)
    while True:
        words: Words = rng.bit_generator.random_raw(c + c * c // n + 16)
        drawn = np.concatenate([drawn, words[words <= largest] % np.uint64(n)])
        # number and place in one word, so one sort finds the first draw of each number
        order = np.sort(drawn.astype(np.int64) * len(drawn) + np.arange(len(drawn)))
        number, place = np.divmod(order, len(drawn))
        new = np.append(True, number[1:] != number[:-1])
        number, place = number[new], place[new]
        if len(number) >= c:
            members: Indices = number[place < np.sort(place)[c]] if len(number) > c else number
            return members


def _reset(bits: Any, seed: int, counter: list[int]) -> None:
    """Turn it into a new Philox with this key and counter and an empty buffer (buffer_pos = 4)."""
    state = {"counter": np.array(counter, dtype=np.uint64), "key": np.array([seed, 0], dtype=np.uint64)}
    fresh = {"buffer": np.zeros(4, dtype=np.uint64), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
    bits.state = {"bit_generator": "Philox", "state": state, **fresh}


class _OfThread(threading.local):
    """One generator per thread, made at its first draw: numpy.random takes 1 MB."""

    @cached_property
    def bits(self) -> Any:
        return np.random.Philox(key=0)


_here = _OfThread()


def codec_words(
    count: int, name: str, seed: int, round: int, who: int, attempt: int = 0, exchange: int = 0, vector: int = 0
) -> Words:
    """Random 64-bit words for one message's codec: raw Philox, so that no numpy release changes them.

    Args:
        name: ``codec`` for what both sides draw, ``rounding`` for what only the sender needs.
        who: 0 for words that all clients share, else 1 + the client.
    """
    part = (attempt << 32) | (exchange << 16) | vector
    _reset(_here.bits, seed, [0, (part << 8) | STREAMS[name], round, who])
    words: Words = _here.bits.random_raw(count)
    return words


def anchor_coin(seed: int, client: int, round: int, step: int) -> float:
    """A number in [0, 1) for each local step: L-SVRG's anchor moves if it is below q."""
    word, *_ = philox4x32((0x80000000 | STREAMS["anchor"], step, round, client), seed)
    return float(word) / 2**32


def dropout_word(seed: int, round: int, step: int) -> int:
    """A signed 64-bit word for each local step; with a client's number, its dropout masks are hashed from it."""
    high, low, *_ = philox4x32((0x80000000 | STREAMS["dropout"], step, round, 0), seed)
    word = (int(high) << 32) | int(low)
    return word - 2**64 if word >= 2**63 else word


def generator(seed: int) -> np.random.Generator:
    """A generator for one-time draws, such as a split or a random problem, keyed by the seed alone.

    The seed passes through numpy's ``SeedSequence``, so these draws share nothing with ``stream``.
    """
    return np.random.Generator(np.random.Philox(seed))


def python_generator(seed: int) -> random.Random:
    """A generator of the standard library, for networkx's random graphs and the simulator's faults."""
    return random.Random(seed)


def client_uniforms(
    seed: int, name: str, clients: Indices, round: int = 0, attempt: int = 0
) -> npt.NDArray[np.float64]:
    """Four independent numbers in (0, 1) per client of a simulated network, shape (4, c).

    They come from ``philox4x32`` with the counter (purpose, attempt, round, client).

    Args:
        name: ``traits`` of a client, its presence in some of the ``hours``, or a round's ``faults``.
    """
    counter = 0x80000000 | STREAMS[name], attempt, round, np.asarray(clients).astype(np.uint64)
    return (np.stack(philox4x32(counter, seed)) + 0.5) / 2**32
