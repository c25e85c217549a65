"""Compiled minibatches: the rows of client i at step k of round r, as a function of the seed and (i, r, k) alone.

``randomness.minibatch`` is the reference. ``subset`` marks drawn rows in a table with one byte per row, which is zero
in between. All arithmetic is on unsigned integers, exact on every machine.
"""

from typing import Any, NamedTuple

import numpy as np

from proxskip.lazy.compilation import njit
from proxskip.randomness import REDRAW

_WORD = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
# Philox4x32: multipliers, and the Weyl constants that advance the key
_PHILOX_M0, _PHILOX_M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_PHILOX_W0, _PHILOX_W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_u32, _u64 = np.uint32, np.uint64
_REDRAW = np.uint32(REDRAW)
NO_PICKS = np.zeros(0, np.uint32)
"""All rows, in their order."""
ROWS_PER_PICK = 16
"""A minibatch with fewer rows than one in this many is read in the order drawn."""


class Draws(NamedTuple):
    """The keys of a round's minibatches, for all members of a cohort."""

    batch: int
    """Rows of a minibatch; 0 for full gradients."""
    seed: int
    round: int
    number0: int
    """The number of the first client among all."""
    step0: Any
    """The number of each member's first step."""


def room_for(batch: int, rows: int, place: Any = NO_PICKS) -> tuple[Any, Any]:
    """Buffers for a minibatch and for drawing it: ``picks``, and the ``room`` of ``draw_rows``.

    Args:
        batch: rows of a minibatch; 0 if all rows are read.
        rows: the most rows of a client.
        place: the place of each row of all clients within its client; empty if rows are in order.
    """
    picks = np.empty(batch + 3, np.uint32) if batch else NO_PICKS
    return picks, (np.zeros(rows if batch else 0, np.uint8), place)


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def philox(c0, c1, c2, c3, seed):
    """The four words of ``randomness.philox4x32``; the counter has 32-bit words, the seed 64 bits."""
    k0, k1 = _u32(seed & _WORD), _u32(seed >> _32)
    for _ in range(10):
        p0, p1 = _PHILOX_M0 * _u64(c0), _PHILOX_M1 * _u64(c2)
        c0, c1 = _u32(_u32(p1 >> _32) ^ c1 ^ k0), _u32(p1)
        c2, c3 = _u32(_u32(p0 >> _32) ^ c3 ^ k1), _u32(p0)
        k0, k1 = _u32(k0 + _u32(_PHILOX_W0)), _u32(k1 + _u32(_PHILOX_W1))
    return c0, c1, c2, c3


@njit(nogil=True, cache=True, borrows=True)
def _redrawn(product, side, i, step, round, client, seed):
    """``randomness._redrawn``: a number below ``side``, all of them equally likely."""
    attempt, least = 0, (_u64(0x100000000) - side) % side
    while product & _WORD < least:
        key = _u64(seed + (_u64(attempt // 4) << _32))
        words = philox(_u32(_REDRAW | _u32(i)), _u32(step), _u32(round), _u32(client), key)
        product = _u64(words[attempt % 4]) * side
        attempt += 1
    return product >> _32


@njit(nogil=True, cache=True, borrows=True)
def subset(seed, client, round, step, m, n, seen, rows):
    """n different rows of m into ``rows``, which has room for three more; ``seen`` holds m zeros before and after."""
    seed = _u64(seed)
    blocks = (n + 3) // 4
    for q in range(blocks):
        c0, c1, c2, c3 = philox(_u32(q), _u32(step), _u32(round), _u32(client), seed)
        # word r of the block is that of draw q + r * blocks, a number below its side
        for r in range(4):
            word = c0 if r == 0 else c1 if r == 1 else c2 if r == 2 else c3
            i = q + r * blocks
            side = _u64(m - n + 1 + i)
            product = _u64(word) * side
            if product & _WORD < side and i < n:  # rare, and even then not always redrawn
                rows[i] = _u32(_redrawn(product, side, i, step, round, client, seed))
            else:
                rows[i] = _u32(product >> _32)
    # Floyd: a number drawn before becomes the last one in its range, which was not
    for i in range(n):
        row = rows[i]
        row = _u32(row + seen[row] * _u32(m - n + i - row))  # without a branch, which would often be mispredicted
        seen[row] = 1
        rows[i] = row
    for i in range(n):
        seen[rows[i]] = 0


@njit(nogil=True, cache=True, borrows=True)
def draw_rows(seed, client, round, step, first, m, b, rows, room):
    """The places of b of the client's m rows into ``rows``, which has room for three more.

    In ascending order, so that neighbours in memory are read together, unless they are few of many.

    Args:
        first: the number of the client's first row among all clients'.
        room: m zero bytes, zero again afterwards, and the rows' places: see ``room_for``.
    """
    seen, places = room
    place = places[first : first + m]
    rest, placed = 2 * b > m, place.shape[0] > 0
    n = m - b if rest else b
    subset(seed, client, round, step, m, n, seen, rows)
    if placed:
        for i in range(n):
            rows[i] = place[rows[i]]
    if not rest and m > ROWS_PER_PICK * b:
        return
    for i in range(n):
        seen[rows[i]] = 1
    at = 0
    for r in range(m):
        rows[at] = _u32(r)  # overwritten by the next row unless it is taken
        at += seen[r] != rest
        seen[r] = 0


@njit(nogil=True, cache=True, borrows=True, error_model="numpy")
def weigh_rows(i, k, lo, hi, tiled, draws, share, picks, room):
    """share <- how often each tiled row (lo .. hi-1) of client i is in its minibatch of step k.

    ``tiled`` is (row0, place, count). A tiled row stands for ``count`` equal rows of the data, and place[r] says which
    one stands for row r. Either the minibatch or the remaining rows are drawn, whichever are fewer. Returns the factor
    of the gradient.
    """
    row0, place, count = tiled
    seen, batch = room[0], draws.batch
    first, m = row0[i], row0[i + 1] - row0[i]
    n, one = batch, share.dtype.type(1.0)
    if 2 * batch <= m:
        for r in range(hi - lo):
            share[r] = 0.0
    else:
        n, one = m - batch, -one
        for r in range(hi - lo):
            share[r] = count[lo + r]
    subset(draws.seed, draws.number0 + i, draws.round, k, m, n, seen, picks)
    for q in range(n):
        share[place[first + picks[q]]] += one
    return share.dtype.type(1.0 / batch)
